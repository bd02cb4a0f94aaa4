"""Interval algebra on int64 nanoseconds: pure, vectorised, property-tested.

A *set of intervals* is an ``(n, 2)`` int64 array of half-open ``[start, end)`` rows. Functions
accept rows in any order, overlapping or empty (``end <= start`` counts as empty) unless they say
*disjoint*, which means sorted, non-empty and not touching one another, as :func:`union` returns.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

#: A set without intervals.
EMPTY: Ints = np.empty((0, 2), dtype=np.int64)
EMPTY.setflags(write=False)


def make(start_ns: npt.ArrayLike, end_ns: npt.ArrayLike) -> Ints:
    """Return an ``(n, 2)`` set of intervals in ns from starts and ends of equal length."""
    return np.stack(
        (np.asarray(start_ns, dtype=np.int64), np.asarray(end_ns, dtype=np.int64)), axis=-1
    ).reshape(-1, 2)


def is_disjoint(intervals: Ints) -> bool:
    """Return whether rows are sorted, non-empty and do not touch."""
    start, end = intervals[:, 0], intervals[:, 1]
    return bool((end > start).all() and (start[1:] > end[:-1]).all())


def union(intervals: Ints) -> Ints:
    """Return the disjoint intervals in ns that cover exactly the same points."""
    if is_disjoint(intervals):
        return intervals
    rows = intervals[intervals[:, 1] > intervals[:, 0]]
    if len(rows) == 0:
        return EMPTY
    if (rows[1:, 0] < rows[:-1, 0]).any():
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
    reach = np.maximum.accumulate(rows[:, 1])
    is_first = np.empty(len(rows), dtype=bool)
    is_first[0] = True
    is_first[1:] = rows[1:, 0] > reach[:-1]
    first = np.flatnonzero(is_first)
    last = np.append(first[1:] - 1, len(rows) - 1)
    return make(rows[first, 0], reach[last])


def total(intervals: Ints) -> int:
    """Return the length in ns of the points covered, each counted once."""
    rows = union(intervals)
    return int((rows[:, 1] - rows[:, 0]).sum())


def intersect(left: Ints, right: Ints) -> Ints:
    """Return the disjoint intervals in ns covered by both sets."""
    few, many = union(left), union(right)
    if len(few) > len(many):
        few, many = many, few
    if len(few) == 0:
        return EMPTY
    # Each row of the smaller set meets a run of rows of the larger one.
    first = np.searchsorted(many[:, 1], few[:, 0], side="right")
    count = np.searchsorted(many[:, 0], few[:, 1], side="left") - first
    np.maximum(count, 0, out=count)
    offset = np.cumsum(count) - count
    at_few = np.repeat(np.arange(len(few)), count)
    at_many = np.arange(len(at_few)) - np.repeat(offset - first, count)
    return make(
        np.maximum(few[at_few, 0], many[at_many, 0]), np.minimum(few[at_few, 1], many[at_many, 1])
    )


def subtract(left: Ints, right: Ints) -> Ints:
    """Return the disjoint intervals in ns covered by ``left`` and not by ``right``."""
    kept, taken = union(left), union(right)
    if len(kept) == 0 or len(taken) == 0:
        return kept
    low = min(int(kept[0, 0]), int(taken[0, 0]))
    high = max(int(kept[-1, 1]), int(taken[-1, 1]))
    rest = make(np.append(low, taken[:, 1]), np.append(taken[:, 0], high))
    return intersect(kept, rest[rest[:, 1] > rest[:, 0]])


def gaps(intervals: Ints, start_ns: int, end_ns: int) -> Ints:
    """Return the disjoint intervals in ns of ``[start_ns, end_ns)`` that nothing covers."""
    return subtract(make([start_ns], [end_ns]), intervals)


def clip(intervals: Ints, start_ns: int, end_ns: int) -> Ints:
    """Return the rows in ns cut to ``[start_ns, end_ns)``; rows outside it are dropped."""
    rows = np.clip(intervals, start_ns, end_ns)
    return rows[rows[:, 1] > rows[:, 0]]


def overlap(left: Ints, right: Ints) -> int:
    """Return the length in ns covered by both sets."""
    return total(intersect(left, right))


def covered(disjoint: Ints, points: Ints) -> Ints:
    """Return, for each point, the length in ns that the disjoint set covers before it."""
    if len(disjoint) == 0:
        return np.zeros(len(points), dtype=np.int64)
    lengths = disjoint[:, 1] - disjoint[:, 0]
    before = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths)))
    index = np.searchsorted(disjoint[:, 0], points, side="right")
    end = disjoint[np.maximum(index - 1, 0), 1]
    excess = np.where(index > 0, np.maximum(end - points, 0), 0)
    result: Ints = before[index] - excess
    return result


def overlap_each(intervals: Ints, other: Ints) -> Ints:
    """Return, for each row of ``intervals``, the length in ns that ``other`` covers of it."""
    disjoint = union(other)
    start, end = intervals[:, 0], np.maximum(intervals[:, 1], intervals[:, 0])
    return covered(disjoint, end) - covered(disjoint, start)


def coverage(intervals: Ints, edges: Ints) -> Ints:
    """Return the length in ns covered inside each window.

    Args:
        intervals: A set of intervals.
        edges: ``(n + 1,)`` increasing window edges in ns.

    Returns:
        ``(n,)`` lengths in ns.
    """
    return np.diff(covered(union(intervals), np.asarray(edges, dtype=np.int64)))


def weight(intervals: Ints, edges: Ints) -> Ints:
    """Return per window the summed length in ns of the rows, overlaps counted as often as they
    occur: ``(n,)`` for ``(n + 1,)`` increasing edges.
    """
    edges = np.asarray(edges, dtype=np.int64)
    rows = intervals[intervals[:, 1] > intervals[:, 0]]
    return np.diff(_ramp(rows[:, 0], edges) - _ramp(rows[:, 1], edges))


def _ramp(starts: Ints, points: Ints) -> Ints:
    """Sum over starts of max(point - start, 0) for each point."""
    ordered = np.sort(starts)
    origin = int(points[0]) if len(points) else 0
    sums = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(ordered - origin)))
    count = np.searchsorted(ordered, points, side="right")
    result: Ints = count * (points - origin) - sums[count]
    return result


def depth(intervals: Ints, points: Ints) -> Ints:
    """Return how many rows contain each point (half-open)."""
    rows = intervals[intervals[:, 1] > intervals[:, 0]]
    opened = np.searchsorted(np.sort(rows[:, 0]), points, side="right")
    closed = np.searchsorted(np.sort(rows[:, 1]), points, side="right")
    result: Ints = (opened - closed).astype(np.int64)
    return result


def assign(points: Ints, disjoint: Ints) -> Ints:
    """Return for each point the index of the disjoint row that holds it, or -1."""
    if len(disjoint) == 0:
        return np.full(len(points), -1, dtype=np.int64)
    index = np.searchsorted(disjoint[:, 0], points, side="right") - 1
    is_in = (index >= 0) & (points < disjoint[np.maximum(index, 0), 1])
    result: Ints = np.where(is_in, index, -1).astype(np.int64)
    return result


def windows(start_ns: int, end_ns: int, width_ns: int) -> Ints:
    """Return the edges in ns of windows of ``width_ns`` over ``[start_ns, end_ns)``; the last
    window is shorter where the range is no multiple.

    Raises:
        ValueError: the width is not positive.
    """
    if width_ns <= 0:
        raise ValueError("a window must be longer than 0 ns")
    if end_ns <= start_ns:
        return np.array([start_ns], dtype=np.int64)
    edges = np.arange(start_ns, end_ns, width_ns, dtype=np.int64)
    return np.append(edges, np.int64(end_ns))
