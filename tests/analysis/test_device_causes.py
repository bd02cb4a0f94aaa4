"""Causes from device times on tiny traces, each beside what it must be told apart from."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import attribute
from analysis.attribution import Attribution
from analysis.causes.engine_steps import Batch, batch_of
from analysis.causes.straggler import chance_of_last
from analysis.finding import Finding, Status
from analysis.idleness import carried
from tests.analysis.builder import SessionBuilder

US = 1_000
MS = 1_000_000


class Program:
    """One host thread that feeds one device, in ns; a stream runs in order."""

    def __init__(self, device: int = 0, rank: int | None = None, start: int = 0) -> None:
        self.device, self.rank, self.pid = device, rank, 100 + device
        self.now = self.free = start
        self.activity: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.ranges: list[dict[str, Any]] = []

    def _call(self, function: str, kind: str, length: int) -> int:
        number = len(self.calls) + 1
        self.calls.append(
            {
                "start_ns": self.now,
                "duration_ns": length,
                "pid": self.pid,
                "tid": self.pid,
                "function": function,
                "layer": "runtime",
                "kind": kind,
                "call_id": self.device * 1_000_000 + number,
                "depth": 0,
                "correlation_id": number,
                "rank": self.rank,
            }
        )
        self.now += length
        return number

    def _run(self, length: int, correlation: int, **more: Any) -> None:
        start = max(self.free, self.now)
        self.free = start + length
        row = {
            "start_ns": start,
            "duration_ns": length,
            "device": self.device,
            "pid": self.pid,
            "kind": "kernel",
            "name": "k",
            "stream": 7,
            "correlation_id": correlation,
            "rank": self.rank,
        }
        self.activity.append(row | more)

    def launch(self, length: int, **more: Any) -> None:
        self._run(length, self._call("cudaLaunchKernel", "launch", 5 * US), **more)

    def graph(self, n: int, length: int) -> None:
        correlation = self._call("cudaGraphLaunch", "graph_launch", 20 * US)
        for _ in range(n):
            self._run(length, correlation)

    def copy(self, kind: str, size: int, rate: float) -> None:
        correlation = self._call("cudaMemcpyAsync", "copy", 5 * US)
        more = {"kind": "copy", "name": kind, "copy_kind": kind, "size_bytes": size}
        self._run(int(size / rate), correlation, **more)

    def sync(self) -> None:
        self._call("cudaStreamSynchronize", "sync", max(self.free - self.now, 0) + 5 * US)

    def work(self, length: int) -> None:
        self.now += length

    def within(self, name: str, category: str, action: Callable[[], object]) -> None:
        start = self.now
        action()
        self.ranges.append(
            {
                "start_ns": start,
                "duration_ns": self.now - start,
                "pid": self.pid,
                "tid": self.pid,
                "category": category,
                "name": name,
                "rank": self.rank,
            }
        )

    def load(self, length: int) -> None:
        self.within("enumerate(DataLoader)#_Iter.__next__", "user", lambda: self.work(length))


def analysed(path: Path, *programs: Program) -> Attribution:
    rows = {
        "gpu_activity": [row for item in programs for row in item.activity],
        "cuda_call": [row for item in programs for row in item.calls],
        "annotation": [row for item in programs for row in item.ranges],
    }
    end = max(row["start_ns"] + row["duration_ns"] for row in rows["gpu_activity"])
    builder = SessionBuilder(path, origin="kineto", start_ns=0, end_ns=end)
    for name, items in rows.items():
        if items:
            builder.add(name, items)
    result = attribute(builder.write())
    for budget in result.budgets:
        assert sum(budget.by_state().values()) == pytest.approx(1.0, abs=1e-9)
    assert not [note for note in result.notes if "failed on this session" in note]
    return result


def about(attribution: Attribution, cause: str) -> Finding:
    return next(
        item for item in (*attribution.findings, *attribution.checked) if item.cause == cause
    )


def numbers(finding: Finding) -> dict[str, Any]:
    return {item.name: item.value for item in finding.evidence}


def test_slow_launching_is_host_bound(tmp_path: Path) -> None:
    program = Program()
    for _ in range(200):
        program.work(95 * US)
        program.launch(20 * US)
    found = analysed(tmp_path / "s", program)
    assert found.verdict.cause == "launch.host_bound"
    assert found.findings[0].lost_share == pytest.approx(0.8, abs=0.02)
    assert {item.cause for item in found.findings} == {"launch.host_bound"}


def test_few_long_pauses_are_not_the_rhythm_of_launching(tmp_path: Path) -> None:
    program = Program()
    for step in range(100):
        program.work(20 * MS if step in (30, 60, 90) else 5 * US)
        program.launch(200 * US)
    found = analysed(tmp_path / "s", program)
    assert (found.verdict.cause, found.verdict.status) == ("unknown", Status.UNDECIDED)
    assert about(found, "launch.host_bound").status is Status.UNDECIDED


def train(program: Program, *, loads: int, syncs: bool, steps: int = 10) -> Program:
    """Steps of 20 ms on the device whose launching takes the host 2 ms."""
    for _ in range(steps):
        program.load(loads)
        for _ in range(40):
            program.work(45 * US)
            program.launch(500 * US)
        if syncs:
            program.sync()
    return program


def test_a_sync_in_every_step_makes_the_host_visible(tmp_path: Path) -> None:
    stalled = analysed(tmp_path / "stalled", train(Program(), loads=12 * MS, syncs=True))
    assert stalled.verdict.cause == "host.sync_stall"
    assert numbers(stalled.findings[0])["waits_that_drained"] == 9
    assert about(stalled, "host.input_starvation").status is Status.NOT_FOUND
    free = analysed(tmp_path / "free", train(Program(), loads=12 * MS, syncs=False))
    assert free.verdict.cause == "device.compute_bound"


def test_a_sync_that_only_waits_for_kernels_costs_nothing(tmp_path: Path) -> None:
    found = analysed(tmp_path / "s", train(Program(), loads=100 * US, syncs=True))
    assert about(found, "host.sync_stall").status is Status.NOT_FOUND
    assert about(found, "launch.host_bound").status is Status.NOT_FOUND


def test_loading_longer_than_the_device_works_is_starvation(tmp_path: Path) -> None:
    starved = analysed(tmp_path / "starved", train(Program(), loads=40 * MS, syncs=False))
    assert starved.verdict.cause == "host.input_starvation"
    assert starved.findings[0].lost_share == pytest.approx(0.5, abs=0.05)
    assert about(starved, "host.sync_stall").status is Status.NOT_FOUND
    # The dose: what the sync does not explain is still the input's.
    both = analysed(tmp_path / "both", train(Program(), loads=80 * MS, syncs=True))
    assert both.verdict.cause == "host.input_starvation"


def test_a_wait_is_used_once() -> None:
    wait = np.array([5, 0, 0, 0, 2], dtype=np.int64)
    gap = np.array([1, 3, 4, 2, 1], dtype=np.int64)
    assert carried(wait, gap).tolist() == [1, 3, 1, 0, 1]


def test_a_busy_device_is_the_limit_only_with_a_queue(tmp_path: Path) -> None:
    ahead, behind = Program(), Program()
    for _ in range(150):
        ahead.launch(100 * US)
        behind.launch(100 * US)
        behind.now = behind.free - 2 * US
    assert analysed(tmp_path / "ahead", ahead).verdict.cause == "device.compute_bound"
    assert analysed(tmp_path / "behind", behind).verdict.cause == "healthy"
    graphs = Program()
    for _ in range(3):
        graphs.graph(200, 50 * US)
        graphs.sync()
    assert analysed(tmp_path / "graphs", graphs).verdict.cause == "healthy"


def test_a_share_of_the_time_between_activities_says_so(tmp_path: Path) -> None:
    """A recording that begins and ends with 20 ms of nothing: the budget's idleness is larger."""
    program = Program(start=20 * MS)
    for _ in range(200):
        program.launch(60 * US)
        program.now = program.free + 40 * US
    session = SessionBuilder(
        tmp_path / "s", origin="kineto", start_ns=0, end_ns=program.free + 20 * MS
    )
    session.add("gpu_activity", program.activity).add("cuda_call", program.calls)
    found = attribute(session.write())
    budget = found.budgets[0].by_state()
    compute = about(found, "device.compute_bound")
    assert budget["idle"] == pytest.approx(1 - 12 / 60.9, abs=0.002)
    assert numbers(compute)["busy_between_first_and_last_activity"] == pytest.approx(57.1, abs=0.2)
    between = "the time between its first and last activity"
    assert compute.excluded[0].reason == f"the device was idle for 43 % of {between}"


