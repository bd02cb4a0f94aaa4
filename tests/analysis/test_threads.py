"""The account of a launching thread, and what its device did as far as the host can tell."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from analysis import intervals
from analysis.facts import Facts
from tests.analysis.builder import MS, S, Service


def launcher(service: Service, path: Path):
    facts = Facts(service.session(path / "s"))
    return facts, facts.main_launcher(0)


@pytest.mark.parametrize("seed", range(4))
def test_the_account_is_complete_and_exclusive(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    service = Service(seed=seed)
    ready = asleep = 0
    for _ in range(100):
        service.decode_step()
        if rng.random() < 0.3:
            service.preempt(2 * MS)
            ready += 2 * MS
        if rng.random() < 0.3:
            service.sleep(3 * MS)
            asleep += 3 * MS
    facts, thread = launcher(service, tmp_path)
    lengths = {name: intervals.total(spans) for name, spans in thread.states.items()}
    assert sum(lengths.values()) == facts.end_ns - facts.start_ns
    for name, spans in thread.states.items():
        for other, others in thread.states.items():
            assert name == other or intervals.overlap(spans, others) == 0
    # Each wake costs a few microseconds of waiting for the CPU as well.
    assert lengths["ready"] == pytest.approx(ready, abs=200 * 6_000)
    assert lengths["asleep"] == pytest.approx(asleep, abs=200 * 3_000)
    edges = intervals.windows(facts.start_ns, facts.end_ns, S)
    whole = intervals.make([facts.start_ns], [facts.end_ns])
    work = thread.work(whole, edges)
    assert sum(int(part.sum()) for part in work.values()) == lengths["working"]
    expected = sum(
        row["duration_ns"]
        for row in service.rows["cuda_call"]
        if row["kind"] in ("launch", "graph_launch", "copy")
    )
    assert int(work["launching"].sum()) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("is_sleepy", [True, False])
def test_idle_and_busy_never_contradict_the_device(tmp_path: Path, is_sleepy: bool) -> None:
    service = Service(is_sleepy=is_sleepy)
    for _ in range(50):
        service.decode_step()
        service.prefill_step(30 * MS, 300)
    facts, _thread = launcher(service, tmp_path)
    truth = intervals.make(*np.array(service.busy).T)
    idle, busy = facts.idle(0), facts.busy(0)
    assert intervals.overlap(idle, busy) == 0
    assert intervals.overlap(idle, truth) == 0
    # A spinning thread's return is all that tells the end: up to 12 us after it.
    assert intervals.total(intervals.subtract(busy, truth)) <= len(service.busy) * 13_000
    assert intervals.total(busy) >= 0.9 * intervals.total(truth)
    real_idle = intervals.gaps(truth, facts.start_ns, facts.end_ns)
    assert intervals.total(idle) >= 0.8 * intervals.total(real_idle)


def test_a_sync_of_another_stream_does_not_cover(tmp_path: Path) -> None:
    service = Service(has_engine=False)
    for _ in range(50):
        service.launch_kernel(3, stream=7)
        service.launch_kernel(4, stream=9)
        service.run_device(5 * MS)
        service.call("cudaStreamSynchronize", "sync", 5 * MS, stream=7)
        service.compute(3 * MS)
    facts, _thread = launcher(service, tmp_path)
    assert intervals.total(facts.idle(0)) == 0
    for row in service.rows["cuda_call"]:
        if row["kind"] == "sync":
            row["function"] = "cudaDeviceSynchronize"
    facts, _thread = launcher(service, tmp_path)
    assert intervals.total(facts.idle(0)) == pytest.approx(50 * 3 * MS, rel=0.05)


def test_a_launch_during_the_sync_leaves_work_outstanding(tmp_path: Path) -> None:
    service = Service(has_engine=False)
    for _ in range(50):
        service.launch_kernel(3)
        start = service.now
        service.call("cudaStreamSynchronize", "sync", 5 * MS)
        late = {**service.rows["cuda_call"][0], "start_ns": start + MS, "tid": 4001}
        service.rows["cuda_call"].append({**late, "call_id": 10**6 + start})
        service.compute(3 * MS)
    facts, _thread = launcher(service, tmp_path)
    assert intervals.total(facts.idle(0)) == 0
