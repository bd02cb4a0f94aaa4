"""Entry and return records of traced calls, paired in bulk.

Each record carries its thread, a sequence number without gaps per thread, and its depth: how many
traced calls enclose it, which the kernel side knows from stack pointers. A call is open until a
record of its thread with the same or a lower depth comes. That record is its return, or proves
that the return was missed (lost, longjmp, exec). Missing sequence numbers prove lost records.

A record that waits behind a missing number is held until the rings have been read again: the two
rings are read one after the other, so the missing record may only be late.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from analysis.schema import CALL_ENTRY, CALL_RETURN
from probes.cuda.nesting import ENDED, OPEN, WAITS, nest
from probes.cuda.program import DEPTH_MASK, NO_ENTRY, NO_RETURN

ENTRY_DTYPE = CALL_ENTRY.numpy_dtype()
RETURN_DTYPE = CALL_RETURN.numpy_dtype()

_I64 = npt.NDArray[np.int64]
_Bool = npt.NDArray[np.bool_]
_Records = npt.NDArray[np.void]

_NO_ENTRIES = np.empty(0, ENTRY_DTYPE)
_NO_RETURNS = np.empty(0, RETURN_DTYPE)

#: Depth that lies above every real one.
_NO_DEPTH = 1 << 15


@dataclass
class _Thread:
    """Last accepted sequence number of a thread, and the last one held behind a gap."""

    sequence: int = 0
    held_until: int = 0


@dataclass(frozen=True)
class Calls:
    """Calls in no particular order; arrays of equal length.

    Attributes:
        entries: Entry records.
        call_id: Number of each call; larger is later entered.
        parent_id: Number of the enclosing call, -1 when there is none or it is not known.
        depth: Enclosing calls.
        end_ns: Time of the return; -1 when it was not seen.
        result: Return value; without meaning when the return was not seen.
    """

    entries: _Records
    call_id: _I64
    parent_id: _I64
    depth: _I64
    end_ns: _I64
    result: _I64

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def start_ns(self) -> _I64:
        """Time of the entry."""
        return self.entries["time_ns"].astype(np.int64)

    @cached_property
    def pid_tgid(self) -> npt.NDArray[np.uint64]:
        """Process and thread."""
        return self.entries["pid_tgid"].copy()

    @cached_property
    def function(self) -> _I64:
        """Number of the function."""
        return self.entries["function"].astype(np.int64)

    @cached_property
    def has_return(self) -> _Bool:
        """Whether the return was seen."""
        return self.end_ns >= 0

    @property
    def is_missed(self) -> _Bool:
        """Whether the return was probed and not seen."""
        is_missed: _Bool = ~self.has_return
        if is_missed.any():
            is_missed &= (self.entries["depth"] & NO_RETURN) == 0
        return is_missed


@dataclass(frozen=True)
class OpenCalls:
    """Calls entered and not returned; arrays of equal length.

    Attributes:
        entries: Entry records.
        call_id: Number of each call.
        depth: Enclosing calls.
        is_doubtful: Records of the thread were lost since the call was entered.
    """

    entries: _Records
    call_id: _I64
    depth: _I64
    is_doubtful: _Bool


class Pairing:
    """Pairs the records of any number of threads over consecutive batches.

    A call whose return is not probed is closed at once, without a return.

    Attributes:
        n_gap_records: Records that are missing in the sequence of their thread.
        n_return_missed: Calls that were closed without their return.
        n_foreign_returns: Returns of calls entered before the recording saw their thread.
    """

    def __init__(self) -> None:
        self._threads: dict[int, _Thread] = {}
        self._next_id = 1
        self._open = np.empty(0, ENTRY_DTYPE)
        self._open_id = np.empty(0, np.int64)
        self._open_parent = np.empty(0, np.int64)
        self._open_doubtful = np.empty(0, np.bool_)
        self._held_entries = np.empty(0, ENTRY_DTYPE)
        self._held_returns = np.empty(0, RETURN_DTYPE)
        self.n_gap_records = 0
        self.n_return_missed = 0
        self.n_foreign_returns = 0

    def feed(self, entries: _Records, returns: _Records, *, is_complete: bool) -> Calls:
        """Return the calls that the new records close.

        Args:
            entries: New entry records, oldest first.
            returns: New return records, oldest first.
            is_complete: Both rings were read up to all that was reserved; otherwise a missing
                record may still come, and nothing is declared lost.
        """
        if self._held_entries.size:
            entries = _joined(self._held_entries, entries)
        if self._held_returns.size:
            returns = _joined(self._held_returns, returns)
        n_open, n_new = len(self._open), len(entries)
        if not n_new and not len(returns):
            return _no_calls()
        all_entries = _joined(self._open, entries) if n_open else entries
        n_entries = n_open + n_new
        pid_tgid = np.concatenate((all_entries["pid_tgid"], returns["pid_tgid"]))
        keys, thread = index_threads(pid_tgid)
        threads = [self._threads.setdefault(int(key), _Thread()) for key in keys]
        simple = self._nest(threads, all_entries, returns, thread)
        if simple is not None:
            return simple
        last = np.array([state.sequence for state in threads], np.int64)
        raw = np.concatenate((all_entries["sequence"], returns["sequence"]))
        before = last[thread]
        sequence = before + (raw - before.astype(np.uint32)).view(np.int32)
        # A thread id used again begins anew at 1.
        restarted = (sequence <= before) & (raw < (1 << 30))
        restarted[:n_open] = False
        if restarted.any():
            sequence[restarted] = raw[restarted] + before[restarted]
        order = np.argsort(
            (thread.astype(np.int64) << 48) + (sequence & ((1 << 48) - 1)), kind="stable"
        )
        thread, sequence = thread[order], sequence[order]
        is_carried = order < n_open
        gap = _gaps(thread, sequence, last, is_carried)
        held = np.zeros(len(order), np.bool_)
        if gap.any():
            held = self._hold(threads, thread, sequence, gap, is_complete)
        self._keep_held(order, held, n_open, n_entries, all_entries, returns)
        if held.any():
            keep = ~held
            order, thread, sequence = order[keep], thread[keep], sequence[keep]
            gap, is_carried = gap[keep], is_carried[keep]
        self._note_progress(threads, thread, sequence, gap)
        return self._match(all_entries, returns, order, thread, gap, is_carried)

    def _nest(
        self, threads: list[_Thread], entries: _Records, returns: _Records, thread: _I64
    ) -> Calls | None:
        """The closed calls where no record is missing; None where that is not so."""
        n_open = len(self._open)
        if self._open_doubtful.any():
            return None
        found = nest(
            entries,
            n_open,
            returns,
            thread,
            [state.sequence for state in threads],
            [state.held_until for state in threads],
        )
        if found is None:
            return None
        for state, n_accepted, held_until in zip(
            threads, found.n_accepted, found.held_until, strict=True
        ):
            state.sequence += n_accepted
            state.held_until = max(state.held_until, held_until)
        self._held_entries = (
            _rows(entries, found.state == WAITS) if found.n_waiting else _NO_ENTRIES
        )
        self._held_returns = _rows(returns, found.waits) if found.waits.any() else _NO_RETURNS
        # Numbers: carried calls have theirs; new ones get them in the order of the ring.
        call_id = np.empty(len(entries), np.int64)
        call_id[:n_open] = self._open_id
        n_new = len(entries) - n_open - found.n_waiting
        numbers = np.arange(self._next_id, self._next_id + n_new)
        if found.n_waiting:
            call_id[np.flatnonzero(found.state != WAITS)[n_open:]] = numbers
        else:
            call_id[n_open:] = numbers
        self._next_id += n_new
        parent = np.where(found.parent >= 0, call_id[found.parent], -1)
        parent[:n_open] = self._open_parent
        stays = np.flatnonzero(found.state == OPEN)
        self._open = _rows(entries, stays)
        self._open_id = call_id[stays]
        self._open_parent = parent[stays]
        self._open_doubtful = np.zeros(len(stays), np.bool_)
        ended = _run(found.state == ENDED)
        return Calls(
            _rows(entries, ended),
            call_id[ended],
            parent[ended],
            (entries["depth"][ended] & DEPTH_MASK).astype(np.int64),
            found.end_ns[ended],
            found.result[ended],
        )

    def _hold(
        self,
        threads: list[_Thread],
        thread: _I64,
        sequence: _I64,
        gap: _I64,
        is_complete: bool,
    ) -> _Bool:
        """Which records wait because a record before them may still come."""
        until = np.array([state.held_until for state in threads], np.int64)
        is_late = (gap > 0) & ((sequence > until[thread]) | (not is_complete))
        counts = np.cumsum(is_late)
        first = np.flatnonzero(np.diff(thread, prepend=-1))
        base: _I64 = (counts - is_late)[first]
        lengths = np.diff(np.append(first, len(thread)))
        held: _Bool = np.asarray(counts - np.repeat(base, lengths) > 0, np.bool_)
        for index in np.unique(thread[held]):
            mine = sequence[held & (thread == index)]
            threads[int(index)].held_until = int(mine.max())
        return held

    def _keep_held(
        self,
        order: _I64,
        held: _Bool,
        n_open: int,
        n_entries: int,
        entries: _Records,
        returns: _Records,
    ) -> None:
        """Keep the held records for the next batch."""
        waiting = np.sort(order[held])
        self._held_entries = entries[waiting[(waiting >= n_open) & (waiting < n_entries)]]
        self._held_returns = returns[waiting[waiting >= n_entries] - n_entries]

    def _note_progress(
        self,
        threads: list[_Thread],
        thread: _I64,
        sequence: _I64,
        gap: _I64,
    ) -> None:
        """Remember the last sequence number of each thread, and count what is missing."""
        ends = np.flatnonzero(np.diff(thread, append=-1))
        for position in ends:
            state = threads[int(thread[position])]
            state.sequence = max(state.sequence, int(sequence[position]))
        self.n_gap_records += int(gap.sum())

    def _match(
        self,
        entries: _Records,
        returns: _Records,
        order: _I64,
        thread: _I64,
        gap: _I64,
        is_carried: _Bool,
    ) -> Calls:
        n_entries = len(entries)
        n = len(order)
        is_entry = order < n_entries
        raw_depth = np.concatenate((entries["depth"], returns["depth"]))[order]
        function = np.concatenate((entries["function"], returns["function"]))[order]
        depth = (raw_depth & DEPTH_MASK).astype(np.int64)
        is_foreign = ~is_entry & ((raw_depth & NO_ENTRY) != 0)
        self.n_foreign_returns += int(is_foreign.sum())
        # Numbers: carried calls have theirs; new ones get them in the order of the ring.
        n_open = len(self._open)
        identifiers = np.empty(n_entries, np.int64)
        identifiers[:n_open] = self._open_id
        taken = np.zeros(n_entries, np.bool_)
        taken[order[is_entry]] = True
        fresh = np.flatnonzero(taken[n_open:]) + n_open
        identifiers[fresh] = self._next_id + np.arange(len(fresh))
        self._next_id += len(fresh)
        call_id = np.full(n, -1, np.int64)
        call_id[is_entry] = identifiers[order[is_entry]]
        losses = np.cumsum(gap > 0)
        # Entries of one thread and depth are each followed by their return.
        group = thread * 16 + np.minimum(depth, 15)
        small = group.astype(np.uint16 if group.max(initial=0) < 65536 else np.uint32)
        grouped = np.argsort(small, kind="stable")
        first, second = grouped[:-1], grouped[1:]
        is_pair = (
            (small[first] == small[second])
            & is_entry[first]
            & ~is_entry[second]
            & ~is_foreign[second]
            & (function[first] == function[second])
        )
        opened, closed = first[is_pair], second[is_pair]
        is_sure = losses[opened] == losses[closed]
        doubtful = np.zeros(n, np.bool_)
        carried = np.flatnonzero(is_carried)
        doubtful[carried] = self._open_doubtful[order[carried]]
        is_sure &= ~doubtful[opened]
        opened, closed = opened[is_sure], closed[is_sure]
        end_ns = np.full(n, -1, np.int64)
        result = np.zeros(n, np.int64)
        partner = order[closed] - n_entries
        end_ns[opened] = returns["time_ns"][partner].astype(np.int64)
        result[opened] = returns["result"][partner]
        has_probe = (raw_depth & NO_RETURN) == 0
        is_closed = is_entry & ((_later_depth(thread, depth) <= depth) | ~has_probe)
        self.n_return_missed += int((is_closed & has_probe & (end_ns < 0)).sum())
        parent = _parents(thread, depth, is_entry, call_id)
        parent[carried] = self._open_parent[order[carried]]
        stays = np.flatnonzero(is_entry & ~is_closed)
        ends = np.flatnonzero(np.diff(thread, append=-1))
        total = np.zeros(int(thread.max(initial=0)) + 1, np.int64)
        total[thread[ends]] = losses[ends]
        self._open = entries[order[stays]]
        self._open_id = call_id[stays]
        self._open_parent = parent[stays]
        self._open_doubtful = doubtful[stays] | (losses[stays] < total[thread[stays]])
        done = np.flatnonzero(is_closed)
        return Calls(
            _rows(entries, order[done]),
            call_id[done],
            parent[done],
            depth[done],
            end_ns[done],
            result[done],
        )

    def open_calls(self) -> OpenCalls:
        """Return the calls that are open now."""
        depth = (self._open["depth"] & DEPTH_MASK).astype(np.int64)
        is_doubtful = self._open_doubtful
        if len(self._held_entries) or len(self._held_returns):
            held = np.concatenate((self._held_entries["pid_tgid"], self._held_returns["pid_tgid"]))
            is_doubtful = is_doubtful | np.isin(self._open["pid_tgid"], held)
        return OpenCalls(self._open, self._open_id, depth, is_doubtful)

    def doubt(self, functions: _Bool, before_ns: int) -> None:
        """Take note that returns before a time may have been missed.

        Args:
            functions: Whether those of the function with that number were not probed meanwhile.
            before_ns: Calls entered before this time are concerned.
        """
        self._open_doubtful |= functions[self._open["function"]] & (
            self._open["time_ns"] < np.uint64(before_ns)
        )

    def threads(self) -> list[int]:
        """Return the ``pid_tgid`` of every thread that made a call and has not ended."""
        return list(self._threads)

    def end_threads(self, pid_tgids: Iterable[int]) -> Calls:
        """Forget threads that ended; return the calls they ended in, without a return."""
        gone = [key for key in pid_tgids if self._threads.pop(key, None) is not None]
        if not gone:
            return _no_calls()
        is_gone = np.isin(self._open["pid_tgid"], np.array(gone, np.uint64))
        for name in ("_held_entries", "_held_returns"):
            held = getattr(self, name)
            setattr(self, name, held[~np.isin(held["pid_tgid"], np.array(gone, np.uint64))])
        entries = self._open[is_gone]
        calls = Calls(
            entries,
            self._open_id[is_gone],
            self._open_parent[is_gone],
            (entries["depth"] & DEPTH_MASK).astype(np.int64),
            np.full(len(entries), -1, np.int64),
            np.zeros(len(entries), np.int64),
        )
        self._open = self._open[~is_gone]
        self._open_id = self._open_id[~is_gone]
        self._open_parent = self._open_parent[~is_gone]
        self._open_doubtful = self._open_doubtful[~is_gone]
        return calls

    def knows(self, pid_tgid: int) -> bool:
        """Return whether a living thread made a call."""
        return pid_tgid in self._threads

    def threads_of(self, pid: int) -> list[int]:
        """Return the ``pid_tgid`` of every thread of a process that made a call."""
        return [key for key in self._threads if key >> 32 == pid]


def _rows(records: _Records, which: _I64 | _Bool | slice) -> _Records:
    """Some of the records; as bytes without fields they are copied several times as fast."""
    chosen: _Records = records.view(f"V{records.itemsize}")[which].view(records.dtype)
    return chosen


def _run(is_chosen: _Bool) -> _I64 | slice:
    """Numbers of the chosen rows; where they lie in a row, as a slice: nothing is then copied."""
    if is_chosen.all():
        return slice(0, len(is_chosen))
    chosen = np.flatnonzero(is_chosen)
    if len(chosen) and chosen[-1] - chosen[0] + 1 == len(chosen):
        return slice(int(chosen[0]), int(chosen[-1]) + 1)
    return chosen


def _joined(first: _Records, second: _Records) -> _Records:
    """Records one after the other, copied as bytes too."""
    both: _Records = np.concatenate(
        (first.view(f"V{first.itemsize}"), second.view(f"V{second.itemsize}"))
    ).view(first.dtype)
    return both


def _no_calls() -> Calls:
    nothing = np.empty(0, np.int64)
    return Calls(np.empty(0, ENTRY_DTYPE), nothing, nothing, nothing, nothing, nothing)


def index_threads(pid_tgid: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], _I64]:
    """Return the distinct ``pid_tgid``, sorted, and the index of each record's among them."""
    changes = np.flatnonzero(pid_tgid[1:] != pid_tgid[:-1]) + 1
    if not len(changes):
        return pid_tgid[:1].copy(), np.zeros(len(pid_tgid), np.int64)
    starts = np.concatenate(([0], changes))
    runs = pid_tgid[starts]
    keys = np.unique(runs)  # sorting values and looking them up beats sorting indices
    lengths = np.diff(np.append(starts, len(pid_tgid)))
    return keys, np.repeat(np.searchsorted(keys, runs), lengths)


