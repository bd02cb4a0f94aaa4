"""What a device was doing, told from the host alone: idle, busy or undetermined.

Without device times an instant is *idle* from the return of a sync that covers all outstanding
work of a process to its next submission, *busy* inside a sync that waits for work, and
*undetermined* otherwise: work is outstanding, and may or may not have ended. A thread that sleeps
in its sync is woken when the work has ended, so the wait from there to its return is idle time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis import intervals
from analysis.absences import Absences
from analysis.calls import Calls
from analysis.columns import positions, tally

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int32]

#: A sync that takes longer waits for work. Syncs that wait for nothing take 2 to 20 us in the
#: recordings of real GPUs, and a probed call costs about 2 us more.
WAIT_NS = 50_000
#: A thread that sleeps in its sync returns after having run at most that long since its wake, on
#: cold caches and through a probe; one that runs on waits for more. At most a quarter of its sleep.
AWAKE_NS = 500_000
#: With more streams than this only device-wide syncs are taken to cover all work.
MAX_STREAMS = 64

#: Functions that wait for every stream of the process's context.
_WIDE = ("DeviceSynchronize", "CtxSynchronize", "ThreadSynchronize")


@dataclass(frozen=True)
class Steps:
    """Each sync of one process, and the submissions since the sync before it.

    Attributes:
        first_launch: Entry of the first submission since the previous sync, ns; the sync's own
            entry where there was none.
        sync_start: Entry of the sync, ns.
        sync_end: Its return, ns.
        work_end: Until when the work certainly went on, ns: the thread's wake or the sync's
            return; the moment it was preempted if it only came back for the return.
        idle_start: From when the work was certainly done, ns: the wake, or the return.
        next_launch: Entry of the next submission after the sync's entry, ns; the end of the range
            where there is none.
        n_launches: Plain launches since the previous sync.
        n_graphs: Graph launches since the previous sync.
        is_waiting: The sync waited for work.
        is_covering: At its return no work of the process was outstanding.
        thread: Index of the thread that synchronised.
    """

    first_launch: Ints
    sync_start: Ints
    sync_end: Ints
    work_end: Ints
    idle_start: Ints
    next_launch: Ints
    n_launches: Ints
    n_graphs: Ints
    is_waiting: Bools
    is_covering: Bools
    thread: Ints

    def __len__(self) -> int:
        return len(self.sync_start)

    @property
    def duration(self) -> Ints:
        """From the first submission to the return of the sync, ns."""
        result: Ints = self.sync_end - self.first_launch
        return result

    @property
    def busy(self) -> Ints:
        """Intervals in which the device had work that a sync waited for, one row per step."""
        begin = np.where(self.is_waiting, self.sync_start, self.work_end)
        return intervals.make(begin, self.work_end)

    @property
    def idle(self) -> Ints:
        """Intervals in which the device had no work of this process, one row per step."""
        begin = np.where(self.is_waiting, self.idle_start, self.sync_end)
        end = np.where(self.is_covering, np.maximum(self.next_launch, begin), begin)
        return intervals.make(begin, end)

    @property
    def outstanding(self) -> Ints:
        """Intervals from a first submission to the end of its work, one row per step."""
        return intervals.make(self.first_launch, np.maximum(self.work_end, self.first_launch))


def process_steps(calls: Calls, own: Bools, absences: Absences | None, end_ns: int) -> Steps:
    """Return the steps of one process on one device.

    Args:
        calls: Outermost calls of the session.
        own: Which calls are of the process on the device.
        absences: Off-CPU intervals, None where not recorded.
        end_ns: End of the range.
    """
    is_blocking_copy = calls.is_blocking_copy & own
    is_work = calls.is_submission & own & ~is_blocking_copy
    sync_rows, work_rows = positions(calls.is_sync & own), positions(is_work)
    sync_start, sync_end = calls.start[sync_rows], calls.ends(sync_rows)
    # Calls are in order of time: what comes before a moment is what lies before a position.
    upto = np.searchsorted(calls.start, sync_start, side="right").astype(np.int32)
    before = np.searchsorted(work_rows, upto)
    previous = np.concatenate((np.zeros(1, dtype=np.int64), before[:-1]))[: len(before)]
    first_work = _at(calls.start, work_rows, previous, end_ns)
    first_launch = np.where(before > previous, first_work, sync_start)
    # A blocking copy is work itself and comes to the device at its entry.
    next_launch = _at(calls.start, work_rows, before, end_ns)
    copy_rows = positions(is_blocking_copy)
    next_copy = _at(calls.start, copy_rows, np.searchsorted(copy_rows, upto), end_ns)
    next_launch = np.minimum(next_launch, next_copy)
    counts = []
    for kind in ("launch", "graph_launch"):
        total = np.searchsorted(positions(calls.is_kind(kind) & is_work), upto)
        counts.append(np.diff(total, prepend=0).astype(np.int64))
    work_end, idle_start = _work_ends(calls, sync_rows, absences)
    waited = idle_start - sync_start
    return Steps(
        first_launch=first_launch,
        sync_start=sync_start,
        sync_end=sync_end,
        work_end=work_end,
        idle_start=idle_start,
        next_launch=next_launch,
        n_launches=counts[0],
        n_graphs=counts[1],
        is_waiting=waited > WAIT_NS,
        is_covering=_covering(calls, own, sync_rows, work_rows) & (next_launch >= sync_end),
        thread=calls.thread[sync_rows].astype(np.int64),
    )


def _at(start: Ints, rows: Rows, index: npt.NDArray[np.integer[Any]], beyond: int) -> Ints:
    """Entry of the call at an index into ``rows``, ``beyond`` past their end."""
    if len(rows) == 0:
        return np.full(len(index), beyond, dtype=np.int64)
    found = start[rows[np.minimum(index, len(rows) - 1)]]
    result: Ints = np.where(index < len(rows), found, beyond)
    return result


def _work_ends(calls: Calls, sync_rows: Rows, absences: Absences | None) -> tuple[Ints, Ints]:
    """Until when each sync's work certainly went on, and from when it was certainly done, ns.

    A thread that slept, and after its wake ran no more than it takes to return, was woken by the
    end of the work, however often it was preempted since. One that spun and was preempted until
    shortly before the return does not know when it ended meanwhile.
    """
    busy_until = calls.ends(sync_rows)
    idle_from = busy_until.copy()
    if absences is None or len(absences) == 0:
        return busy_until, idle_from
    for thread in np.unique(calls.thread[sync_rows]):
        tid = calls.threads[thread][1]
        own = absences.pick((absences.tid == tid) & absences.has_state)
        if len(own) == 0:
            continue
        mine = np.flatnonzero(calls.thread[sync_rows] == thread)
        begins, ends = calls.start[sync_rows[mine]], idle_from[mine]
        last = np.searchsorted(own.end, ends, side="right") - 1
        at = np.maximum(last, 0)
        is_inside = (last >= 0) & (own.start[at] >= begins)
        is_late = ends - own.end[at] < WAIT_NS
        is_asleep = own.ready > own.start
        # Preempted until shortly before the return, it does not know when the work ended.
        busy_until[mine] = np.where(is_inside & is_late & ~is_asleep[at], own.start[at], ends)
        # The last sleep inside, and how long the thread ran between its wake and the return.
        slept = np.maximum.accumulate(np.where(is_asleep, np.arange(len(own)), -1))[at]
        nap = np.maximum(slept, 0)
        away = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(own.end - own.start)))
        ran = ends - own.end[nap] - (away[at + 1] - away[nap + 1])
        short = np.clip((own.ready[nap] - own.start[nap]) // 4, WAIT_NS, AWAKE_NS)
        is_woken = is_inside & (slept >= 0) & (own.start[nap] >= begins) & (ran < short)
        busy_until[mine] = np.where(is_woken, own.ready[nap], busy_until[mine])
        idle_from[mine] = np.where(is_woken, own.ready[nap], ends)
    return busy_until, idle_from


def _covering(calls: Calls, own: Bools, sync_rows: Rows, work_rows: Rows) -> Bools:
    """Which syncs leave no work of the process outstanding that was submitted before them."""
    n = len(sync_rows)
    names = calls.functions
    is_wide_name = np.array([any(word in name for word in _WIDE) for name in names] or [False])
    is_event_name = np.array(["EventSynchronize" in name for name in names] or [False])
    function = calls.function[sync_rows]
    is_wide, is_event = is_wide_name[function], is_event_name[function]
    stream_of = calls.stream[work_rows]
    n_streams = tally(stream_of + 1, None, len(calls.streams) + 1)
    streams = [int(code) - 1 for code in np.flatnonzero(n_streams)]
    start = calls.start[sync_rows]
    if len(streams) <= 1:
        waited = calls.stream[sync_rows]
        only = streams[0] if streams else -1
        result = is_wide | is_event | (waited == only) | (waited == -1) | (only == -1)
    elif len(streams) > MAX_STREAMS or -1 in streams:
        result = is_wide.copy()
    else:
        result = np.ones(n, dtype=bool)
        end = calls.ends(sync_rows)
        upto = np.searchsorted(calls.start, start, side="right").astype(np.int32)
        for stream in streams:
            is_on = is_wide | ((calls.stream[sync_rows] == stream) & ~is_event)
            last_work = _before(calls.start, work_rows[stream_of == stream], upto)
            covers = np.flatnonzero(is_on)
            latest = np.searchsorted(end[covers], end, side="right") - 1
            seen = np.append(start[covers], np.int64(-1))[latest]
            result &= last_work <= seen
    # An event covers what was submitted before it was recorded.
    if is_event.any():
        upto = np.searchsorted(calls.start, start).astype(np.int32)
        last_work = _before(calls.start, work_rows, upto)
        last_record = _before(calls.start, positions(calls.is_kind("event") & own), upto)
        is_late = last_record >= last_work
        result = np.where(is_event, is_late & (len(streams) <= 1), result)
    answer: Bools = result.astype(bool)
    return answer


def _before(start: Ints, rows: Rows, upto: Rows) -> Ints:
    """Entry of the last of ``rows`` before each position of ``upto``, -1 where there is none."""
    at = np.searchsorted(rows, upto)
    return np.where(at > 0, _at(start, rows, at - 1, -1), -1)