def test_copies_at_one_rate_that_nothing_hides_are_the_link(tmp_path: Path) -> None:
    link, many = Program(), Program()
    for _ in range(60):
        link.copy("h2d", 32 << 20, 25.0)
        link.launch(100 * US)
    for index in range(2000):
        many.copy("h2d", 4096, 0.5)
        if index % 50 == 0:
            many.launch(100 * US)
    found = analysed(tmp_path / "link", link)
    assert found.verdict.cause == "transfer.host_link"
    assert numbers(found.findings[0])["large_copy_rate_p50"] == pytest.approx(25.0, rel=0.01)
    assert about(analysed(tmp_path / "many", many), "transfer.host_link").status is Status.UNDECIDED
    hidden = Program()
    for _ in range(60):
        hidden.copy("h2d", 32 << 20, 25.0)
        row = hidden.activity[-1]
        hidden.activity.append(row | {"kind": "kernel", "copy_kind": None, "stream": 8})
        device_side = {"copy_kind": "d2d", "start_ns": row["start_ns"] + 10**9}
        hidden.activity.append(row | device_side)
    found = analysed(tmp_path / "hidden", hidden)
    assert about(found, "transfer.host_link").status is Status.NOT_FOUND


def engine(steps: list[tuple[str, int]]) -> Program:
    program = Program()
    for name, length in steps:
        program.within(name, "step", lambda length=length: program.graph(4, length // 4))
        program.sync()
    return program


DECODE = "execute_context_0(0)_generation_8(8)"
PROMPT = "execute_context_2(4096)_generation_8(8)"


def test_steps_with_prompts_against_decodes_alone(tmp_path: Path) -> None:
    hogged = analysed(tmp_path / "hogged", engine([(DECODE, 10 * MS), (PROMPT, 90 * MS)] * 6))
    assert hogged.verdict.cause == "prefill.hogging"
    assert hogged.verdict.status is Status.FOUND
    short = analysed(tmp_path / "short", engine([(DECODE, 10 * MS), (PROMPT, 12 * MS)] * 6))
    assert about(short, "prefill.hogging").status is Status.NOT_FOUND
    alone = analysed(tmp_path / "alone", engine([(PROMPT, 90 * MS)]))
    assert alone.verdict.status is Status.UNDECIDED
    assert alone.verdict.candidates == ("prefill.hogging",)
    decodes = analysed(tmp_path / "decodes", engine([(DECODE, 10 * MS)] * 12))
    assert decodes.verdict.cause == "healthy"
    nobody = "execute_context_2(4096)_generation_0(0)"
    prompts = analysed(tmp_path / "nobody", engine([(nobody, 90 * MS)] * 6))
    assert about(prompts, "prefill.hogging").status is Status.NOT_FOUND


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("execute_context_1(888_788544)_generation_0(0)", Batch(1, 0, 888, 0)),
        (
            "execute_8192_context_9(sq8155sk8430sqsq7sqsk7)_generation_37(sq37sk3sqsq37sqsk3)",
            Batch(9, 37, 8155, 37),
        ),
        ("forward_extend", Batch(1, 0)),
        ("decode step 3", Batch(0, 1)),
        ("ProfilerStep#5", None),
    ],
)
def test_batch_of_a_step(name: str, batch: Batch | None) -> None:
    assert batch_of(name) == batch


