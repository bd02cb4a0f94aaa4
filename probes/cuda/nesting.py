"""Pairing of one drain in which no record is missing: the usual case, at a third of the cost.

Where the sequence numbers of a thread have no hole, its calls nest properly, and entries and
returns of one depth alternate: the k-th return of a depth belongs to the k-th entry of that depth.
Whatever is not so simple is left to :mod:`probes.cuda.pairing`, which finds out what was lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from probes.cuda.program import DEPTH_MASK, NO_ENTRY, NO_RETURN

_I64 = npt.NDArray[np.int64]
_Records = npt.NDArray[np.void]

#: Beyond so many threads it is not worth it.
MAX_THREADS = 16
#: What became of an entry: its call ended, it is open, or it waits for records before it.
ENDED, OPEN, WAITS = 0, 1, 2


@dataclass(frozen=True)
class Nested:
    """What was found; arrays as long as the entries, or the returns.

    Attributes:
        state: ENDED, OPEN or WAITS of each entry.
        parent: Row of the enclosing entry, -1 when there is none; of carried entries -1 always.
        end_ns: Time of the return, -1 when there was none.
        result: Return value.
        waits: Which returns wait for records before them.
        n_accepted: Records of each thread that do not wait, the carried entries not counted.
        held_until: Largest sequence number of each thread that waits, 0 when none does.
    """

    state: npt.NDArray[np.int8]
    parent: _I64
    end_ns: _I64
    result: _I64
    waits: npt.NDArray[np.bool_]
    n_accepted: list[int]
    held_until: list[int]

    @cached_property
    def n_waiting(self) -> int:
        """Entries that wait."""
        return int(np.count_nonzero(self.state == WAITS))


class _TooHardError(Exception):
    """The records are not of the simple kind."""


def nest(
    entries: _Records,
    n_carried: int,
    returns: _Records,
    thread: _I64,
    last: list[int],
    held_before: list[int],
) -> Nested | None:
    """Return how calls nest, or None where the records are not of the simple kind.

    Args:
        entries: Carried open entries, then new ones, oldest first.
        n_carried: How many are carried.
        returns: New returns, oldest first.
        thread: Index of the thread of each entry and return.
        last: Last accepted sequence number of each thread.
        held_before: Largest sequence number that waited at the last drain, by thread.
    """
    if len(last) > MAX_THREADS:
        return None
    n = len(entries)
    depth = np.concatenate((entries["depth"], returns["depth"]))
    if (depth[:n] & NO_RETURN).any() or (depth[n:] & NO_ENTRY).any():
        return None
    depth &= DEPTH_MASK
    function = np.concatenate((entries["function"], returns["function"]))
    sequence = np.concatenate((entries["sequence"], returns["sequence"]))
    found = Nested(
        np.zeros(n, np.int8),
        np.full(n, -1, np.int64),
        np.full(n, -1, np.int64),
        np.zeros(n, np.int64),
        np.zeros(len(returns), np.bool_),
        [],
        [],
    )
    times = returns["time_ns"].astype(np.int64)
    results = returns["result"]
    try:
        for index, before in enumerate(last):
            mine: _I64 | slice = slice(None)
            rows = return_rows = None
            split, carried = n, n_carried
            if len(last) > 1:
                mine = np.flatnonzero(thread == index)
                split = int(np.searchsorted(mine, n))
                carried = int(np.searchsorted(mine[:split], n_carried))
                rows, return_rows = mine[:split], mine[split:] - n
            place = (sequence[mine] - np.uint32((before + 1) & 0xFFFFFFFF)).view(np.int32)
            place[:carried] = -1
            _nest_thread(
                found,
                _Some(rows),
                _Some(return_rows),
                carried,
                place[:split].astype(np.int64),
                place[split:].astype(np.int64),
                depth[mine],
                function[mine],
                (before, held_before[index]),
                times,
                results,
            )
    except _TooHardError:
        return None
    return found


class _Some:
    """Some rows, given by their numbers; None is all of them, whose numbers need no look-up."""

    def __init__(self, rows: _I64 | None) -> None:
        self._rows = rows

    def at(self, which: _I64) -> _I64:
        """Numbers of those of the rows."""
        return which if self._rows is None else self._rows[which]

    def between(self, start: int, end: int) -> _I64 | slice:
        """Numbers of a run of the rows."""
        return slice(start, end) if self._rows is None else self._rows[start:end]


def _nest_thread(
    found: Nested,
    rows: _Some,
    return_rows: _Some,
    n_carried: int,
    place: _I64,
    return_place: _I64,
    depth: npt.NDArray[np.uint16],
    function: npt.NDArray[np.uint16],
    numbers: tuple[int, int],
    times: _I64,
    results: npt.NDArray[np.int64],
) -> None:
    """The same for the records of one thread, whose places in its sequence are known."""
    before, held_before = numbers
    n, n_returns = len(place), len(return_place)
    n_taken, n_returned, n_accepted = _without_hole(place, return_place, n_carried)
    held = 0
    if n_taken < n or n_returned < n_returns:
        waiting = min([*place[n_taken : n_taken + 1], *return_place[n_returned : n_returned + 1]])
        if before + 1 + int(waiting) <= held_before:
            raise _TooHardError  # it waited already: what is before it was lost
        held = before + 1 + int(max([*place[n - 1 : n], *return_place[-1:]]))
    found.n_accepted.append(n_accepted)
    found.held_until.append(held)
    found.state[rows.between(n_taken, n)] = WAITS
    found.waits[return_rows.between(n_returned, n_returns)] = True
    entered, returned = depth[:n_taken], depth[n : n + n_returned]
    outer: _I64 | None = None
    outer_place = outer_end = np.empty(0, np.int64)
    opened: list[tuple[int, int]] = []
    for level in range(int(max(entered.max(initial=0), returned.max(initial=0))) + 1):
        own = np.flatnonzero(entered == level)
        back = np.flatnonzero(returned == level)
        k = len(back)
        if len(own) - k not in (0, 1):
            raise _TooHardError
        own_place, back_place = place[own], return_place[back]
        if (
            (own_place[:k] >= back_place).any()
            or (back_place[: len(own) - 1] >= own_place[1:]).any()
            or (function[own[:k]] != function[n + back]).any()
        ):
            raise _TooHardError
        ended, returning = rows.at(own[:k]), return_rows.at(back)
        found.end_ns[ended] = times[returning]
        found.result[ended] = results[returning]
        own_end = np.append(back_place, n_accepted) if len(own) > k else back_place
        if len(own) > k:
            opened.append((level, int(own_place[-1])))
            found.state[rows.at(own[-1:])] = OPEN
        if outer is not None and len(own):
            around = np.searchsorted(outer_place, own_place, side="right") - 1
            if (around < 0).any() or (outer_end[around] < own_place).any():
                raise _TooHardError
            found.parent[rows.at(own)] = rows.at(outer[around])
        elif level and len(own):
            raise _TooHardError
        outer, outer_place, outer_end = own, own_place, own_end
    if opened:
        lowest = np.empty(n_accepted, np.uint16)
        lowest[place[n_carried:n_taken]] = entered[n_carried:]
        lowest[return_place[:n_returned]] = returned
        for level, at in opened:
            if at + 1 < n_accepted and lowest[at + 1 :].min() <= level:
                raise _TooHardError
    found.parent[rows.between(0, n_carried)] = -1


def _without_hole(place: _I64, return_place: _I64, n_carried: int) -> tuple[int, int, int]:
    """Entries, returns and new records up to the first hole in the sequence of a thread."""
    new = place[n_carried:]
    n = len(new) + len(return_place)
    if not n:
        return len(place), 0, 0
    for some in (new, return_place):
        if len(some) and (some[0] < 0 or (some[1:] <= some[:-1]).any()):
            raise _TooHardError
    size = 1 + int(max([*new[-1:], *return_place[-1:]]))
    if size > 2 * n + 1000:
        raise _TooHardError
    is_there = np.zeros(size + 1, np.bool_)
    is_there[new] = True
    is_there[return_place] = True
    n_accepted = int(np.argmin(is_there))
    return (
        n_carried + int(np.searchsorted(new, n_accepted)),
        int(np.searchsorted(return_place, n_accepted)),
        n_accepted,
    )
