"""The probe of the targets' threads: running, waiting and sleeping time of each, second by second.

Times come from ``/proc/PID/task/TID/schedstat``. ``status`` (name, state, context switches) is
read only for threads that ran since the last look (one that did not run cannot have switched), and
of threads that do not launch about once a second: between, their switches are null.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.schema import THREAD_SECOND
from probes.host import proc
from probes.host.buffer import SECOND_NS, BeatProbe
from probes.probe import PidSource, ProbeError

_SWITCHES = b"\nvoluntary_ctxt_switches:"
_SWEEP_NS = SECOND_NS
#: How often name, state and switches are looked up of a thread that does not launch.
_LOOK_NS = 9 * SECOND_NS // 10
_MIGRATIONS = re.compile(rb"^se\.nr_migrations\s*:\s*(\d+)", re.MULTILINE)
#: States that may change without the thread running: they are not taken over.
_UNSETTLED = ("R", "D", None)


@dataclass
class _Thread:
    """Last counters of one thread.

    ``time_ns`` is when its times were read, ``looked_ns`` when the rest was.
    """

    time_ns: int
    running_ns: int
    waiting_ns: int
    looked_ns: int = 0
    name: str | None = None
    state: str | None = None
    n_voluntary: int | None = None
    n_involuntary: int | None = None
    n_migrations: int | None = None


class ThreadProbe(BeatProbe):
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
        self._tids: dict[int, tuple[int, list[int]]] = {}
        self._sweep_due_ns = 0

    def start(self) -> None:
        """Take the counters that the first interval begins with.

        Raises:
            ProbeError: the kernel keeps no scheduling times.
        """
        if self._schedstat(f"{self._root}/self") is None:
            raise ProbeError(
                "the kernel has no /proc/PID/schedstat, so the running time of threads is not "
                "known; use a kernel built with CONFIG_SCHED_INFO"
            )
        self._take_sample(self._clock())
        self._pacer.begin(self._clock())

    def sample(self, now_ns: int) -> list[dict[str, Any]]:
        """Return a row for each thread whose interval's begin is known."""
        rows: list[dict[str, Any]] = []
        threads: dict[tuple[int, int], _Thread] = {}
        looked_ns = self._clock()
        for pid in sorted(self._targets.pids()):
            for tid in self._list_tids(pid):
                if not self._read(pid, tid, threads, rows):
                    self._tids.pop(pid, None)
        self._threads = threads
        if now_ns >= self._sweep_due_ns:
            self._sweep_due_ns = now_ns + _SWEEP_NS
            self._files.sweep()
            self._tids.clear()
        self._looked_ns = looked_ns
        return rows

    def _read(
        self,
        pid: int,
        tid: int,
        threads: dict[tuple[int, int], _Thread],
        rows: list[dict[str, Any]],
    ) -> bool:
        """Read one thread, and add its row when the interval's begin is known; False: gone."""
        folder = f"{self._root}/{pid}/task/{tid}"
        times = self._schedstat(folder)
        time_ns = self._clock()
        if times is None:
            return False
        running_ns, waiting_ns = times
        old = self._threads.get((pid, tid))
        if old is not None and running_ns < old.running_ns:
            old = None
        now = _Thread(time_ns, running_ns, waiting_ns)
        threads[pid, tid] = now
        is_launcher = self._is_launcher(pid, tid) if self._is_launcher else None
        if old is None:
            self._identify(folder, now, bool(is_launcher))
            old = self._born(pid, tid, now)
            if old is None:
                return True
        elif is_launcher or time_ns - old.looked_ns >= _LOOK_NS:
            self._identify(folder, now, bool(is_launcher))
        else:
            now.name, now.n_migrations, now.looked_ns = old.name, old.n_migrations, old.looked_ns
            now.n_voluntary, now.n_involuntary = old.n_voluntary, old.n_involuntary
            if running_ns == old.running_ns and old.state not in _UNSETTLED:
                now.state = old.state
        is_told = now.looked_ns == now.time_ns or now.state is not None
        duration = now.time_ns - old.time_ns
        if duration <= 0:
            return True
        running = min(running_ns - old.running_ns, duration)
        waiting = min(max(waiting_ns - old.waiting_ns, 0), duration - running)
        rows.append(
            {
                "start_ns": old.time_ns,
                "duration_ns": duration,
                "pid": pid,
                "tid": tid,
                "name": now.name,
                "running_ns": running,
                "waiting_ns": waiting,
                "sleeping_ns": duration - running - waiting,
                "n_voluntary_switches": _change(now.n_voluntary, old.n_voluntary, is_told),
                "n_involuntary_switches": _change(now.n_involuntary, old.n_involuntary, is_told),
                "n_migrations": _change(now.n_migrations, old.n_migrations, is_told),
                "state": now.state,
                "is_launcher": is_launcher,
            }
        )
        return True

    def _list_tids(self, pid: int) -> list[int]:
        """Threads of a process; looked up again when their number changed or one had ended."""
        try:
            n_links = os.stat(f"{self._root}/{pid}/task").st_nlink  # noqa: PTH116 - twice as fast
        except OSError:
            return []
        known = self._tids.get(pid)
        if known is None or known[0] != n_links:
            known = (n_links, proc.list_tids(pid, self._root))
            self._tids[pid] = known
        return known[1]

    def _schedstat(self, folder: str) -> tuple[int, int] | None:
        """Running and waiting time in ns since the thread's start; None when it is gone."""
        words = (self._files.read(f"{folder}/schedstat") or b"").split()
        try:
            return int(words[0]), int(words[1])
        except (ValueError, IndexError):
            return None

    def _born(self, pid: int, tid: int, now: _Thread) -> _Thread | None:
        """Zeroed counters at the birth of a thread that began since the last look, else None."""
        if self._looked_ns is None:
            return None
        stat = proc.read_stat(pid, self._root, tid)
        if stat is None:
            return None
        start_ns = proc.start_time_ns(stat.start_ticks, proc.boottime_offset_ns())
        tick_ns = SECOND_NS // proc.TICKS_PER_SECOND
        if start_ns + tick_ns < self._looked_ns or start_ns >= now.time_ns:
            return None
        return _Thread(
            time_ns=max(start_ns, self._looked_ns),
            looked_ns=now.looked_ns,
            running_ns=0,
            waiting_ns=0,
            n_voluntary=0,
            n_involuntary=0,
            n_migrations=0 if now.n_migrations is not None else None,
        )

    def _identify(self, folder: str, thread: _Thread, is_launcher: bool) -> None:
        """Fill in name, state and switches, and the migrations of a thread that launches."""
        thread.looked_ns = thread.time_ns
        data = self._files.read(f"{folder}/status") or b""
        state = data.find(b"\nState:\t")
        if data.startswith(b"Name:\t") and state > 0:
            thread.name = data[6 : data.index(b"\n")].decode("utf-8", "replace")
            thread.state = data[state + 8 : state + 9].decode("ascii", "replace")
        words = data[data.rfind(_SWITCHES) + 1 :].split()
        if len(words) >= 4 and words[1].isdigit() and words[3].isdigit():
            thread.n_voluntary, thread.n_involuntary = int(words[1]), int(words[3])
        if is_launcher:
            migrations = _MIGRATIONS.search(self._files.read(f"{folder}/sched") or b"")
            thread.n_migrations = int(migrations[1]) if migrations else None


def _change(now: int | None, old: int | None, is_told: bool) -> int | None:
    return None if not is_told or now is None or old is None or now < old else now - old
