"""The probe of the targets' threads: running, waiting and sleeping time of each, second by second.

Times come from ``/proc/PID/task/TID/schedstat``. ``status`` (name, state, context switches) is
read only for threads that ran since the last look (one that did not run cannot have switched), and
of threads that do not launch about once a second: between, their switches are null.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from analysis.schema import THREAD_SECOND
from probes.host import proc
from probes.host.buffer import SECOND_NS, BeatProbe, Columns
from probes.probe import PidSource, ProbeError

_SWITCHES = b"\nvoluntary_ctxt_switches:"
_SWEEP_NS = SECOND_NS
#: How often name, state and switches are looked up of a thread that does not launch.
_LOOK_NS = 9 * SECOND_NS // 10
_MIGRATIONS = re.compile(rb"^se\.nr_migrations\s*:\s*(\d+)", re.MULTILINE)
#: States that may change without the thread running: they are not taken over.
_UNSETTLED = ("R", "D", None)


class _Counters(NamedTuple):
    """Counters of a thread at one time; what is null was not told."""

    time_ns: int
    running_ns: int
    waiting_ns: int
    n_voluntary: int | None = None
    n_involuntary: int | None = None
    n_migrations: int | None = None


@dataclass(slots=True, eq=False)
class _Thread:
    """One thread: its files, and what was told last."""

    pid: int
    tid: int
    folder: str
    times: str
    #: When name, state and switches were looked up last; None: not yet, or of another thread.
    looked_ns: int | None = None
    last: _Counters | None = None
    name: str | None = None
    state: str | None = None


class _Reading(NamedTuple):
    """What the files of a thread said at one time.

    ``status`` is None when it was not looked at; ``birth`` are the counters that the first reading
    of a thread is to be counted from.
    """

    thread: _Thread
    time_ns: int
    times: bytes
    is_launcher: bool | None
    status: bytes | None
    sched: bytes | None
    birth: _Counters | None


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
        hold_ns: int = SECOND_NS,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__("thread", THREAD_SECOND, interval_ns, hold_ns, clock)
        self._targets = targets
        self._root = root
        self._is_launcher = is_launcher
        self._threads: dict[tuple[int, int], _Thread] = {}
        self._looked_ns: int | None = None
        self._lists: dict[int, tuple[int, list[_Thread]]] = {}
        self._sweep_due_ns = 0

    def start(self) -> None:
        """Take the counters that the first interval begins with.

        Raises:
            ProbeError: the kernel keeps no scheduling times.
        """
        if _times(self._files.read(f"{self._root}/self/schedstat")) is None:
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
            for thread in self._list(pid):
                times = self._files.read(thread.times)
                if times:
                    readings.append(self._read(thread, times))
                else:
                    self._threads.pop((pid, thread.tid), None)
                    self._lists.pop(pid, None)
        if now_ns >= self._sweep_due_ns:
            self._sweep_due_ns = now_ns + _SWEEP_NS
            self._files.sweep()
            self._lists.clear()
            seen = {(reading.thread.pid, reading.thread.tid) for reading in readings}
            self._threads = {key: self._threads[key] for key in seen}
        self._looked_ns = looked_ns
        return readings

    def _read(self, thread: _Thread, times: bytes) -> _Reading:
        """Look at what else is to be told of a thread now."""
        time_ns = self._clock()
        is_launcher = self._is_launcher(thread.pid, thread.tid) if self._is_launcher else None
        looked_ns = thread.looked_ns
        if looked_ns is not None and not is_launcher and time_ns - looked_ns < _LOOK_NS:
            return _Reading(thread, time_ns, times, is_launcher, None, None, None)
        thread.looked_ns = time_ns
        status = self._files.read(f"{thread.folder}/status") or b""
        sched = self._files.read(f"{thread.folder}/sched") if is_launcher else None
        birth = self._born(thread, time_ns, sched) if looked_ns is None else None
        return _Reading(thread, time_ns, times, is_launcher, status, sched, birth)

    def to_columns(self, readings: Sequence[_Reading]) -> Columns:
        """Return a row for each reading whose interval's begin is known."""
        rows: list[_Row] = []
        for reading in readings:
            times = _times(reading.times)
            row = None if times is None else _row(reading, *times)
            if row is not None:
                rows.append(row)
        return dict(zip(_Row._fields, zip(*rows, strict=True), strict=True)) if rows else {}

    def _list(self, pid: int) -> list[_Thread]:
        """Threads of a process; looked up again when their number changed or one had ended."""
        try:
            n_links = os.stat(f"{self._root}/{pid}/task").st_nlink  # noqa: PTH116 - twice as fast
        except OSError:
            return []
        known = self._lists.get(pid)
        if known is None or known[0] != n_links:
            threads = [self._thread(pid, tid) for tid in proc.list_tids(pid, self._root)]
            known = (n_links, threads)
            self._lists[pid] = known
        return known[1]

    def _thread(self, pid: int, tid: int) -> _Thread:
        """The thread of these ids, known or new."""
        thread = self._threads.get((pid, tid))
        if thread is None:
            folder = f"{self._root}/{pid}/task/{tid}"
            thread = _Thread(pid, tid, folder, f"{folder}/schedstat")
            self._threads[pid, tid] = thread
        return thread

    def _born(self, thread: _Thread, time_ns: int, sched: bytes | None) -> _Counters | None:
        """Zeroed counters at the birth of a thread that began since the last look, else None."""
        if self._looked_ns is None:
            return None
        stat = proc.read_stat(thread.pid, self._root, thread.tid)
        if stat is None:
            return None
        start_ns = proc.start_time_ns(stat.start_ticks, proc.boottime_offset_ns())
        tick_ns = SECOND_NS // proc.TICKS_PER_SECOND
        if start_ns + tick_ns < self._looked_ns or start_ns >= time_ns:
            return None
        n_migrations = None if sched is None else 0
        return _Counters(max(start_ns, self._looked_ns), 0, 0, 0, 0, n_migrations)


