"""How intervals of one thread or stream become slices: which lies in which, and on which lane.

Slices of one track must nest: one ends before the next begins, or lies in it whole. Intervals that
overlap otherwise (two kernels of one stream, calls whose records were damaged) go to further lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.report.trace.model import Ints


@dataclass(frozen=True)
class Layout:
    """Where each interval goes.

    Attributes:
        order: Positions of the intervals in the order of their begins, outer before inner.
        lane: Lane of each, in that order; 0 is the first.
        depth: Intervals of the same lane that each lies in, in that order.
    """

    order: Ints
    lane: Ints
    depth: Ints


def lay_out(start: Ints, end: Ints, depth: Ints | None = None) -> Layout:
    """Return the layout of intervals in ns; ``depth`` as recorded decides between equal ones."""
    inner = np.zeros(len(start), dtype=np.int64) if depth is None else depth.astype(np.int64)
    order = np.lexsort((inner, -end, start))
    first, last, told = start[order], end[order], inner[order]
    if is_nested(first, last, told):
        return Layout(order, np.zeros(len(order), dtype=np.int64), told)
    lanes: list[list[int]] = []
    lane = np.zeros(len(order), dtype=np.int64)
    found = np.zeros(len(order), dtype=np.int64)
    for index, (begin, stop) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        number = next((n for n, open_ends in enumerate(lanes) if _fits(open_ends, begin, stop)), -1)
        if number < 0:
            number = len(lanes)
            lanes.append([])
        lane[index], found[index] = number, len(lanes[number])
        lanes[number].append(stop)
    return Layout(order, lane, found)


def _fits(open_ends: list[int], begin: int, stop: int) -> bool:
    """Whether an interval lies in what is open on a lane then; what has ended is closed."""
    while open_ends and open_ends[-1] <= begin:
        open_ends.pop()
    return not open_ends or stop <= open_ends[-1]


def is_nested(start: Ints, end: Ints, depth: Ints) -> bool:
    """Return whether the depths are those of properly nested intervals, sorted by begin."""
    if len(start) == 0:
        return True
    if depth[0] != 0 or (np.diff(depth) > 1).any():
        return False
    position = np.arange(len(start))
    for level in range(int(depth.max()) + 1):
        own = np.flatnonzero(depth == level)
        if (start[own][1:] < end[own][:-1]).any():
            return False
        if level:
            parent = np.maximum.accumulate(np.where(depth == level - 1, position, -1))[own]
            if (end[own] > end[parent]).any():
                return False
    return True


def positions(depth: Ints) -> tuple[Ints, Ints]:
    """Return where the begin and the end of each slice go among all begins and ends.

    Args:
        depth: ``(n,)`` depths of properly nested slices in the order of their begins.

    Returns:
        ``(n,)`` positions of the begins and of the ends, together a permutation of 0 ... 2n - 1:
        inner slices end first, and a slice ends before the next one of its depth begins.
    """
    n = len(depth)
    begins = 2 * np.arange(n, dtype=np.int64) - depth
    ends = np.empty(n, dtype=np.int64)
    for level in range(int(depth.max()) + 1 if n else 0):
        own = np.flatnonzero(depth == level)
        outer = np.flatnonzero(depth <= level)
        at = np.searchsorted(outer, own, side="right")
        is_last = at == len(outer)
        following = outer[np.where(is_last, 0, at)]
        begin = np.where(is_last, 2 * n, begins[following])
        left = np.where(is_last, 0, depth[following])
        ends[own] = begin - 1 - (level - left)
    return begins, ends