def _gaps(thread: _I64, sequence: _I64, last: _I64, is_carried: _Bool) -> _I64:
    """Missing records before each record of sorted threads; 0 before carried ones."""
    previous = np.empty_like(sequence)
    previous[1:] = sequence[:-1]
    is_first = np.diff(thread, prepend=-1) != 0
    previous[is_first] = 0
    # Carried calls are older than the last accepted record.
    previous = np.maximum(previous, last[thread])
    gap = sequence - previous - 1
    gap[is_carried] = 0
    np.maximum(gap, 0, out=gap)
    return gap


def _later_depth(thread: _I64, depth: _I64) -> _I64:
    """Lowest depth among the later records of the same thread; large when there are none."""
    n = len(depth)
    lowest = np.full(n, _NO_DEPTH, np.int64)
    if n > 1:
        value = depth + thread * _NO_DEPTH
        running = np.minimum.accumulate(value[::-1])[::-1]
        lowest[:-1] = running[1:] - thread[:-1] * _NO_DEPTH
    return lowest


def _parents(thread: _I64, depth: _I64, is_entry: _Bool, call_id: _I64) -> _I64:
    """Number of the call that encloses each entry, -1 when there is none or it was lost."""
    n = len(depth)
    parent = np.full(n, -1, np.int64)
    if not n:
        return parent
    position = np.arange(n)
    for level in range(1, int(depth.max()) + 1):
        nested = np.flatnonzero(is_entry & (depth == level))
        if not nested.size:
            continue
        lower = np.maximum.accumulate(np.where(depth < level, position, -1))
        candidate = lower[nested]
        is_known = (
            (candidate >= 0)
            & (thread[candidate] == thread[nested])
            & is_entry[candidate]
            & (depth[candidate] == level - 1)
        )
        parent[nested[is_known]] = call_id[candidate[is_known]]
    return parent