def _times(data: bytes | None) -> tuple[int, int] | None:
    """Running and waiting time in ns since a thread's start, of ``schedstat``; None for others."""
    words = (data or b"").split()
    try:
        return int(words[0]), int(words[1])
    except (ValueError, IndexError):
        return None


def _row(reading: _Reading, running_ns: int, waiting_ns: int) -> _Row | None:
    """Take over a reading, and return its row; None when the interval's begin is not known."""
    thread, old = reading.thread, reading.thread.last
    if old is not None and running_ns < old.running_ns:
        old = None  # another thread of the same id
        if reading.status is None:
            thread.name = thread.state = thread.looked_ns = None
    counted = _counted(reading, old, old is not None and running_ns == old.running_ns)
    now = _Counters(reading.time_ns, running_ns, waiting_ns, *counted)
    thread.last = now
    begin = old or reading.birth
    if begin is None or now.time_ns <= begin.time_ns:
        return None
    duration = now.time_ns - begin.time_ns
    running = min(running_ns - begin.running_ns, duration)
    waiting = min(max(waiting_ns - begin.waiting_ns, 0), duration - running)
    is_told = reading.status is not None or thread.state is not None
    return _Row(
        begin.time_ns,
        duration,
        thread.pid,
        thread.tid,
        thread.name,
        running,
        waiting,
        duration - running - waiting,
        _change(now.n_voluntary, begin.n_voluntary, is_told),
        _change(now.n_involuntary, begin.n_involuntary, is_told),
        _change(now.n_migrations, begin.n_migrations, is_told),
        thread.state,
        reading.is_launcher,
    )


def _counted(
    reading: _Reading, old: _Counters | None, is_still: bool
) -> tuple[int | None, int | None, int | None]:
    """Take over name and state, and return the switches of both kinds and the migrations.

    Args:
        reading: What was read.
        old: The counters before.
        is_still: Whether the thread did not run since.
    """
    thread, data = reading.thread, reading.status
    if data is None:
        if not is_still or thread.state in _UNSETTLED:
            thread.state = None
        return (None, None, None) if old is None else old[3:]
    thread.name = thread.state = None
    state = data.find(b"\nState:\t")
    if data.startswith(b"Name:\t") and state > 0:
        thread.name = data[6 : data.index(b"\n")].decode("utf-8", "replace")
        thread.state = data[state + 8 : state + 9].decode("ascii", "replace")
    n_voluntary = n_involuntary = None
    words = data[data.rfind(_SWITCHES) + 1 :].split()
    if len(words) >= 4 and words[1].isdigit() and words[3].isdigit():
        n_voluntary, n_involuntary = int(words[1]), int(words[3])
    migrations = _MIGRATIONS.search(reading.sched or b"")
    return n_voluntary, n_involuntary, int(migrations[1]) if migrations else None


def _change(now: int | None, old: int | None, is_told: bool) -> int | None:
    return None if not is_told or now is None or old is None or now < old else now - old