def job(late: Callable[[int], int], *, marked: bool = True, skew: int = 0) -> list[Program]:
    """Four ranks, 40 collectives; ``late(k)`` is the rank that is 2 ms late to the k-th."""
    ranks = [Program(index, index, start=index * skew) for index in range(4)]
    for k in range(40):
        for program in ranks:
            program.launch(4 * MS)
            program.sync()
            if program.rank == late(k):
                program.work(2 * MS)
        end = max(program.now - (program.rank or 0) * skew for program in ranks) + 100 * US
        for program in ranks:
            length = end + (program.rank or 0) * skew - program.now - 5 * US
            program.launch(length, name="exchange", is_collective=marked or None, stream=9)
            program.sync()
    return ranks


@pytest.mark.parametrize(("marked", "skew"), [(True, 0), (False, 0), (True, 700 * US)])
def test_the_rank_that_enters_last_steadily(tmp_path: Path, marked: bool, skew: int) -> None:
    """Also where no list knows the kernel as a collective, and with clocks that differ."""
    found = analysed(tmp_path / "s", *job(lambda k: 2, marked=marked, skew=skew))
    assert found.verdict.cause == "collective.straggler"
    assert found.findings[0].where.rank == 2
    assert numbers(found.findings[0])["times_last"] == "rank 2: 40"


