"""Live device times: what is known inside of windows, between them, and around their calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import device_coverage, device_time, intervals, schema
from analysis.budget import compute_budgets
from analysis.facts import Facts
from analysis.manifest import Source
from tests.analysis.builder import MS, S, SessionBuilder
from tests.analysis.test_device_time import kernel, launch, table


def piece(start: int, end: int, pid: int = 1) -> dict[str, object]:
    times = {"time_ns": start, "duration_ns": end - start}
    return {"kind": "device_times", "pid": pid, "name": "cupti"} | times


def test_the_call_that_a_probe_saw_is_the_one_around_the_told_one():
    told = {"tid": 11, "call_start_ns": 130, "call_duration_ns": 40}
    activity = [kernel(300, 400, 5, **told), kernel(500, 600, 6, tid=12, call_start_ns=450)]
    seen = launch(100, 200, 1, correlation_id=None)
    (found,) = device_time.by_device(
        table(schema.GPU_ACTIVITY, activity), table(schema.CUDA_CALL, [seen])
    )
    assert found.call_start_ns.tolist() == [100, 450]
    assert found.call_end_ns.tolist() == [200, 450]
    assert found.call_tid.tolist() == [11, 12]


def test_a_gap_that_is_not_covered_is_none():
    activity = table(schema.GPU_ACTIVITY, [kernel(0, 100), kernel(200, 300), kernel(900, 1000)])
    covered = intervals.make([0, 800], [400, 1000])
    (found,) = device_time.by_device(activity, None, lambda _: covered)
    assert device_time.gaps(found).spans.tolist() == [[100, 200]]
    usage = device_time.usage(found)
    assert (usage.span_ns, usage.busy_ns, usage.idle_ns) == (600, 300, 300)


def live(folder: Path, pieces: list[dict[str, object]], **more: object) -> Facts:
    """Two seconds in which the device runs 100 ms of every 200, and the calls tell nothing."""
    runs = [kernel(at, at + 100 * MS) for at in range(0, 2 * S, 200 * MS)]
    builder = SessionBuilder(folder, start_ns=0, end_ns=2 * S, **more)
    return Facts(builder.add("gpu_activity", runs).add("event", pieces).write())


CUPTI = {"sources": [Source("cupti", "ok")]}


def state_shares(facts: Facts) -> dict[str, float]:
    (budget,) = compute_budgets(facts, [], S)
    return {name: round(share, 3) for name, share in budget.by_state().items() if share}


def test_an_imported_trace_is_complete(tmp_path: Path):
    facts = live(tmp_path / "s.tracer", [])
    assert not facts.has_live_times
    assert state_shares(facts) == {"compute": 0.5, "idle": 0.5}


def test_outside_of_the_windows_nothing_is_called_idle(tmp_path: Path):
    facts = live(tmp_path / "s.tracer", [piece(0, S // 2), piece(S // 2, S)], **CUPTI)
    assert facts.covered(0).tolist() == [[0, S]]
    assert facts.uncovered(0).tolist() == [[S, 2 * S]]
    shares = state_shares(facts)
    assert shares == {"compute": 0.5, "idle": 0.25, "unknown": 0.25}
    assert intervals.total(facts.idle(0)) == S // 2


def test_a_live_recording_that_tells_no_coverage_has_none(tmp_path: Path):
    facts = live(tmp_path / "s.tracer", [], **CUPTI)
    assert facts.has_live_times
    assert state_shares(facts) == {"compute": 0.5, "unknown": 0.5}
    assert intervals.total(facts.idle(0)) == 0


def test_a_process_that_has_ended_runs_nothing_more(tmp_path: Path):
    gone = {"time_ns": S, "kind": "exit", "pid": 1, "name": "engine"}
    facts = live(tmp_path / "s.tracer", [piece(0, S // 2), gone], **CUPTI)
    assert facts.covered(0).tolist() == [[0, S // 2], [S, 2 * S]]


def test_a_device_is_covered_where_all_of_its_processes_are():
    coverage = {1: intervals.make([0], [100]), 2: intervals.make([50], [200])}
    assert device_coverage.of_processes(coverage, [1, 2]).tolist() == [[50, 100]]
    assert len(device_coverage.of_processes(coverage, [1, 3])) == 0
    assert len(device_coverage.of_processes(coverage, [])) == 0


@pytest.mark.parametrize("gap_ns", (0, device_coverage.JOINT_NS // 2))
def test_pieces_that_touch_are_one(tmp_path: Path, gap_ns: int):
    facts = live(tmp_path / "s.tracer", [piece(0, S), piece(S + gap_ns, 2 * S)], **CUPTI)
    assert facts.covered(0).tolist() == [[0, 2 * S]]
