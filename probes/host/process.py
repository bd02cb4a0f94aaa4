"""The probe of the target processes: memory, CPU, faults, files, I/O and affinity."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from analysis.schema import PROCESS_SAMPLE
from probes.host import proc
from probes.host.buffer import HOLD_NS, SECOND_NS, BeatProbe, Columns, columns_of
from probes.host.containers import ContainerNames
from probes.host.cpus import SYS, numa_nodes, parse_list
from probes.probe import PidSource

#: Lines of ``status`` that are kept.
_KEPT = (b"VmRSS", b"RssAnon", b"RssFile", b"RssShmem", b"VmSwap", b"Cpus_allowed_list")
#: How often memory by kind, affinity, files and I/O are read; they are null in between.
_SLOW_NS = 9 * SECOND_NS // 10
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, eq=False)
class _Process:
    """One process, told apart from an earlier one of the same id by its start."""

    start_ticks: int
    cgroups: dict[str, str]
    container: str | None


class _Slow(NamedTuple):
    """What costs the most to ask: the files ``status`` and ``io``, and the number of files."""

    status: bytes
    io: bytes | None
    n_fds: int | None


class _Reading(NamedTuple):
    """What the files of a process said at one time; ``statm`` is read where ``slow`` is not."""

    time_ns: int
    pid: int
    process: _Process
    stat: bytes
    statm: bytes | None
    slow: _Slow | None


class ProcessProbe(BeatProbe[_Reading]):
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
        hold_ns: int = HOLD_NS,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__("process", PROCESS_SAMPLE, interval_ns, hold_ns, clock)
        self._targets = targets
        self._root = root
        self._processes: dict[int, _Process] = {}
        #: What is read each time, two files for each process.
        self._group = self._files.group(())
        self._names = ContainerNames(filesystem, clock)
        self._nodes = numa_nodes(system)
        self._slow_ns: int | None = None

    def sample(self, now_ns: int) -> list[_Reading]:
        """Return a reading of each target process."""
        pids = self._targets.pids()
        is_slow = self._slow_ns is None or now_ns - self._slow_ns >= _SLOW_NS
        if is_slow:
            self._slow_ns = now_ns
            self._files.sweep()
            self._processes = {pid: item for pid, item in self._processes.items() if pid in pids}
        elif pids == self._processes.keys():
            return self._read_all()
        readings = [self._read(pid, is_slow) for pid in sorted(pids)]
        self._group = self._files.group(
            [f"{self._root}/{pid}/{name}" for pid in self._processes for name in ("stat", "statm")]
        )
        return [reading for reading in readings if reading is not None]

    def _read_all(self) -> list[_Reading]:
        """Read what is read each time of the processes that are known, in one go."""
        told = self._group.read(self._clock)
        return [
            _Reading(time_ns, pid, process, stat, statm, None)
            for (pid, process), (stat, time_ns), (statm, _) in zip(
                self._processes.items(), told[::2], told[1::2], strict=True
            )
            if stat
        ]

    def _read(self, pid: int, is_slow: bool) -> _Reading | None:
        """Read the files of one process; None when it has ended."""
        time_ns = self._clock()
        read = self._files.read
        folder = f"{self._root}/{pid}"
        stat = read(f"{folder}/stat")
        process = self._identify(pid, stat) if stat else None
        if stat is None or process is None:
            return None
        if not is_slow:
            return _Reading(time_ns, pid, process, stat, read(f"{folder}/statm"), None)
        status = read(f"{folder}/status")
        if status is None:
            return None
        slow = _Slow(status, read(f"{folder}/io"), _n_fds(pid, self._root))
        return _Reading(time_ns, pid, process, stat, None, slow)

    def _identify(self, pid: int, data: bytes) -> _Process | None:
        """The process that a ``stat`` file is of, known or new; None when it has ended."""
        stat = proc.parse_stat(data)
        if stat is None or stat.is_dead:
            return None
        process = self._processes.get(pid)
        if process is None or process.start_ticks != stat.start_ticks:
            cgroups = proc.read_cgroups(pid, self._root)
            process = _Process(stat.start_ticks, cgroups, proc.container_id(cgroups))
            self._processes[pid] = process
        return process

    def to_columns(self, readings: Sequence[_Reading]) -> Columns:
        """Return a row for each reading of a process that had not ended."""
        rows: list[dict[str, Any]] = []
        names: dict[_Process, str | None] = {}
        for reading in readings:
            process = reading.process
            if process not in names:
                names[process] = self._names.name(process.cgroups)
            stat = proc.parse_stat(reading.stat)
            memory = _resident(reading.statm) if reading.slow is None else _slow(reading.slow)
            if stat is None or stat.is_dead or memory is None:
                continue
            rows.append(
                {
                    "time_ns": reading.time_ns,
                    "pid": reading.pid,
                    "name": stat.name,
                    "cpu_user_ns": stat.cpu_user_ns,
                    "cpu_system_ns": stat.cpu_system_ns,
                    "n_threads": stat.n_threads,
                    "n_minor_faults": stat.n_minor_faults,
                    "n_major_faults": stat.n_major_faults,
                    "numa_node": None if stat.last_cpu is None else self._nodes.get(stat.last_cpu),
                    "container": process.container,
                    "container_name": names[process],
                    **memory,
                }
            )
        return columns_of(rows)


def _slow(slow: _Slow) -> dict[str, Any]:
    """Columns that cost the most: memory by kind, affinity, files and I/O."""
    status = {name: _line(slow.status, name) for name in _KEPT}
    read_bytes, write_bytes = _io(slow.io)
    cpus = (status[b"Cpus_allowed_list"] or b"").decode("ascii", "replace") or None
    return {
        "rss_bytes": _kilobytes(status[b"VmRSS"]),
        "rss_anon_bytes": _kilobytes(status[b"RssAnon"]),
        "rss_file_bytes": _kilobytes(status[b"RssFile"]),
        "rss_shmem_bytes": _kilobytes(status[b"RssShmem"]),
        "swap_bytes": _kilobytes(status[b"VmSwap"]),
        "n_fds": slow.n_fds,
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
