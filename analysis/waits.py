"""Sleeps of a launching thread outside of waits for the device, and who ended them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from analysis import intervals
from analysis.threads import Launcher
from analysis.timeline import Session

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: A thread that waits for a lock with a time limit (Python's does so every 5 ms) sleeps again at
#: once: sleeps that follow each other within this are one wait, ns.
CHAIN_NS = 300_000


@dataclass(frozen=True)
class Waits:
    """Waits of one thread, one entry each, in time order.

    Attributes:
        spans: ``(n, 2)`` from falling asleep to running again, ns.
        n_sleeps: Sleeps that each is made of.
        waker_pid: Process of the task that ended it, -1 where not known.
        waker_tid: Task that ended it, -1 where not known.
        is_interpreter: Most of it was slept on the lock of the Python interpreter.
        is_other_lock: Most of it was slept on another lock.
    """

    spans: Ints
    n_sleeps: Ints
    waker_pid: Ints
    waker_tid: Ints
    is_interpreter: Flags
    is_other_lock: Flags

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def length_ns(self) -> Ints:
        """Length of each wait, ns."""
        result: Ints = self.spans[:, 1] - self.spans[:, 0]
        return result


def waits_of(launcher: Launcher) -> Waits:
    """Return the waits of a launching thread outside of calls that wait for the device; none
    where its sleeps were not recorded.
    """
    absences = launcher.absences
    nothing = np.empty(0, dtype=np.int64)
    no_waits = Waits(
        *(intervals.EMPTY, nothing, nothing, nothing), nothing.astype(bool), nothing.astype(bool)
    )
    if absences is None:
        return no_waits
    is_sleep = absences.has_state & ~absences.is_blocked & (absences.ready > absences.start)
    spans = absences.spans
    in_sync = intervals.overlap_each(spans, launcher.states["waiting"])
    own = absences.pick(is_sleep & (2 * in_sync <= spans[:, 1] - spans[:, 0]))
    if len(own) == 0:
        return no_waits
    first = np.flatnonzero(np.append(True, own.start[1:] - own.end[:-1] > CHAIN_NS))
    last = np.append(first[1:] - 1, len(own) - 1)
    length = own.end - own.start
    whole = np.add.reduceat(length, first)
    return Waits(
        intervals.make(own.start[first], own.end[last]),
        (last - first + 1).astype(np.int64),
        own.waker_pid[last],
        own.waker_tid[last],
        2 * np.add.reduceat(length * own.is_interpreter, first) > whole,
        2 * np.add.reduceat(length * own.is_other_lock, first) > whole,
    )


def children(session: Session, pid: int) -> set[int]:
    """Return the child processes of a process, as the manifest and the recorded forks tell."""
    found = {target.pid for target in session.manifest.targets if target.parent_pid == pid}
    if session.has("event"):
        rows = session.table("event", columns=["time_ns", "kind", "pid", "parent_pid"])
        is_fork = pc.and_(pc.equal(rows["kind"], "fork"), pc.equal(rows["parent_pid"], pid))
        found.update(child for child in rows.filter(is_fork)["pid"].to_pylist() if child)
    return found - {pid}


@dataclass(frozen=True)
class ThreadShare:
    """Share of a recording that a thread was on a CPU, and ready for one, in [0, 1]."""

    running: float
    waiting: float

    @property
    def wanted(self) -> float:
        """Share in which it wanted a CPU."""
        return self.running + self.waiting


def thread_shares(
    session: Session, pids: set[int], span_ns: int
) -> dict[tuple[int, int], ThreadShare] | None:
    """Return what each thread (pid, tid) of some processes did over a recording; None where
    threads were not sampled.
    """
    if not session.has("thread_second"):
        return None
    columns = ["start_ns", "pid", "tid", "running_ns", "waiting_ns"]
    rows = session.table("thread_second", columns=columns)
    rows = rows.filter(np.isin(rows["pid"].to_numpy(), list(pids)))
    if rows.num_rows == 0:
        return None
    sums = rows.group_by(["pid", "tid"]).aggregate([("running_ns", "sum"), ("waiting_ns", "sum")])
    names = ("pid", "tid", "running_ns_sum", "waiting_ns_sum")
    span = max(span_ns, 1)
    return {
        (int(pid), int(tid)): ThreadShare(float(ran or 0) / span, float(waited or 0) / span)
        for pid, tid, ran, waited in zip(*(sums[name].to_pylist() for name in names), strict=True)
    }
