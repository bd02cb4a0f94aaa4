"""Where the time of a launching thread went: inside calls, ready but waiting, asleep, computing.

The account of a thread is exclusive and complete: every nanosecond of a range is in exactly one of
its states. Its precedence is that of :data:`STATES`: what the scheduler saw comes before what
the thread was doing when it was taken off the CPU.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from analysis import intervals
from analysis.absences import Absences
from analysis.calls import Calls

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: States of a launching thread, in order of precedence.
STATES = (
    "ready",  # ready to run, not running
    "blocked",  # off the CPU, uninterruptible
    "asleep",  # off the CPU, asleep, outside of a call that waits for the device
    "waiting",  # inside a call that waits for the device (asleep or spinning)
    "working",  # the rest: on the CPU, inside other CUDA calls or between calls
)
#: Kinds of work, in order of precedence: what the thread did while ``working``.
WORK = (
    "launching",  # inside a call that hands work to the device
    "calling",  # inside another CUDA call
    "computing",  # outside of CUDA calls
)
#: Calls that are added up at a time.
_CHUNK = 1 << 18


class Launcher:
    """One thread that hands work to a device, and the account of its time.

    Args:
        calls: Outermost calls of the session.
        index: Its index in ``calls.threads``.
        absences: Off-CPU intervals of the session, None where not recorded.
        start_ns: Begin of the range that is accounted.
        end_ns: End of that range.
    """

    def __init__(
        self, calls: Calls, index: int, absences: Absences | None, start_ns: int, end_ns: int
    ) -> None:
        self.calls = calls
        self.index = index
        self.pid, self.tid = calls.threads[index]
        self.start_ns, self.end_ns = start_ns, end_ns
        self.rows = calls.of_thread(index)
        self.absences = None if absences is None else absences.pick(absences.tid == self.tid)

    @property
    def has_states(self) -> bool:
        """Whether the scheduler's states of this thread were recorded (it may never have left)."""
        absences = self.absences
        return absences is not None and (len(absences) == 0 or bool(absences.has_state.any()))

    def spans(self, mask: Bools) -> Ints:
        """Return the spans of this thread's calls for which ``mask`` (over all calls) holds."""
        rows = self.rows[mask[self.rows]]
        return intervals.make(self.calls.start[rows], self.calls.ends(rows))

    def inside(self, mask: Bools | None, spans: Ints, edges: Ints) -> Ints:
        """Return the length in ns that this thread was inside calls for which ``mask`` (over all
        calls; None for any call) holds, within ``spans``, for each window of ``edges``.
        """
        spans = intervals.union(spans)
        if len(spans) == 0:
            return np.zeros(len(edges) - 1, dtype=np.int64)
        points = np.concatenate((spans.reshape(-1), edges))
        order = np.argsort(points, kind="stable")
        told = np.empty(len(points), dtype=np.int64)
        told[order] = self._inside_before(mask, points[order])
        # Each span's part, and at an edge inside of a span what of it comes after the edge.
        n = 2 * len(spans)
        begin, end, at_edge = told[:n:2], told[1:n:2], told[n:]
        upto = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(end - begin)))
        n_begun = np.searchsorted(spans[:, 0], edges, side="left")
        last = np.maximum(n_begun - 1, 0)
        after = np.where(n_begun > 0, np.maximum(end[last] - at_edge, 0), 0)
        return np.diff(upto[n_begun] - after)

    def _inside_before(self, mask: Bools | None, points: Ints) -> Ints:
        """Length in ns that the thread was inside calls for which ``mask`` holds (None for all)
        from the first of the points, which ascend, to each of them.
        """
        result = np.zeros(len(points), dtype=np.int64)
        total, reach = 0, int(points[0])
        n_told = 0
        for first in range(0, len(self.rows), _CHUNK):
            rows = self.rows[first : first + _CHUNK]
            if mask is not None:
                rows = rows[mask[rows]]
            if len(rows) == 0:
                continue
            start = self.calls.start[rows]
            # Calls that overlap (a return that was not seen) count once.
            until = np.append(np.int64(reach), start + self.calls.duration[rows])
            np.maximum.accumulate(until, out=until)
            own = until[1:] - np.maximum(start, until[:-1])
            before = np.append(np.int64(0), np.cumsum(np.maximum(own, 0, out=own)))
            # Points before this part's calls lie after all calls of the parts before it.
            n_before = int(np.searchsorted(points, start[0], side="left"))
            result[n_told:n_before] = total - np.maximum(reach - points[n_told:n_before], 0)
            n_told = max(n_told, n_before)
            upto = int(np.searchsorted(points, start[-1], side="right"))
            at = np.searchsorted(start, points[n_told:upto], side="right")
            late = np.maximum(until[at] - points[n_told:upto], 0)
            result[n_told:upto] = total + before[at] - late
            n_told = max(n_told, upto)
            total, reach = total + int(before[-1]), int(until[-1])
        result[n_told:] = total - np.maximum(reach - points[n_told:], 0)
        return result

    def time_inside(self, mask: Bools | None, spans: Ints) -> int:
        """Return the length in ns that this thread was inside such calls within ``spans``."""
        edges = np.array([self.start_ns, self.end_ns], dtype=np.int64)
        return int(self.inside(mask, spans, edges)[0])

    @cached_property
    def states(self) -> dict[str, Ints]:
        """Disjoint intervals of each state of :data:`STATES`; together they cover the range."""
        waiting = intervals.union(self.spans(self.calls.is_sync))
        raw = {"waiting": waiting}
        if self.absences is not None:
            away = intervals.union(self.absences.spans)
            raw["ready"] = intervals.union(self.absences.ready_spans)
            # Inside a wait for the device, any sleep is that wait.
            blocked = intervals.union(self.absences.pick(self.absences.is_blocked).spans)
            raw["blocked"] = intervals.subtract(blocked, waiting)
            raw["asleep"] = intervals.subtract(away, waiting)
        left = intervals.make([self.start_ns], [self.end_ns])
        result = {}
        for state in STATES[:-1]:
            result[state] = intervals.intersect(raw.get(state, intervals.EMPTY), left)
            left = intervals.subtract(left, result[state])
        result["working"] = left
        return result

    def work(self, spans: Ints, edges: Ints) -> dict[str, Ints]:
        """Return the length in ns of each kind of :data:`WORK` within ``spans`` for each window of
        ``edges``; within time that the thread was ``working`` they add up to all of it.
        """
        both = intervals.intersect(spans, self.states["working"])
        launching = self.inside(self.calls.is_submission, both, edges)
        in_calls = self.inside(None, both, edges)
        return {
            "launching": launching,
            "calling": in_calls - launching,
            "computing": intervals.coverage(both, edges) - in_calls,
        }
