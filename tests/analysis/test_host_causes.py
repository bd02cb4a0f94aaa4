"""The host keeps the device waiting: interpreter, graphs, input, syncs, memory; heavy requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis import attribute
from analysis.finding import Status
from analysis.manifest import Source, Target
from tests.analysis.builder import MS, S, Service
from tests.analysis.scrapes import Scrapes, finding, gpu_rows

SIBLING, WORKER = 4_003, 4_900


def threads(service: Service, shares: dict[tuple[int, int], float]) -> None:
    """How much of each second threads (pid, tid) were on a CPU."""
    seconds = (service.now - service.start) // S
    service.rows["thread_second"] = [
        {
            "start_ns": service.start + index * S,
            "duration_ns": S,
            "pid": pid,
            "tid": tid,
            "running_ns": int(share * S),
            "waiting_ns": 0,
            "sleeping_ns": int((1 - share) * S),
        }
        for index in range(seconds)
        for (pid, tid), share in shares.items()
    ]


def locked(
    service: Service, waker_pid: int, waker_tid: int, lock: str | None = None, every_other: int = 0
) -> None:
    """Before every second step the thread waits in slices of 5 ms for somebody, on a lock that
    the recording tells or not; of so many waits one is on the interpreter's.
    """
    n = 0
    while service.now < service.start + 12 * S:
        n += 1
        told = "interpreter" if every_other and n % every_other == 0 else lock
        for part in (5, 5, 3):
            waker = {"waker_pid": waker_pid, "waker_tid": waker_tid} if part == 3 else {}
            span = (service.now, service.now + part * MS)
            service.absent(*span, "sleeping", 4_000, lock=told, **waker)
            service.now += part * MS
        service.decode_step()
        service.decode_step()


def test_waits_that_a_busy_sibling_ends_are_suspected_of_the_interpreter(tmp_path: Path) -> None:
    service = Service(seed=1)
    locked(service, service.pid, SIBLING)
    threads(service, {(service.pid, SIBLING): 0.55, (service.pid, service.pid): 0.2})
    attribution = attribute(service.session(tmp_path / "session"))
    gil = finding(attribution, "launch.gil")
    assert gil.status is Status.UNDECIDED
    assert gil.lost_share == pytest.approx(13 / 32, abs=0.08)
    assert attribution.verdict.candidates[0] == "launch.gil"


@pytest.mark.parametrize(
    ("waker", "shares"),
    [
        ((99, 99), {(4_000, SIBLING): 0.55}),
        ((4_000, SIBLING), {(4_000, SIBLING): 0.01}),
        ((4_000, SIBLING), {(4_000, SIBLING): 0.9, (4_000, 4_004): 0.9}),
    ],
    ids=["another process", "an idle sibling", "siblings that run side by side"],
)
def test_waits_that_are_not_for_the_interpreter(
    tmp_path: Path, waker: tuple[int, int], shares: dict[tuple[int, int], float]
) -> None:
    service = Service(seed=1)
    locked(service, *waker)
    threads(service, shares)
    attribution = attribute(service.session(tmp_path / "session"))
    assert finding(attribution, "launch.gil").status is Status.NOT_FOUND


@pytest.mark.parametrize("share", [0.55, 0.01], ids=["a busy sibling", "an idle one"])
def test_sleeps_on_the_interpreters_own_lock_prove_it(tmp_path: Path, share: float) -> None:
    service = Service(seed=1)
    locked(service, service.pid, SIBLING, "interpreter")
    threads(service, {(service.pid, SIBLING): share})
    attribution = attribute(service.session(tmp_path / "session"))
    gil = finding(attribution, "launch.gil")
    assert gil.status is Status.FOUND
    assert gil.lost_share == pytest.approx(13 / 32, abs=0.08)
    assert attribution.verdict.cause == "launch.gil"
    assert f"thread {SIBLING}" in gil.summary
    [budget] = attribution.budgets
    spent = budget.totals()["idle", "interpreter"]
    assert spent == pytest.approx(gil.lost_share, abs=0.01)


@pytest.mark.parametrize("every_other", [0, 12], ids=["only another lock", "few of them"])
def test_sleeps_on_another_lock_are_not_the_interpreters(tmp_path: Path, every_other: int) -> None:
    service = Service(seed=1)
    locked(service, service.pid, SIBLING, "other", every_other)
    threads(service, {(service.pid, SIBLING): 0.55})
    attribution = attribute(service.session(tmp_path / "session"))
    assert finding(attribution, "launch.gil").status is Status.NOT_FOUND
    assert attribution.verdict.cause != "launch.gil"


def collecting(service: Service, every: int, length_ns: int) -> list[dict[str, Any]]:
    """Pauses on the CPU after every so many steps, and the events of a collector in them."""
    events = []
    n = 0
    while service.now < service.start + 15 * S:
        n += 1
        if every and n % every == 0:
            events.append(
                {
                    "time_ns": service.now,
                    "kind": "gc",
                    "name": "python",
                    "pid": service.pid,
                    "duration_ns": length_ns,
                }
            )
            service.compute(length_ns)
        service.decode_step()
    return events


def test_regular_pauses_on_the_cpu_are_suspected_of_the_collector(tmp_path: Path) -> None:
    service = Service(seed=2)
    collecting(service, 25, 90 * MS)
    attribution = attribute(service.session(tmp_path / "session"))
    assert attribution.verdict.candidates[0] == "launch.gc_pause"
    assert finding(attribution, "launch.gc_pause").status is Status.UNDECIDED


def test_the_collectors_own_events_prove_it(tmp_path: Path) -> None:
    service = Service(seed=2)
    events = collecting(service, 25, 90 * MS)
    builder = service.builder(tmp_path / "session").add("event", events)
    attribution = attribute(builder.write())
    assert attribution.verdict.cause == "launch.gc_pause"
    [budget] = attribution.budgets
    lost = finding(attribution, "launch.gc_pause").lost_share
    assert budget.totals()["idle", "collector"] == pytest.approx(lost, abs=0.01)


def test_pauses_of_an_interpreter_that_tells_of_no_collection_are_something_else(
    tmp_path: Path,
) -> None:
    service = Service(seed=2)
    collecting(service, 25, 90 * MS)
    watching = Source("interpreter", "ok", ["event"], details={"pids": [service.pid]})
    sources = [Source("cuda", "ok"), watching]
    attribution = attribute(service.session(tmp_path / "session", sources=sources))
    answer = finding(attribution, "launch.gc_pause")
    assert answer.status is Status.NOT_FOUND
    assert "0 collections" in answer.excluded[0].reason
    assert attribution.verdict.cause != "launch.gc_pause"


def test_short_collections_are_no_cause(tmp_path: Path) -> None:
    service = Service(seed=2)
    events = collecting(service, 25, 1 * MS)
    builder = service.builder(tmp_path / "session").add("event", events)
    attribution = attribute(builder.write())
    assert finding(attribution, "launch.gc_pause").status is Status.NOT_FOUND
    assert attribution.verdict.cause == "healthy"


def test_pauses_off_the_cpu_are_not_the_collectors(tmp_path: Path) -> None:
    service = Service(seed=2)
    for index in range(900):
        if index % 25 == 0:
            service.absent(service.now, service.now + 90 * MS, "uninterruptible", 4_000)
            service.now += 90 * MS
        service.decode_step()
    attribution = attribute(service.session(tmp_path / "session"))
    assert finding(attribution, "launch.gc_pause").status is Status.NOT_FOUND


def eager(service: Service, length: int, n_launches: int, launch: int) -> None:
    """A decode step that is launched kernel by kernel."""
    service.compute(service.shake(service.host))
    end = service.run_device(service.shake(length))
    for index in range(n_launches):
        service.launch_kernel(200 + index % 10, launch)
    service.sync(end)
    service.token(service.running)


@pytest.mark.parametrize(("launch", "status"), [(9_000, Status.FOUND), (90_000, Status.UNDECIDED)])
def test_graphs_that_give_way(tmp_path: Path, launch: int, status: Status) -> None:
    service = Service(seed=3)
    service.decode_until(service.start + 8 * S)
    for index in range(10):
        service.launch_kernel(200 + index, 9_000)
    for _ in range(500):
        eager(service, 18 * MS, 160, launch)
    attribution = attribute(service.session(tmp_path / "session"))
    assert finding(attribution, "launch.graph_fallback").status is status
    if status is Status.FOUND:
        assert attribution.verdict.cause == "launch.graph_fallback"


def test_prompts_are_never_graphs_and_no_fallback(tmp_path: Path) -> None:
    service = Service(seed=3, running=1)
    service.decode_until(service.start + 8 * S)
    for _ in range(100):
        service.prefill_step(80 * MS, 1_500, 160)
    attribution = attribute(service.session(tmp_path / "session"))
    assert finding(attribution, "launch.graph_fallback").status is Status.NOT_FOUND


def train(service: Service, load: int, waker: int, syncs: int = 1) -> None:
    """Training steps that wait for a batch, then launch eagerly and read back."""
    while service.now < service.start + 15 * S:
        if load:
            length = service.shake(load)
            woken = {"waker_pid": waker, "waker_tid": waker}
            service.absent(service.now, service.now + length, "sleeping", 5_000, **woken)
            service.now += length
        for _ in range(syncs):
            end = service.now
            for index in range(60 // syncs):
                service.compute(90_000)
                end = service.run_device(500_000 if syncs == 1 else 330_000)
                service.launch_kernel(100 + index % 8)
            service.sync(end)


def training(path: Path, load: int, syncs: int = 1, parent: int | None = 4_000) -> Any:
    service = Service(seed=4, has_engine=False, name="python3")
    train(service, load, WORKER, syncs)
    targets = [Target(service.pid, name="python3"), Target(WORKER, parent_pid=parent, name="w")]
    return attribute(service.session(path / "session", targets=targets))


def test_a_loop_that_waits_for_its_workers_is_starved(tmp_path: Path) -> None:
    attribution = training(tmp_path, 90 * MS)
    assert attribution.verdict.cause == "host.input_starvation"
    share = finding(attribution, "host.input_starvation").lost_share
    assert share == pytest.approx(90 / 120, abs=0.06)


@pytest.mark.parametrize("seed", range(3))
def test_children_that_end_one_wait_each_are_no_workers(tmp_path: Path, seed: int) -> None:
    """Compilers: the program waits for each of them once."""
    service = Service(seed=seed, has_engine=False, name="python3")
    targets = [Target(service.pid, name="python3")]
    for index in range(10):
        child = WORKER + index
        targets.append(Target(child, parent_pid=service.pid, name="ptxas"))
        length = service.shake(900 * MS)
        woken = {"waker_pid": child, "waker_tid": child}
        service.absent(service.now, service.now + length, "sleeping", 5_000, **woken)
        service.now += length
        service.decode_until(service.now + 400 * MS)
    attribution = attribute(service.session(tmp_path / "session", targets=targets))
    assert finding(attribution, "host.input_starvation").status is Status.NOT_FOUND


def test_a_loop_whose_workers_keep_up_is_well(tmp_path: Path) -> None:
    attribution = training(tmp_path, 0)
    assert finding(attribution, "host.input_starvation").status is Status.NOT_FOUND
    assert finding(attribution, "host.sync_stall").status is Status.NOT_FOUND
    assert attribution.verdict.cause == "healthy"


def test_waits_for_a_process_that_is_no_worker_are_not_input(tmp_path: Path) -> None:
    attribution = training(tmp_path, 90 * MS, parent=1)
    assert finding(attribution, "host.input_starvation").status is not Status.FOUND


def test_a_sync_after_every_other_launch_stalls(tmp_path: Path) -> None:
    attribution = training(tmp_path, 0, syncs=30)
    assert attribution.verdict.cause == "host.sync_stall"


@pytest.mark.parametrize(
    ("pid", "util", "status"),
    [
        (7_000, 99.0, Status.NOT_FOUND),
        (7_000, 80.0, Status.FOUND),
        (4_000, 99.0, Status.FOUND),
    ],
    ids=["a neighbour fills the gaps", "a neighbour leaves them", "nobody else is there"],
)
def test_gaps_that_another_process_fills_are_no_stall(
    tmp_path: Path, pid: int, util: float, status: Status
) -> None:
    service = Service(seed=4, has_engine=False, has_nvml=False, name="python3")
    train(service, 0, WORKER, syncs=30)
    builder = service.builder(tmp_path / "session")
    builder.add("gpu_sample", gpu_rows(service.start, 15, util_pct=util))
    builder.add(
        "gpu_process",
        [
            {
                "time_ns": service.start + index * S,
                "device": 0,
                "pid": one,
                "type": "C",
                "sm_util_pct": 45.0,
                "name": "x",
                "is_target": one == service.pid,
            }
            for index in range(1, 15)
            for one in {service.pid, pid}
        ],
    )
    attribution = attribute(builder.write())
    assert finding(attribution, "host.sync_stall").status is status


def test_a_service_needs_the_tokens_of_each_step(tmp_path: Path) -> None:
    service = Service(seed=4, host=3 * MS, decode=9 * MS)
    service.decode_until(service.start + 10 * S)
    attribution = attribute(service.session(tmp_path / "session"))
    assert finding(attribution, "host.sync_stall").status is Status.NOT_FOUND


@pytest.mark.parametrize(
    ("some", "status"), [(0.6, Status.FOUND), (0.0, Status.NOT_FOUND)], ids=["memory", "disk"]
)
def test_memory_pressure(tmp_path: Path, some: float, status: Status) -> None:
    service = Service(seed=5)
    while service.now < service.start + 16 * S:
        service.absent(service.now, service.now + 600 * MS, "uninterruptible", 4_000)
        service.now += 600 * MS
        service.decode_until(service.now + 400 * MS)
    rows = [
        {
            "time_ns": service.start + index * S,
            "scope": "host",
            "memory_some_ns": int(some * index * S),
            "n_swap_in_pages": 900 * index,
            "n_major_faults": 40 * index,
        }
        for index in range(17)
    ]
    builder = service.builder(tmp_path / "session").add("host_sample", rows)
    assert finding(attribute(builder.write()), "host.memory_pressure").status is status


def heavy(*, per_step: float, gap_s: float, n: float = 1.0) -> Scrapes:
    """Ten quiet seconds, then twenty with two more requests that make so many tokens a step."""
    engine = Scrapes()
    level = {"requests_waiting": 0, "kv_usage": 0.3, "preemptions": 0}
    engine.play(
        10,
        **level,
        requests_running=6,
        generation_tokens=600,
        prompt_tokens=100,
        iteration_tokens=(6, 100),
        inter_token_seconds=(0.01, 600),
        request_n=(1, 2),
    )
    steps = 1 / gap_s
    return engine.play(
        20,
        **level,
        requests_running=8,
        generation_tokens=steps * per_step,
        prompt_tokens=100,
        iteration_tokens=(per_step, steps),
        inter_token_seconds=(gap_s, 8 * steps),
        request_n=(n, 2),
    )


def test_few_requests_with_many_answers_are_heavy(tmp_path: Path) -> None:
    attribution = heavy(per_step=262, gap_s=0.035).attribution(tmp_path)
    assert attribution.verdict.cause == "request.heavy"
    attribution = heavy(per_step=8, gap_s=0.035, n=8).attribution(tmp_path / "asked")
    assert attribution.verdict.cause == "request.heavy"


@pytest.mark.parametrize(
    ("per_step", "gap_s", "n"), [(8, 0.035, 1.0), (262, 0.0105, 1.0)], ids=["slow", "cheap"]
)
def test_slow_tokens_or_many_answers_alone_are_not(
    tmp_path: Path, per_step: float, gap_s: float, n: float
) -> None:
    attribution = heavy(per_step=per_step, gap_s=gap_s, n=n).attribution(tmp_path)
    assert finding(attribution, "request.heavy").status is Status.NOT_FOUND


@pytest.mark.parametrize(
    ("query_ns", "status"), [(4_400_000, Status.UNDECIDED), (40_000, Status.NOT_FOUND)]
)
def test_a_monitor_that_holds_the_driver(tmp_path: Path, query_ns: int, status: Status) -> None:
    service = Service(seed=6, has_nvml=False)
    while service.now < service.start + 12 * S:
        service.absent(service.now, service.now + 5 * MS, "uninterruptible", 4_000)
        service.now += 5 * MS
        service.decode_step()
        service.decode_step()
    rows = gpu_rows(service.start, 12, util_pct=75.0, query_ns=query_ns)
    attribution = attribute(service.builder(tmp_path / "s").add("gpu_sample", rows).write())
    assert finding(attribution, "launch.observer").status is status


def test_pauses_at_multiples_of_a_rhythm_are_one(tmp_path: Path) -> None:
    service = Service(seed=2)
    for index in range(1, 900):
        if index % 25 == 0:
            # Every third collection is too short to be told from other work.
            service.compute(3 * MS if index % 75 == 0 else 120 * MS)
        service.decode_step()
    attribution = attribute(service.session(tmp_path / "session"))
    assert attribution.verdict.candidates[0] == "launch.gc_pause"


def test_pauses_without_a_rhythm_are_not_the_collectors(tmp_path: Path) -> None:
    service = Service(seed=2)
    at = {20, 61, 75, 130, 139, 190, 260, 271, 330, 345, 420, 431, 500}
    for index in range(540):
        if index in at:
            service.compute(120 * MS)
        service.decode_step()
    attribution = attribute(service.session(tmp_path / "session"))
    assert finding(attribution, "launch.gc_pause").status is Status.NOT_FOUND
