"""Intervals become nested slices: on their lane, in an order that opens and closes properly."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from analysis.report.trace.nesting import is_nested, lay_out, positions

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=25)


@given(SPANS)
def test_every_lane_nests_and_keeps_every_interval(spans: list[tuple[int, int]]) -> None:
    start = np.array([begin for begin, _length in spans], dtype=np.int64)
    end = start + np.array([length for _begin, length in spans], dtype=np.int64)
    layout = lay_out(start, end)
    assert sorted(layout.order.tolist()) == list(range(len(spans)))
    for lane in set(layout.lane.tolist()):
        own = layout.lane == lane
        first, last = start[layout.order[own]], end[layout.order[own]]
        assert is_nested(first, last, layout.depth[own])
        _check_events(first, last, layout.depth[own])


def _check_events(start: np.ndarray, end: np.ndarray, depth: np.ndarray) -> None:
    """Begins and ends in their places are in order of time and close what was opened last."""
    begins, ends = positions(depth)
    events: list[tuple[int, int, int]] = [(0, 0, 0)] * (2 * len(start))
    for index in range(len(start)):
        events[begins[index]] = (int(start[index]), 1, index)
        events[ends[index]] = (int(end[index]), -1, index)
    stack: list[int] = []
    for _time, kind, index in events:
        if kind == 1:
            assert len(stack) == depth[index]
            stack.append(index)
        else:
            assert stack.pop() == index
    assert not stack
    times = [time for time, _kind, _index in events]
    assert times == sorted(times)


def test_recorded_depths_decide_between_equal_intervals() -> None:
    start, end = np.array([0, 0, 5]), np.array([4, 4, 9])
    layout = lay_out(start, end, np.array([1, 0, 0]))
    assert layout.order.tolist() == [1, 0, 2]
    assert layout.depth.tolist() == [0, 1, 0]
    assert layout.lane.tolist() == [0, 0, 0]


def test_wrong_depths_are_not_believed() -> None:
    layout = lay_out(np.array([0, 5]), np.array([4, 9]), np.array([0, 1]))
    assert layout.depth.tolist() == [0, 0]


def test_overlapping_intervals_are_on_two_lanes() -> None:
    layout = lay_out(np.array([0, 5, 12]), np.array([10, 15, 20]))
    assert layout.lane.tolist() == [0, 1, 0]
