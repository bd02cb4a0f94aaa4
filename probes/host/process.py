"""The probe of the target processes: memory, CPU, faults, files, I/O and affinity."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from analysis.schema import PROCESS_SAMPLE, Table
from probes.host import proc
from probes.host.pacing import Pacer
from probes.probe import Batch, SourceReport, make_batch

SECOND_NS = 1_000_000_000


class PidSource(Protocol):
    """Whatever tells the processes being recorded."""

    def pids(self) -> set[int]:
        """Return the ids of the processes."""


class ProcessProbe:
    """Samples every target process.

    Args:
        targets: Tells the processes.
        root: Where /proc is.
        interval_ns: Time between two samples.
        clock: CLOCK_MONOTONIC in ns.
    """

    def __init__(
        self,
        targets: PidSource,
        root: Path = proc.PROC,
        interval_ns: int = SECOND_NS,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.name = "process"
        self.tables: Sequence[Table] = (PROCESS_SAMPLE,)
        self.period_ns = interval_ns
        self._targets = targets
        self._root = root
        self._clock = clock
        self._pacer = Pacer(interval_ns)
        self._n_rows = 0
        self._cost_ns = 0
        self._containers: dict[tuple[int, int], str | None] = {}

    def start(self) -> None:
        """Begin observing; the first drain samples."""

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Return a row for each process when a sample is due."""
        return self._sample() if self._pacer.is_due(now_ns) else []

    def stop(self) -> Iterable[Batch]:
        """Return a last sample."""
        return self._sample()

    def report(self) -> SourceReport:
        """Return what was sampled, at what CPU time."""
        return SourceReport(self.name, self._n_rows, 0, self._cost_ns)

    def _sample(self) -> list[Batch]:
        begin = time.thread_time_ns()
        rows = []
        containers: dict[tuple[int, int], str | None] = {}
        for pid in sorted(self._targets.pids()):
            row = self._read(pid, containers)
            if row is not None:
                rows.append(row)
        self._containers = containers
        batches = []
        if rows:
            names = PROCESS_SAMPLE.column_names
            columns = {name: [row.get(name) for row in rows] for name in names}
            batches.append(make_batch(PROCESS_SAMPLE, columns))
        self._n_rows += len(rows)
        self._cost_ns += time.thread_time_ns() - begin
        return batches

    def _read(
        self, pid: int, containers: dict[tuple[int, int], str | None]
    ) -> dict[str, Any] | None:
        """Columns of one process; None when it has ended."""
        time_ns = self._clock()
        stat = proc.read_stat(pid, self._root)
        status = proc.read_status(pid, self._root)
        if stat is None or status is None or stat.is_dead:
            return None
        key = (pid, stat.start_ticks)
        container = self._containers.get(key)
        if key not in self._containers:
            container = proc.container_id(proc.read_cgroups(pid, self._root))
        containers[key] = container
        read_bytes, write_bytes = _io(pid, self._root)
        cpus = status.get("Cpus_allowed_list") or None
        return {
            "time_ns": time_ns,
            "pid": pid,
            "name": stat.name,
            "rss_bytes": _kilobytes(status.get("VmRSS")),
            "rss_anon_bytes": _kilobytes(status.get("RssAnon")),
            "rss_file_bytes": _kilobytes(status.get("RssFile")),
            "rss_shmem_bytes": _kilobytes(status.get("RssShmem")),
            "swap_bytes": _kilobytes(status.get("VmSwap")),
            "cpu_user_ns": stat.cpu_user_ns,
            "cpu_system_ns": stat.cpu_system_ns,
            "n_threads": stat.n_threads,
            "n_minor_faults": stat.n_minor_faults,
            "n_major_faults": stat.n_major_faults,
            "n_fds": _n_fds(pid, self._root),
            "read_bytes": read_bytes,
            "write_bytes": write_bytes,
            "n_cpus_allowed": count_list(cpus),
            "cpus_allowed": cpus,
            "container": container,
        }


def count_list(text: str | None) -> int | None:
    """Return how many numbers a kernel list such as ``0-3,8`` holds; None when it is none."""
    if not text:
        return None
    total = 0
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            total += int(last or first) - int(first) + 1
    except ValueError:
        return None
    return total


def _kilobytes(text: str | None) -> int | None:
    """Bytes of a value like ``123 kB``."""
    words = (text or "").split()
    return int(words[0]) * 1024 if words and words[0].isdecimal() else None


def _n_fds(pid: int, root: Path) -> int | None:
    try:
        with os.scandir(f"{root}/{pid}/fd") as entries:
            return sum(1 for _ in entries)
    except OSError:
        return None


def _io(pid: int, root: Path) -> tuple[int | None, int | None]:
    """Bytes read from and written to storage."""
    data = proc.read_bytes(f"{root}/{pid}/io")
    fields: dict[bytes, int] = {}
    for line in (data or b"").splitlines():
        key, _, value = line.partition(b":")
        if value.strip().isdigit():
            fields[key] = int(value)
    return fields.get(b"read_bytes"), fields.get(b"write_bytes")
