"""Collectives matched over ranks: who entered when, told by ends that coincide.

A collective ends on all its ranks at once, whenever they entered. The k-th activity of a name on
one rank belongs to the k-th on the others; where a recording began later, the shift with the best
agreement of ends is taken. The ends also align the clocks of hosts. Names only pair activities:
one that no list knows as a collective is taken for one when its ends coincide and its entries do
not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis.device_time import Activities

Ints = npt.NDArray[np.int64]

#: Ends coincide within this, or within this share of the longest participation: the last data
#: reach ranks some microseconds apart, and clocks are mapped with a like error.
END_NS = 50_000
END_SHARE = 0.2
#: For names that nothing marks as a collective: share of them whose ends must coincide, how
#: closely, and how much more their entries must differ.
UNMARKED_SHARE = 0.9
UNMARKED_END_NS = 20_000
UNMARKED_RATIO = 5
#: Matched activities of an unmarked name that such a statement needs.
N_UNMARKED = 5
#: Largest shift tried where counts differ.
MAX_SHIFT = 64
#: Differences of ends that are held at a time.
_CELLS = 1 << 18


@dataclass(frozen=True)
class Entries:
    """Collectives in which every participant took part, in time order.

    Attributes:
        entry_ns: ``(n, r)`` entry of each participant on one time base, ns.
        end_ns: ``(n,)`` end, ns.
        n_unmatched: Marked activities that no partner was found for.
    """

    entry_ns: Ints
    end_ns: Ints
    n_unmatched: int

    def __len__(self) -> int:
        return len(self.entry_ns)

    @property
    def wait_ns(self) -> Ints:
        """``(n, r)`` how long each participant waited for the last to enter, ns."""
        waits: Ints = self.entry_ns.max(axis=1, keepdims=True) - self.entry_ns
        return waits


def match(participants: Sequence[Activities]) -> Entries:
    """Return the collectives in which all of two or more participants took part."""
    starts: list[Ints] = []
    ends: list[Ints] = []
    n_marked = n_matched = 0
    by_name = [_rows_by_name(item) for item in participants]
    shared = set.intersection(*(set(rows) for rows in by_name)) if by_name else set()
    for name in sorted(shared):
        rows = [item[name] for item in by_name]
        spans = [item.spans[row] for item, row in zip(participants, rows, strict=True)]
        is_marked = bool(participants[0].is_collective[rows[0]].any())
        if not is_marked and min(len(item) for item in spans) < N_UNMARKED:
            continue
        start, end = _pair(spans)
        if is_marked:
            n_marked += len(start)
            starts.append(start)
            ends.append(end)
        elif _is_collective(start, end):
            starts.append(start)
            ends.append(end)
    n = len(participants)
    start = np.concatenate(starts) if starts else np.empty((0, n), dtype=np.int64)
    end = np.concatenate(ends) if ends else np.empty((0, n), dtype=np.int64)
    if len(start):
        offset = _offsets(end)
        start, end = start - offset, end - offset
    is_met = _coincide(start, end)
    n_matched = int(is_met.sum())
    start, end = start[is_met], end[is_met]
    order = np.argsort(end.max(axis=1)) if len(end) else np.empty(0, dtype=np.int64)
    return Entries(start[order], end[order].max(axis=1), max(n_marked - n_matched, 0))


def _rows_by_name(activities: Activities) -> dict[str, Ints]:
    order = np.argsort(activities.name, kind="stable")
    codes, first = np.unique(activities.name[order], return_index=True)
    parts = np.split(order, first[1:])
    return {
        activities.names[code]: part.astype(np.int64)
        for code, part in zip(codes.tolist(), parts, strict=True)
        if code >= 0
    }


def _pair(spans: list[Ints]) -> tuple[Ints, Ints]:
    """Starts and ends, ``(n, r)``, of the k-th of each participant, at the best shifts."""
    n = min(len(item) for item in spans)
    base = next(item for item in spans if len(item) == n)
    chosen = []
    for item in spans:
        best = _best_shift(item[:, 1], base[:, 1])
        chosen.append(item[best : best + n])
    start = np.stack([item[:, 0] for item in chosen], axis=1)
    end = np.stack([item[:, 1] for item in chosen], axis=1)
    return start, end


def _best_shift(end: Ints, base: Ints) -> int:
    """The shift, up to :data:`MAX_SHIFT`, at which ends lie closest to those of the base."""
    n, n_shifts = len(base), min(len(end) - len(base), MAX_SHIFT) + 1
    if n_shifts == 1:
        return 0
    windows = np.lib.stride_tricks.sliding_window_view(end, n)[:n_shifts]
    cost: list[float] = []
    for begin in range(0, n_shifts, rows := max(_CELLS // n, 1)):
        away = np.abs(windows[begin : begin + rows] - base)
        cost.extend(np.median(away, axis=1).tolist())
    return int(np.argmin(cost))


def _offsets(end: Ints) -> Ints:
    """How far each participant's clock is ahead, ns: the median over ends that should coincide."""
    # Times since boot in ns do not fit a float, differences do.
    end = end - end[:, :1]
    middle = np.median(end, axis=1, keepdims=True)
    offsets: Ints = np.median(end - middle, axis=0).astype(np.int64)
    return offsets


def _coincide(start: Ints, end: Ints) -> npt.NDArray[np.bool_]:
    if len(start) == 0:
        return np.zeros(0, dtype=bool)
    longest = (end - start).max(axis=1)
    spread = end.max(axis=1) - end.min(axis=1)
    met: npt.NDArray[np.bool_] = spread <= np.maximum(END_NS, END_SHARE * longest)
    return met


def _is_collective(start: Ints, end: Ints) -> bool:
    """Whether ends coincide and entries do not, on the clocks that the ends align."""
    end = end - _offsets(end)
    spread = end.max(axis=1) - end.min(axis=1)
    late = start.max(axis=1) - start.min(axis=1)
    is_close = spread <= UNMARKED_END_NS
    return bool(
        is_close.mean() >= UNMARKED_SHARE
        and np.median(late) >= UNMARKED_RATIO * max(float(np.median(spread)), 1_000.0)
    )


def chance_of_last(n_ranks: int, n: int, k: int) -> float:
    """Return the probability that some rank of ``n_ranks`` is last in at least ``k`` of ``n``
    collectives if each is last by chance (at most; by the union bound).
    """
    p = 1 / n_ranks
    tail = sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))
    return min(1.0, n_ranks * tail)
