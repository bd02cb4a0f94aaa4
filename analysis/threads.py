"""Where the time of a launching thread went: inside calls, ready but waiting, asleep, computing.

The account of a thread is exclusive and complete: every nanosecond of a range is in exactly one of
its states. Its precedence is that of :data:`STATES`: what the scheduler saw comes before what
the thread was doing when it was taken off the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analysis import intervals
from analysis.calls import Calls
from analysis.timeline import Session

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

_COLUMNS = (
    "start_ns",
    "duration_ns",
    "pid",
    "tid",
    "runnable_ns",
    "state",
    "taker_pid",
    "taker_tid",
    "taker_name",
    "occupant_pid",
    "occupant_tid",
    "occupant_name",
    "waker_pid",
    "waker_tid",
    "lock",
)


@dataclass(frozen=True)
class Absences:
    """Intervals that launching threads spent off the CPU, sorted by start.

    Attributes:
        start: When the thread left the CPU, ns.
        end: When it came back, ns.
        ready: When it was ready to run again, ns; equal to ``start`` for a preempted thread, to
            ``end`` where the source does not tell.
        has_state: Whether the source told the state in which the thread left.
        is_blocked: It left uninterruptible.
        pid: Its process.
        tid: The thread.
        waker_pid: Process of the task that woke it, -1 where not known.
        waker_tid: Task that woke it, -1 where not known.
        is_interpreter: It slept on the lock of its Python interpreter.
        is_other_lock: It slept on another lock.
        culprit: Index into ``culprits``: the task that had the CPU while it was ready.
        culprits: ``(pid, tid, name)``; tid 0 is an idle CPU, pid None is not known.
    """

    start: Ints
    end: Ints
    ready: Ints
    has_state: Bools
    is_blocked: Bools
    pid: Ints
    tid: Ints
    waker_pid: Ints
    waker_tid: Ints
    is_interpreter: Bools
    is_other_lock: Bools
    culprit: Ints
    culprits: list[tuple[int | None, int | None, str]]

    def __len__(self) -> int:
        return len(self.start)

    def pick(self, mask: Bools) -> Absences:
        """Return the intervals where ``mask`` holds."""
        return Absences(
            self.start[mask],
            self.end[mask],
            self.ready[mask],
            self.has_state[mask],
            self.is_blocked[mask],
            self.pid[mask],
            self.tid[mask],
            self.waker_pid[mask],
            self.waker_tid[mask],
            self.is_interpreter[mask],
            self.is_other_lock[mask],
            self.culprit[mask],
            self.culprits,
        )

    @property
    def ready_spans(self) -> Ints:
        """Ready but waiting, one row per interval (possibly empty)."""
        return intervals.make(self.ready, self.end)

    @property
    def spans(self) -> Ints:
        """Off the CPU, one row per interval."""
        return intervals.make(self.start, self.end)


def load_absences(session: Session) -> Absences | None:
    """Return the off-CPU intervals of a session, None where they were not recorded."""
    if not session.has("offcpu"):
        return None
    rows = session.table("offcpu", columns=_COLUMNS)
    start = rows["start_ns"].to_numpy()
    end = start + rows["duration_ns"].to_numpy()
    state = rows["state"]
    has_state = state.is_valid().to_numpy()
    is_running = _equals(state, "running")
    runnable = rows["runnable_ns"]
    waited = np.clip(pc.fill_null(runnable, 0).to_numpy(), 0, end - start)
    ready = np.where(is_running & ~runnable.is_valid().to_numpy(), start, end - waited)
    culprit, culprits = _culprits(rows, is_running)
    return Absences(
        start,
        end,
        ready.astype(np.int64),
        has_state,
        _equals(state, "uninterruptible"),
        rows["pid"].to_numpy().astype(np.int64),
        rows["tid"].to_numpy().astype(np.int64),
        _ints(rows["waker_pid"], -1),
        _ints(rows["waker_tid"], -1),
        _equals(rows["lock"], "interpreter"),
        _equals(rows["lock"], "other"),
        culprit,
        culprits,
    )


def _culprits(
    rows: pa.Table, is_running: Bools
) -> tuple[Ints, list[tuple[int | None, int | None, str]]]:
    """The task to name for each wait: who held the CPU until the thread came back; for a preempted
    thread whose CPU is told to be idle by then, who took it.
    """
    occupant = _ints(rows["occupant_tid"], -1)
    use_taker = (occupant < 0) | ((occupant == 0) & is_running)
    columns = []
    for what in ("pid", "tid"):
        taker, held = rows[f"taker_{what}"], rows[f"occupant_{what}"]
        columns.append(np.where(use_taker, _ints(taker, -1), _ints(held, -1)))
    name = pc.if_else(pa.array(use_taker), rows["taker_name"], rows["occupant_name"])
    encoded = pc.fill_null(name, "").combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    names = encoded.dictionary.to_pylist()
    pids, pid_at = _ranked(columns[0])
    tids, tid_at = _ranked(columns[1])
    keys, culprit = _ranked((pid_at * len(tids) + tid_at) * len(names) + codes)
    culprits = []
    for key in keys.tolist():
        task, code = divmod(key, len(names))
        pid, tid = int(pids[task // len(tids)]), int(tids[task % len(tids)])
        culprits.append((None if pid < 0 else pid, None if tid < 0 else tid, str(names[code])))
    return culprit, culprits


def _ranked(values: Ints) -> tuple[Ints, Ints]:
    """Distinct values in order, and the place of each value among them."""
    encoded = pa.array(values).dictionary_encode()
    distinct = encoded.dictionary.to_numpy()
    order = np.argsort(distinct)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return distinct[order], place[encoded.indices.to_numpy()]


def _equals(column: pa.ChunkedArray, value: str) -> Bools:
    result: Bools = pc.fill_null(pc.equal(column, value), False).to_numpy()
    return result


def _ints(column: pa.ChunkedArray, null: int) -> Ints:
    result: Ints = pc.fill_null(column.cast(pa.int64()), null).to_numpy()
    return result


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