def test_no_rank_is_named_when_another_is_late_each_time(tmp_path: Path) -> None:
    order = [rank for rank in range(4) for _ in range(10)]
    random.Random(1).shuffle(order)
    found = analysed(tmp_path / "s", *job(lambda k: order[k]))
    finding = about(found, "collective.straggler")
    assert finding.status is Status.NOT_FOUND
    assert "no rank is steadily late" in finding.excluded[0].reason
    on_time = analysed(tmp_path / "on_time", *job(lambda k: -1))
    assert about(on_time, "collective.straggler").status is Status.NOT_FOUND


def test_one_rank_alone_is_undecided(tmp_path: Path) -> None:
    found = analysed(tmp_path / "s", job(lambda k: 2)[0])
    finding = about(found, "collective.straggler")
    assert (finding.status, found.verdict.status) == (Status.UNDECIDED, Status.UNDECIDED)
    assert "all ranks" in finding.settled_by


def test_chance_of_being_last() -> None:
    assert chance_of_last(2, 1, 1) == 1.0
    assert chance_of_last(8, 8, 5) == pytest.approx(0.0097, abs=0.0005)


def operations(path: Path, compute: Callable[[int, int, int], float]) -> Attribution:
    """The log of a job of 3 stages by 4 ranks; ``compute(step, stage, dp_rank)`` in ms."""
    builder = SessionBuilder(path, origin="operations", gpus=[])
    start, rows = 0, []
    for step in range(12):
        lengths = {(s, d): compute(step, s, d) for s in range(3) for d in range(4)}
        whole = int(max(lengths.values()) * MS) + 10 * MS
        for (stage, dp_rank), length in lengths.items():
            base = {"rank": stage * 4 + dp_rank, "dp_rank": dp_rank, "stage": stage, "step": step}
            own = int(length * MS)
            parts = (("forward-compute", 0, own), ("grads-reduce-scatter", own, whole - own))
            for name, at, duration in parts:
                is_compute = name == "forward-compute"
                rows.append(
                    base
                    | {
                        "start_ns": start + at,
                        "duration_ns": duration,
                        "name": name,
                        "microbatch": 0 if is_compute else None,
                        "is_compute": is_compute,
                        "is_communication": not is_compute,
                    }
                )
        start += whole
    builder.manifest.start_ns, builder.manifest.end_ns = 0, start
    return attribute(builder.add("operation", rows).write())


