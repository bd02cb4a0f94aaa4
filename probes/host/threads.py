"""The probe of the targets' threads: running, waiting and sleeping time of each, second by second.

Times come from ``/proc/PID/task/TID/schedstat``. ``status`` (name, state, context switches) is
read only for threads that ran since the last look (one that did not run cannot have switched), and
of threads that do not launch about once a second: between, their switches are null.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from analysis.schema import THREAD_SECOND
from probes.host import proc
from probes.host.buffer import HOLD_NS, SECOND_NS, BeatProbe, Columns
from probes.host.held import FileGroup
from probes.probe import PidSource, ProbeError, remedy

_SWITCHES = b"\nvoluntary_ctxt_switches:"
_SWEEP_NS = SECOND_NS
#: How often name, state and switches are looked up of a thread that does not launch.
_LOOK_NS = 9 * SECOND_NS // 10
_MIGRATIONS = re.compile(rb"^se\.nr_migrations\s*:\s*(\d+)", re.MULTILINE)
#: States that may change without the thread running: they are not taken over.
_UNSETTLED = ("R", "D", None)


class _Birth(NamedTuple):
    """A thread that began since the last look: its counters were zero then."""

    time_ns: int
    n_migrations: int | None


@dataclass(slots=True, eq=False)
class _Thread:
    """One thread: its files, and what was told last."""

    pid: int
    tid: int
    folder: str
    #: When name, state and switches were looked up last; None: not yet, or of another thread.
    looked_ns: int | None = None
    #: When its times were read; None: not yet.
    time_ns: int | None = None
    running_ns: int = 0
    waiting_ns: int = 0
    name: str | None = None
    state: str | None = None
    n_voluntary: int | None = None
    n_involuntary: int | None = None
    n_migrations: int | None = None


class _Look(NamedTuple):
    """What else the files of a thread said, and where its first interval begins."""

    status: bytes
    sched: bytes | None
    birth: _Birth | None


class _Reading(NamedTuple):
    """The files ``schedstat`` of the threads of a process, and when each was read.

    ``looks`` are what else was read of some, ``launching`` who launches; by the thread's place.
    """

    threads: Sequence[_Thread]
    times: Sequence[tuple[bytes | None, int]]
    launching: Sequence[bool | None] | None
    looks: Mapping[int, _Look]


@dataclass(slots=True, eq=False)
class _Threads:
    """The threads of one process, the paths of their times, and when one is to be looked at."""

    n_links: int
    threads: list[_Thread]
    files: FileGroup
    due_ns: int = 0


class _Row(NamedTuple):
    """One row, in the order of its columns."""

    start_ns: int
    duration_ns: int
    pid: int
    tid: int
    name: str | None
    running_ns: int
    waiting_ns: int
    sleeping_ns: int
    n_voluntary_switches: int | None
    n_involuntary_switches: int | None
    n_migrations: int | None
    state: str | None
    is_launcher: bool | None


class ThreadProbe(BeatProbe[_Reading]):
    """Samples every thread of the target processes.

    Args:
        targets: Tells the processes.
        root: Where /proc is.
        interval_ns: Length of an interval.
        is_launcher: Tells whether a thread (pid, tid) makes CUDA calls; None where not known.
        hold_ns: Longest time that rows are kept back, to hand them over in bulk.
        clock: CLOCK_MONOTONIC in ns.
    """

    def __init__(
        self,
        targets: PidSource,
        root: Path = proc.PROC,
        interval_ns: int = SECOND_NS,
        is_launcher: Callable[[int, int], bool | None] | None = None,
        hold_ns: int = HOLD_NS,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__("thread", THREAD_SECOND, interval_ns, hold_ns, clock)
        self._targets = targets
        self._root = root
        self._is_launcher = is_launcher
        self._threads: dict[tuple[int, int], _Thread] = {}
        self._looked_ns: int | None = None
        self._lists: dict[int, _Threads] = {}
        self._sweep_due_ns = 0

    def start(self) -> None:
        """Take the counters that the first interval begins with.

        Raises:
            ProbeError: the kernel keeps no scheduling times.
        """
        path = f"{self._root}/self/schedstat"
        if _times(self._files.read(path)) is None:
            try:
                os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            except FileNotFoundError:
                pass
            except OSError as error:
                raise ProbeError(
                    f"{path} cannot be read ({error.strerror}), so the running time of threads is "
                    f"not known; {remedy(error)}"
                ) from None
            raise ProbeError(
                "the kernel has no /proc/PID/schedstat, so the running time of threads is not "
                "known; use a kernel built with CONFIG_SCHED_INFO"
            )
        self._take_sample(self._clock())
        self._pacer.begin(self._clock())

    def sample(self, now_ns: int) -> list[_Reading]:
        """Return a reading of each thread."""
        readings: list[_Reading] = []
        looked_ns = self._clock()
        for pid in sorted(self._targets.pids()):
            listed = self._list(pid)
            if listed is None:
                continue
            times = listed.files.read(self._clock)
            launching = None
            if self._is_launcher is not None:
                launching = [self._is_launcher(pid, thread.tid) for thread in listed.threads]
            looks: dict[int, _Look] = {}
            if looked_ns >= listed.due_ns or (launching is not None and any(launching)):
                looks = self._look_at(listed, times, launching)
            readings.append(_Reading(listed.threads, times, launching, looks))
            if not all(data for data, _ in times):
                self._lists.pop(pid, None)
                for thread, (data, _) in zip(listed.threads, times, strict=True):
                    if not data:
                        self._threads.pop((pid, thread.tid), None)
        if now_ns >= self._sweep_due_ns:
            self._sweep_due_ns = now_ns + _SWEEP_NS
            self._files.sweep()
            self._lists.clear()
            self._threads = {
                (thread.pid, thread.tid): thread
                for reading in readings
                for thread, (data, _) in zip(reading.threads, reading.times, strict=True)
                if data
            }
        self._looked_ns = looked_ns
        return readings

    def _look_at(
        self,
        listed: _Threads,
        times: Sequence[tuple[bytes | None, int]],
        launching: Sequence[bool | None] | None,
    ) -> dict[int, _Look]:
        """Look at what else is to be told of those threads whose time has come."""
        looks: dict[int, _Look] = {}
        due_ns = times[0][1] + _LOOK_NS if times else 0
        for place, (thread, (data, time_ns)) in enumerate(zip(listed.threads, times, strict=True)):
            looked, is_launcher = thread.looked_ns, bool(launching and launching[place])
            if data and (looked is None or is_launcher or time_ns - looked >= _LOOK_NS):
                looks[place] = self._look(thread, time_ns, is_launcher)
            if thread.looked_ns is not None:
                due_ns = min(due_ns, thread.looked_ns + _LOOK_NS)
        listed.due_ns = due_ns
        return looks

    def _look(self, thread: _Thread, time_ns: int, is_launcher: bool) -> _Look:
        """Look at what else is to be told of a thread now."""
        is_new, thread.looked_ns = thread.looked_ns is None, time_ns
        status = self._files.read(f"{thread.folder}/status") or b""
        sched = self._files.read(f"{thread.folder}/sched") if is_launcher else None
        return _Look(status, sched, self._born(thread, time_ns, sched) if is_new else None)

    def to_columns(self, readings: Sequence[_Reading]) -> Columns:
        """Return a row for each reading whose interval's begin is known."""
        rows: list[_Row] = []
        for threads, times, launching, looks in readings:
            for place, (thread, (data, time_ns)) in enumerate(zip(threads, times, strict=True)):
                is_launcher = None if launching is None else launching[place]
                row = _row(thread, data, time_ns, is_launcher, looks.get(place)) if data else None
                if row is not None:
                    rows.append(row)
        return dict(zip(_Row._fields, zip(*rows, strict=True), strict=True)) if rows else {}

    def _list(self, pid: int) -> _Threads | None:
        """Threads of a process; looked up again when their number changed or one had ended."""
        try:
            n_links = os.stat(f"{self._root}/{pid}/task").st_nlink  # noqa: PTH116 - twice as fast
        except OSError:
            return None
        known = self._lists.get(pid)
        if known is None or known.n_links != n_links:
            threads = [self._thread(pid, tid) for tid in proc.list_tids(pid, self._root)]
            files = self._files.group([f"{thread.folder}/schedstat" for thread in threads])
            known = self._lists[pid] = _Threads(n_links, threads, files)
        return known

    def _thread(self, pid: int, tid: int) -> _Thread:
        """The thread of these ids, known or new."""
        thread = self._threads.get((pid, tid))
        if thread is None:
            thread = _Thread(pid, tid, f"{self._root}/{pid}/task/{tid}")
            self._threads[pid, tid] = thread
        return thread

    def _born(self, thread: _Thread, time_ns: int, sched: bytes | None) -> _Birth | None:
        """The birth of a thread that began since the last look, else None."""
        if self._looked_ns is None:
            return None
        stat = proc.read_stat(thread.pid, self._root, thread.tid)
        if stat is None:
            return None
        start_ns = proc.start_time_ns(stat.start_ticks, proc.boottime_offset_ns())
        tick_ns = SECOND_NS // proc.TICKS_PER_SECOND
        if start_ns + tick_ns < self._looked_ns or start_ns >= time_ns:
            return None
        return _Birth(max(start_ns, self._looked_ns), None if sched is None else 0)


