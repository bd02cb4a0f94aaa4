"""The probe of the host and of the targets' cgroups: CPU, load, pressure, memory, quota."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from analysis.schema import HOST_SAMPLE
from probes.host import proc
from probes.host.buffer import HOLD_NS, SECOND_NS, BeatProbe, Columns, columns_of
from probes.host.cgroup import CgroupMount, cgroups_of, find_mounts, is_setting, sample_cgroups
from probes.host.cpus import SYS, IdleStates
from probes.host.held import ReadFile
from probes.host.pressure import RESOURCES, read_pressure
from probes.probe import PidSource

_NS_PER_TICK = SECOND_NS // proc.TICKS_PER_SECOND
#: Lines of meminfo and vmstat that are read; picking them costs a fifth of splitting all.
_MEMORY = re.compile(rb"^(MemAvailable|MemTotal|SwapTotal|SwapFree): *(\d+)", re.MULTILINE)
_VIRTUAL = re.compile(rb"^(pswpin|pswpout|pgmajfault) (\d+)$", re.MULTILINE)
_RUNNABLE = b"\nprocs_running "
#: How often what is slow to tell is read: counts of pages, and what a cgroup adds up over CPUs.
_SLOW_NS = 9 * SECOND_NS // 10
#: How often the idle states are read: one file per CPU and state.
_IDLE_NS = 10 * SECOND_NS
#: How often the mounts of cgroups are looked up again.
_MOUNTS_NS = 60 * SECOND_NS


class _Reading(NamedTuple):
    """What the files of the host and of cgroups said at one time, by path.

    ``is_slow``: also what is read about once a second, settings among it; ``idle``: columns about
    idle states.
    """

    time_ns: int
    is_slow: bool
    cgroups: frozenset[tuple[str, str]]
    mounts: list[CgroupMount]
    files: Mapping[str, bytes | None]
    idle: Mapping[str, int]


class HostProbe(BeatProbe[_Reading]):
    """Samples the host, and each cgroup of the targets that limits them.

    Args:
        targets: Tells the processes.
        root: Where /proc is.
        filesystem: What goes before the mount points of cgroups.
        system: Where /sys is.
        interval_ns: Time between two samples.
        hold_ns: Longest time that rows are kept back, to hand them over in bulk.
        clock: CLOCK_MONOTONIC in ns.
    """

    def __init__(
        self,
        targets: PidSource,
        root: Path = proc.PROC,
        filesystem: str = "",
        system: Path = SYS,
        interval_ns: int = SECOND_NS,
        hold_ns: int = HOLD_NS,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__("host", HOST_SAMPLE, interval_ns, hold_ns, clock)
        self._targets = targets
        self._root = root
        self._filesystem = filesystem
        self._mounts = find_mounts(root, filesystem)
        self._mounts_due_ns = 0
        self._second_ns: int | None = None
        self._idle_states = IdleStates(system)
        self._idle_due_ns = 0
        self._pids: set[int] = set()
        self._cgroups: frozenset[tuple[str, str]] = frozenset()
        #: Paths of what is read at each sample, and about once a second.
        self._paths: dict[bool, tuple[str, ...]] = {}
        #: Files of settings as they were read last.
        self._settings: dict[str, bytes | None] = {}

    def sample(self, now_ns: int) -> list[_Reading]:
        """Return a reading of the host and of each cgroup of the targets."""
        time_ns = self._clock()
        if time_ns >= self._mounts_due_ns:
            self._mounts = find_mounts(self._root, self._filesystem)
            self._mounts_due_ns = time_ns + _MOUNTS_NS
            self._paths = {}
        is_slow = self._second_ns is None or time_ns - self._second_ns >= _SLOW_NS
        if is_slow:
            self._second_ns = time_ns
            self._files.sweep()
        read = self._files.read
        pids = self._targets.pids()
        if is_slow or pids != self._pids:
            self._pids, cgroups = pids, frozenset(cgroups_of(pids, self._root, read))
            if cgroups != self._cgroups:
                self._cgroups, self._paths = cgroups, {}
        is_slow = is_slow or not self._paths
        if is_slow not in self._paths:
            self._paths[is_slow] = self._paths_of(is_slow)
        files = {path: read(path) for path in self._paths[is_slow]}
        idle: dict[str, int] = {}
        if time_ns >= self._idle_due_ns:
            self._idle_due_ns = time_ns + _IDLE_NS
            idle = self._idle_states.sample()
        return [_Reading(time_ns, is_slow, self._cgroups, self._mounts, files, idle)]

    def to_columns(self, readings: Sequence[_Reading]) -> Columns:
        """Return for each reading a row for the host, and one for each cgroup that limits."""
        rows: list[dict[str, Any]] = []
        for time_ns, is_slow, cgroups, mounts, told, idle in readings:
            if is_slow:
                self._settings = {path: told[path] for path in told if is_setting(path)}
            files = {**self._settings, **told}
            groups = sample_cgroups(cgroups, mounts, files.get, is_slow)
            host = {**read_host(self._root, files.get, is_slow), **idle}
            scopes: dict[str, Mapping[str, Any]] = {"host": host, **groups}
            rows.extend({"time_ns": time_ns, "scope": name, **row} for name, row in scopes.items())
        return columns_of(rows)

    def _paths_of(self, is_slow: bool) -> tuple[str, ...]:
        """Paths of all files that the rows are made from."""
        paths: dict[str, None] = {}

        def note(path: str) -> None:
            paths[path] = None

        read_host(self._root, note, is_slow)
        sample_cgroups(self._cgroups, self._mounts, note, is_slow)
        return tuple(path for path in paths if is_slow or not is_setting(path))


def read_host(
    root: Path = proc.PROC, read: ReadFile = proc.read_bytes, with_slow: bool = True
) -> dict[str, int | float]:
    """Return the columns of ``host_sample`` of the whole host; what is not known is absent.

    Args:
        root: Where /proc is.
        read: Reads a file.
        with_slow: Also what is slow to tell (pages swapped, faults), changes slowly (load,
            memory) or adds up meanwhile (waits for memory and I/O).
    """
    columns: dict[str, int | float] = {}
    columns.update(_cpu(read(f"{root}/stat") or b""))
    if with_slow:
        words = (read(f"{root}/loadavg") or b"").split()
        try:
            columns["load1"] = float(words[0])
        except (ValueError, IndexError):
            columns.pop("load1", None)
    waited_for = RESOURCES if with_slow else ("cpu",)
    columns.update(read_pressure(f"{root}/pressure", read=read, resources=waited_for))
    memory = _numbers(_MEMORY, read(f"{root}/meminfo") if with_slow else None)
    for name, column in (
        (b"MemAvailable", "memory_available_bytes"),
        (b"MemTotal", "memory_total_bytes"),
    ):
        if name in memory:
            columns[column] = memory[name] * 1024
    if b"SwapTotal" in memory and b"SwapFree" in memory:
        columns["swap_used_bytes"] = (memory[b"SwapTotal"] - memory[b"SwapFree"]) * 1024
    virtual = _numbers(_VIRTUAL, read(f"{root}/vmstat") if with_slow else None)
    for name, column in (
        (b"pswpin", "n_swap_in_pages"),
        (b"pswpout", "n_swap_out_pages"),
        (b"pgmajfault", "n_major_faults"),
    ):
        if name in virtual:
            columns[column] = virtual[name]
    return columns


def _cpu(data: bytes) -> dict[str, int]:
    """CPU times of /proc/stat. Guest time is part of user time; stolen time was not used here."""
    columns: dict[str, int] = {}
    words = data[: data.find(b"\n")].split()
    if len(words) >= 9 and words[0] == b"cpu":
        ticks = [int(word) for word in words[1:9] if word.isdigit()]
        if len(ticks) == 8:
            user, nice, system, idle, iowait, irq, softirq, steal = ticks
            busy = user + nice + system + irq + softirq
            columns["cpu_busy_ns"] = busy * _NS_PER_TICK
            columns["cpu_idle_ns"] = idle * _NS_PER_TICK
            columns["cpu_iowait_ns"] = iowait * _NS_PER_TICK
            columns["cpu_steal_ns"] = steal * _NS_PER_TICK
    n_cpus = data.count(b"\ncpu")
    if n_cpus:
        columns["n_cpus"] = n_cpus
    begin = data.find(_RUNNABLE)
    if begin >= 0:
        begin += len(_RUNNABLE)
        word = data[begin : data.find(b"\n", begin)]
        if word.isdigit():
            columns["n_runnable"] = int(word)
    return columns


def _numbers(pattern: re.Pattern[bytes], data: bytes | None) -> dict[bytes, int]:
    """Numbers of the lines that a pattern picks."""
    return {match[1]: int(match[2]) for match in pattern.finditer(data or b"")}