def test_worker_stage_and_sequences_are_told_apart(tmp_path: Path) -> None:
    rng = random.Random(3)
    noise = [[[rng.uniform(0.98, 1.02) for _ in range(4)] for _ in range(3)] for _ in range(12)]
    heavy = [rng.randrange(4) for _ in range(12)]
    worker = operations(
        tmp_path / "worker", lambda k, s, d: 50 * noise[k][s][d] * (2 if (s, d) == (1, 2) else 1)
    )
    assert worker.verdict.cause == "collective.straggler"
    assert worker.findings[0].where.rank == 6
    assert numbers(worker.findings[0])["kind"] == "straggler_worker"
    stage = operations(
        tmp_path / "stage", lambda k, s, d: 50 * noise[k][s][d] * (1.8 if s == 2 else 1)
    )
    assert numbers(stage.findings[0])["kind"] == "stage_imbalance"
    assert numbers(stage.findings[0])["slowest_stage"] == 2
    uneven = operations(
        tmp_path / "uneven", lambda k, s, d: 50 * noise[k][s][d] * (1.7 if d == heavy[k] else 1)
    )
    assert numbers(uneven.findings[0])["kind"] == "sequence_imbalance"
    even = operations(tmp_path / "even", lambda k, s, d: 50 * noise[k][s][d])
    assert about(even, "collective.straggler").status is Status.NOT_FOUND
    # Another worker is slow each time, but not in all stages of the step: not sequences.
    lone = operations(
        tmp_path / "lone",
        lambda k, s, d: 50 * noise[k][s][d] * (2 if (s, d) == (k % 3, heavy[k]) else 1),
    )
    assert not any(item.status is Status.FOUND for item in lone.findings)


def odd_rows(rng: random.Random, n: int) -> dict[str, list[dict[str, Any]]]:
    """Rows of the tables that device causes read, as a damaged recording may hold them."""

    def time() -> int:
        return rng.choice([0, 1, MS, 10**9, rng.randrange(10**10), 17 * 10**17 + rng.randrange(99)])

    def length() -> int:
        return rng.choice([0, 1, -5, US, 10 * MS])

    def maybe(*values: Any) -> Any:
        return rng.choice([None, *values])

    names = ["", "DataLoader", DECODE, PROMPT, "context_9(x)_generation_2()", "prefill"]
    activity = [
        {
            "start_ns": time(),
            "duration_ns": length(),
            "device": rng.randrange(3),
            "pid": maybe(1, 2),
            "stream": maybe(1, 2**63),
            "kind": rng.choice(["kernel", "copy", "set", "graph"]),
            "name": maybe("a", "b", ""),
            "copy_kind": maybe("h2d", "d2h", "d2d"),
            "size_bytes": maybe(0, -1, 1 << 22),
            "correlation_id": maybe(*range(50)),
            "is_collective": maybe(True, False),
            "rank": maybe(0, 1),
        }
        for _ in range(n)
    ]
    calls = [
        {
            "start_ns": time(),
            "duration_ns": maybe(0, -5, US, 10 * MS),
            "pid": rng.choice([1, 2]),
            "tid": rng.choice([1, 2, 3]),
            "function": "f",
            "layer": "runtime",
            "kind": rng.choice(["launch", "sync", "copy", "memory", "graph_launch"]),
            "call_id": index,
            "depth": rng.choice([0, 0, 1]),
            "correlation_id": maybe(*range(50)),
            "rank": maybe(0, 1),
        }
        for index in range(n)
    ]
    ranges = [
        {
            "start_ns": time(),
            "duration_ns": abs(length()),
            "tid": maybe(1, 2),
            "category": rng.choice(["step", "user", "operator"]),
            "name": rng.choice(names),
            "rank": maybe(0, 1),
        }
        for _ in range(n)
    ]
    log = [
        {
            "start_ns": time(),
            "duration_ns": abs(length()),
            "rank": rng.randrange(4),
            "dp_rank": maybe(0, 1),
            "stage": maybe(0, 1, 2),
            "step": rng.randrange(5),
            "name": "x",
            "microbatch": maybe(0, 1),
            "is_compute": rng.random() < 0.5,
            "is_communication": False,
        }
        for _ in range(n)
    ]
    tables = {"gpu_activity": activity, "cuda_call": calls, "annotation": ranges, "operation": log}
    return {name: tables[name] for name in rng.sample(list(tables), rng.randint(1, 4))}


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("seed", range(40))
def test_odd_recordings_are_answered(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    builder = SessionBuilder(tmp_path / "s", start_ns=0, end_ns=10**10)
    for name, rows in odd_rows(rng, rng.choice([1, 5, 60, 300])).items():
        builder.add(name, rows)
    answer = attribute(builder.write())
    answer.to_json()
    assert not [note for note in answer.notes if "failed on this session" in note]
    for budget in answer.budgets:
        assert sum(budget.by_state().values()) == pytest.approx(1.0, abs=1e-9)