def _times(data: bytes | None) -> tuple[int, int] | None:
    """Running and waiting time in ns since a thread's start, of ``schedstat``; None for others."""
    words = (data or b"").split()
    try:
        return int(words[0]), int(words[1])
    except (ValueError, IndexError):
        return None


def _row(
    thread: _Thread, data: bytes, time_ns: int, is_launcher: bool | None, look: _Look | None
) -> _Row | None:
    """Take over what was read, and return its row; None when the interval's begin is not known."""
    times = _times(data)
    if times is None:
        return None
    running_ns, waiting_ns = times
    begin_ns, running, waiting = thread.time_ns, running_ns, waiting_ns
    if begin_ns is not None and running_ns < thread.running_ns:
        begin_ns = None  # another thread of the same id
        _forget(thread, is_looked_at=look is not None)
    elif begin_ns is not None:
        running -= thread.running_ns
        waiting -= thread.waiting_ns
    thread.time_ns, thread.running_ns, thread.waiting_ns = time_ns, running_ns, waiting_ns
    n_voluntary = n_involuntary = n_migrations = None
    if look is not None:
        if begin_ns is None and look.birth is not None:
            begin_ns = look.birth.time_ns
            thread.n_voluntary = thread.n_involuntary = 0
            thread.n_migrations = look.birth.n_migrations
        n_voluntary, n_involuntary, n_migrations = _take_over(thread, look)
    elif running or thread.state in _UNSETTLED:
        thread.state = None
    else:  # it slept all the time, and so cannot have switched
        n_voluntary = None if thread.n_voluntary is None else 0
        n_involuntary = None if thread.n_involuntary is None else 0
        n_migrations = None if thread.n_migrations is None else 0
    if begin_ns is None or time_ns <= begin_ns:
        return None
    duration = time_ns - begin_ns
    running = min(running, duration)
    waiting = min(max(waiting, 0), duration - running)
    return _Row(
        begin_ns,
        duration,
        thread.pid,
        thread.tid,
        thread.name,
        running,
        waiting,
        duration - running - waiting,
        n_voluntary,
        n_involuntary,
        n_migrations,
        thread.state,
        is_launcher,
    )


