"""The probe of the target processes: memory, CPU, faults, files, I/O and affinity."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from analysis.schema import PROCESS_SAMPLE
from probes.host import proc
from probes.host.buffer import SECOND_NS, BeatProbe
from probes.host.containers import ContainerNames
from probes.host.cpus import SYS, numa_nodes, parse_list
from probes.probe import PidSource

#: Lines of ``status`` that are kept.
_KEPT = (b"VmRSS", b"RssAnon", b"RssFile", b"RssShmem", b"VmSwap", b"Cpus_allowed_list")
#: How often memory by kind, affinity, files and I/O are read; they are null in between.
_SLOW_NS = 9 * SECOND_NS // 10
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessProbe(BeatProbe):
    """Samples every target process.

    Args:
        targets: Tells the processes.
        root: Where /proc is.
        system: Where /sys is.
        filesystem: Root of the node's files, where containers are named.
        interval_ns: Time between two samples; what costs the most is read once a second at most.
        hold_ns: Longest time that rows are kept back, to hand them over in bulk.
        clock: CLOCK_MONOTONIC in ns.
    """

    def __init__(
        self,
        targets: PidSource,
        root: Path = proc.PROC,
        system: Path = SYS,
        filesystem: Path = Path("/"),
        interval_ns: int = SECOND_NS,
        hold_ns: int = SECOND_NS,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__("process", PROCESS_SAMPLE, interval_ns, hold_ns, clock)
        self._targets = targets
        self._root = root
        self._cgroups: dict[tuple[int, int], dict[str, str]] = {}
        self._names = ContainerNames(filesystem, clock)
        self._nodes = numa_nodes(system)
        self._slow_ns: int | None = None

    def sample(self, now_ns: int) -> list[dict[str, Any]]:
        """Return a row for each target process."""
        rows = []
        cgroups: dict[tuple[int, int], dict[str, str]] = {}
        is_slow = self._slow_ns is None or now_ns - self._slow_ns >= _SLOW_NS
        if is_slow:
            self._slow_ns = now_ns
        for pid in sorted(self._targets.pids()):
            row = self._read(pid, cgroups, is_slow)
            if row is not None:
                rows.append(row)
        self._cgroups = cgroups
        if is_slow:
            self._files.sweep()
        return rows

    def _read(
        self, pid: int, known: dict[tuple[int, int], dict[str, str]], is_slow: bool
    ) -> dict[str, Any] | None:
        """Columns of one process; None when it has ended."""
        time_ns = self._clock()
        read = self._files.read
        folder = f"{self._root}/{pid}"
        stat = proc.parse_stat(read(f"{folder}/stat") or b"")
        if stat is None or stat.is_dead:
            return None
        slow = self._read_slow(pid, folder) if is_slow else _resident(read(f"{folder}/statm"))
        if slow is None:
            return None
        key = (pid, stat.start_ticks)
        cgroups = self._cgroups.get(key)
        if cgroups is None:
            cgroups = proc.read_cgroups(pid, self._root)
        known[key] = cgroups
        return {
            "time_ns": time_ns,
            "pid": pid,
            "name": stat.name,
            "cpu_user_ns": stat.cpu_user_ns,
            "cpu_system_ns": stat.cpu_system_ns,
            "n_threads": stat.n_threads,
            "n_minor_faults": stat.n_minor_faults,
            "n_major_faults": stat.n_major_faults,
            "numa_node": None if stat.last_cpu is None else self._nodes.get(stat.last_cpu),
            "container": proc.container_id(cgroups),
            "container_name": self._names.name(cgroups),
            **slow,
        }

    def _read_slow(self, pid: int, folder: str) -> dict[str, Any] | None:
        """Columns that cost the most: memory by kind, affinity, files and I/O; None when gone."""
        data = self._files.read(f"{folder}/status")
        if data is None:
            return None
        status = {name: _line(data, name) for name in _KEPT}
        read_bytes, write_bytes = _io(self._files.read(f"{folder}/io"))
        cpus = (status[b"Cpus_allowed_list"] or b"").decode("ascii", "replace") or None
        return {
            "rss_bytes": _kilobytes(status[b"VmRSS"]),
            "rss_anon_bytes": _kilobytes(status[b"RssAnon"]),
            "rss_file_bytes": _kilobytes(status[b"RssFile"]),
            "rss_shmem_bytes": _kilobytes(status[b"RssShmem"]),
            "swap_bytes": _kilobytes(status[b"VmSwap"]),
            "n_fds": _n_fds(pid, self._root),
            "read_bytes": read_bytes,
            "write_bytes": write_bytes,
            "n_cpus_allowed": len(parse_list(cpus)) or None,
            "cpus_allowed": cpus,
        }


def _resident(data: bytes | None) -> dict[str, Any] | None:
    """Resident memory of a ``statm`` file, in all and anonymous; None when it is gone."""
    words = (data or b"").split()
    if len(words) < 3 or not words[1].isdigit() or not words[2].isdigit():
        return None
    resident, shared = int(words[1]), int(words[2])
    return {
        "rss_bytes": resident * _PAGE_BYTES,
        "rss_anon_bytes": (resident - shared) * _PAGE_BYTES if resident >= shared else None,
    }


def _kilobytes(text: bytes | None) -> int | None:
    """Bytes of a value like ``123 kB``."""
    words = (text or b"").split()
    return int(words[0]) * 1024 if words and words[0].isdigit() else None


def _line(data: bytes, name: bytes) -> bytes | None:
    """Value of a line ``name: value`` that is not the first; None without one."""
    begin = data.find(b"\n" + name + b":")
    if begin < 0:
        return None
    begin += len(name) + 2
    end = data.find(b"\n", begin)
    return data[begin : end if end >= 0 else len(data)].strip()


def _n_fds(pid: int, root: Path) -> int | None:
    """Open files: the size of the folder since Linux 6.2, counted before."""
    path = f"{root}/{pid}/fd"
    try:
        size = os.stat(path).st_size if root == proc.PROC else 0  # noqa: PTH116 - twice as fast
        if size:
            return size
        with os.scandir(path) as entries:
            return sum(1 for _ in entries)
    except OSError:
        return None


def _io(data: bytes | None) -> tuple[int | None, int | None]:
    """Bytes read from and written to storage."""
    values = [_line(data or b"", name) for name in (b"read_bytes", b"write_bytes")]
    numbers = [int(value) if value and value.isdigit() else None for value in values]
    return numbers[0], numbers[1]
