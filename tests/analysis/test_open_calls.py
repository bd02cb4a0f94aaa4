"""Calls that are open at the end, told from those that returned after their snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis import attribute
from analysis.facts import Facts
from tests.analysis.builder import MS, S, SessionBuilder

START = 1_000 * S
END = START + 4 * S
PID = 7


def sync(tid: int, start: int, **more: Any) -> dict[str, Any]:
    """What a call and its snapshot have in common."""
    return {
        "start_ns": start,
        "pid": PID,
        "tid": tid,
        "function": "cudaStreamSynchronize",
        "layer": "runtime",
        "kind": "sync",
        "call_id": start,
        "depth": 0,
        **more,
    }


def seen(tid: int, start: int, at: int) -> dict[str, Any]:
    return sync(tid, start, time_ns=at, is_doubtful=False)


def builder(path: Path) -> SessionBuilder:
    """A process that launches and syncs; one sync of thread 1 returned after a snapshot, and
    thread 2 is in another at the end.
    """
    calls = [
        sync(1, time, duration_ns=length, kind=kind, call_id=time)
        for time in range(START, END - 2 * S, 20 * MS)
        for kind, length in (("launch", 10_000), ("sync", 8 * MS))
    ]
    calls.append(sync(1, END - 1_200 * MS, duration_ns=500 * MS))
    opened = [
        seen(1, END - 1_200 * MS, END - 900 * MS),
        seen(2, END - 80 * MS, END - MS),
    ]
    limits: dict[str, Any] = {"start_ns": START, "end_ns": END}
    return SessionBuilder(path, **limits).add("cuda_call", calls).add("open_call", opened)


def open_threads(build: SessionBuilder) -> list[int]:
    return [row["tid"] for row in Facts(build.write()).open_calls]


def test_a_call_that_returned_after_its_snapshot_is_not_open(tmp_path: Path) -> None:
    assert open_threads(builder(tmp_path / "s")) == [2]


def test_the_age_of_an_open_call_is_not_that_of_one_that_returned(tmp_path: Path) -> None:
    attribution = attribute(builder(tmp_path / "s").write())
    [reason] = [
        item.reason
        for finding in attribution.checked
        for item in finding.excluded
        if finding.cause == "hang.kernel"
    ]
    assert reason == "the open cudaStreamSynchronize is only 80 ms old"


def test_a_call_whose_return_was_lost_ended_when_its_thread_went_on(tmp_path: Path) -> None:
    build = builder(tmp_path / "s")
    build.add("open_call", [seen(3, END - 950 * MS, END - 900 * MS)])
    build.add("cuda_call", [sync(3, END - 700 * MS, duration_ns=MS)])
    assert open_threads(build) == [2]


@pytest.mark.parametrize("depth, tid", [(0, 4), (1, 3)], ids=["other thread", "inner call"])
def test_calls_elsewhere_end_nothing(tmp_path: Path, depth: int, tid: int) -> None:
    build = builder(tmp_path / "s")
    build.add("open_call", [seen(3, END - 950 * MS, END - 900 * MS)])
    build.add("cuda_call", [sync(tid, END - 700 * MS, duration_ns=MS, depth=depth)])
    assert sorted(open_threads(build)) == [2, 3]


def test_of_a_thread_only_the_newest_call_is_open(tmp_path: Path) -> None:
    build = builder(tmp_path / "s")
    build.add("open_call", [seen(2, END - 700 * MS, END - 600 * MS)])
    [row] = Facts(build.write()).open_calls
    assert row["start_ns"] == END - 80 * MS


def test_what_returned_after_a_range_was_open_at_its_end(tmp_path: Path) -> None:
    part = builder(tmp_path / "s").write().between(START, END - 800 * MS)
    assert [row["tid"] for row in Facts(part).open_calls] == [1]