def _forget(thread: _Thread, is_looked_at: bool) -> None:
    """Drop what was told of an earlier thread of the same id."""
    thread.name = thread.state = None
    thread.n_voluntary = thread.n_involuntary = thread.n_migrations = None
    if not is_looked_at:
        thread.looked_ns = None


def _take_over(thread: _Thread, look: _Look) -> tuple[int | None, int | None, int | None]:
    """Take over name, state and switches, and return how many of each kind, and migrations, there
    were since they were told before.
    """
    data = look.status
    thread.name = thread.state = None
    state = data.find(b"\nState:\t")
    if data.startswith(b"Name:\t") and state > 0:
        thread.name = data[6 : data.index(b"\n")].decode("utf-8", "replace")
        thread.state = data[state + 8 : state + 9].decode("ascii", "replace")
    before = (thread.n_voluntary, thread.n_involuntary, thread.n_migrations)
    thread.n_voluntary = thread.n_involuntary = None
    words = data[data.rfind(_SWITCHES) + 1 :].split()
    if len(words) >= 4 and words[1].isdigit() and words[3].isdigit():
        thread.n_voluntary, thread.n_involuntary = int(words[1]), int(words[3])
    migrations = _MIGRATIONS.search(look.sched or b"")
    thread.n_migrations = int(migrations[1]) if migrations else None
    now = (thread.n_voluntary, thread.n_involuntary, thread.n_migrations)
    changes = [_change(after, first) for after, first in zip(now, before, strict=True)]
    return changes[0], changes[1], changes[2]


def _change(now: int | None, old: int | None) -> int | None:
    return None if now is None or old is None or now < old else now - old
