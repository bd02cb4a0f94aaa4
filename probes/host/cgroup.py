"""CPU quota, throttling, memory and pressure of cgroups, versions 1 and 2.

A quota may sit on any ancestor (a pod's cgroup above a container's): the walk goes from a
process's own cgroup up to the root and takes every ancestor that limits CPU or memory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from probes.host.held import ReadFile
from probes.host.pressure import read_pressure
from probes.host.proc import PROC, parse_cgroups, read_bytes

#: A memory limit from here on is none (version 1 writes a huge number).
_NO_LIMIT = 1 << 60
#: Files of limits: they hold until somebody changes them.
_SETTINGS = frozenset(
    {"cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us", "memory.max", "memory.limit_in_bytes"}
)
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class CgroupMount:
    """One mounted hierarchy: its controllers (empty for version 2), its root in it, and where.

    ``is_whole`` is false where what is seen as its root is a container's cgroup (a cgroup
    namespace), which may limit.
    """

    controllers: frozenset[str]
    root: str
    point: str
    is_whole: bool = True

    def folder(self, path: str) -> str | None:
        """Return the folder of a cgroup; None when it lies outside of what is mounted."""
        if ".." in path.split("/"):
            return None
        root = self.root.rstrip("/")
        if root and path != root and not path.startswith(root + "/"):
            return None
        return self.point + path[len(root) :].rstrip("/")


def find_mounts(root: Path = PROC, filesystem: str = "") -> list[CgroupMount]:
    """Return the mounted cgroup hierarchies.

    Args:
        root: Where /proc is.
        filesystem: What goes before each mount point.
    """
    data = read_bytes(f"{root}/self/mountinfo") or b""
    mounts = []
    for line in data.decode("utf-8", "replace").splitlines():
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) < 5 or len(kinds) < 3 or kinds[0] not in ("cgroup", "cgroup2"):
            continue
        options = kinds[2].split(",") if kinds[0] == "cgroup" else []
        known = frozenset(options) & {"cpu", "cpuacct", "memory"}
        if kinds[0] == "cgroup" and not known:
            continue
        point = filesystem + _unescape(fields[4])
        mounts.append(CgroupMount(known, _unescape(fields[3]), point, _is_whole(known, point)))
    return mounts


def _is_whole(controllers: frozenset[str], point: str) -> bool:
    """Whether the top of a mounted hierarchy is that of the host, by the files it has or lacks."""
    if controllers:
        return Path(f"{point}/release_agent").exists()
    return not Path(f"{point}/cgroup.events").exists()


def _unescape(path: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), path)


def cgroups_of(
    pids: set[int], root: Path = PROC, read: ReadFile = read_bytes
) -> set[tuple[str, str]]:
    """Return the cgroups that some processes are in: controller (empty for version 2) and path.

    Args:
        pids: The processes.
        root: Where /proc is.
        read: Reads a file.
    """
    found: set[tuple[str, str]] = set()
    for data in {read(f"{root}/{pid}/cgroup") for pid in pids}:
        found.update(parse_cgroups(data or b"").items())
    return found


def is_setting(path: str) -> bool:
    """Return whether a file of a cgroup holds a limit, which somebody must change to change."""
    return path.rpartition("/")[2] in _SETTINGS


def sample_cgroups(
    wanted: Set[tuple[str, str]],
    mounts: Sequence[CgroupMount],
    read: ReadFile = read_bytes,
    with_memory_stat: bool = True,
) -> dict[str, dict[str, int]]:
    """Return the columns of ``host_sample`` by path of cgroup.

    Args:
        wanted: From :func:`cgroups_of`; their ancestors are looked at too.
        mounts: From :func:`find_mounts`.
        read: Reads a file.
        with_memory_stat: Also faults and swap, which the kernel adds up over all CPUs to tell.
    """
    files = _Files(read, with_memory_stat)
    rows: dict[str, dict[str, int]] = {}
    for controller, path in sorted(wanted):
        for mount in mounts:
            is_unified = not mount.controllers
            if (controller == "" and is_unified) or controller in mount.controllers:
                _walk(mount, path, controller, rows, files)
    return {path: columns for path, columns in rows.items() if columns}


@dataclass(frozen=True)
class _Files:
    """Reads the files of cgroups."""

    read: ReadFile
    with_memory_stat: bool

    def text(self, folder: str, name: str) -> str | None:
        """Text of a file; None when it is gone."""
        data = self.read(f"{folder}/{name}")
        return None if data is None else data.decode("ascii", "replace").strip()

    def number(self, folder: str, name: str) -> int | None:
        """Number a file holds; None when it is gone or holds ``max``."""
        try:
            return int(self.text(folder, name) or "")
        except ValueError:
            return None

    def table(self, folder: str, name: str) -> dict[str, int]:
        """Numbers of a file of lines ``key value``."""
        table: dict[str, int] = {}
        if name == "memory.stat" and not self.with_memory_stat:
            return table
        for line in (self.text(folder, name) or "").splitlines():
            words = line.split()
            if len(words) == 2 and words[1].isdecimal():
                table[words[0]] = int(words[1])
        return table


def _walk(
    mount: CgroupMount,
    path: str,
    controller: str,
    rows: dict[str, dict[str, int]],
    files: _Files,
) -> None:
    """Add the cgroup and each ancestor that limits something; the root only where it is not the
    host's.
    """
    if ".." in path.split("/"):
        return  # outside of the reader's cgroup namespace, whose root is none of its ancestors
    is_leaf = True
    while path and (path != "/" or not mount.is_whole):
        folder = mount.folder(path)
        if folder is not None:
            columns = _read(folder, controller, files)
            if is_leaf or "cpu_quota_ns" in columns or "memory_total_bytes" in columns:
                rows.setdefault(path, {}).update(columns)
        is_leaf = False
        path = "" if path == "/" else path.rpartition("/")[0] or "/"


def _read(folder: str, controller: str, files: _Files) -> dict[str, int]:
    """Columns that one cgroup's files of one controller fill."""
    if controller == "":
        return _read_unified(folder, files)
    if controller == "cpu":
        return _read_cpu(folder, files)
    if controller == "cpuacct":
        usage = files.number(folder, "cpuacct.usage")
        return {} if usage is None else {"cpu_busy_ns": usage}
    return _read_memory(folder, files)


def _read_unified(folder: str, files: _Files) -> dict[str, int]:
    """Version 2: everything lies in one folder."""
    columns = dict(read_pressure(folder, ".pressure", files.read))
    quota = (files.text(folder, "cpu.max") or "").split()
    if len(quota) == 2 and quota[0].isdecimal() and quota[1].isdecimal():
        columns["cpu_quota_ns"] = int(quota[0]) * 1000
        columns["cpu_period_ns"] = int(quota[1]) * 1000
    stat = files.table(folder, "cpu.stat")
    for name, column, factor in (
        ("usage_usec", "cpu_busy_ns", 1000),
        ("nr_periods", "n_cpu_periods", 1),
        ("nr_throttled", "n_cpu_throttled", 1),
        ("throttled_usec", "cpu_throttled_ns", 1000),
    ):
        if name in stat:
            columns[column] = stat[name] * factor
    for name, column in (
        ("memory.current", "memory_used_bytes"),
        ("memory.max", "memory_total_bytes"),
        ("memory.swap.current", "swap_used_bytes"),
    ):
        value = files.number(folder, name)
        if value is not None and value < _NO_LIMIT:
            columns[column] = value
    faults = files.table(folder, "memory.stat").get("pgmajfault")
    if faults is not None:
        columns["n_major_faults"] = faults
    return columns


def _read_cpu(folder: str, files: _Files) -> dict[str, int]:
    """Version 1, controller ``cpu``; ``throttled_time`` is in ns there."""
    columns: dict[str, int] = {}
    quota = files.number(folder, "cpu.cfs_quota_us")
    period = files.number(folder, "cpu.cfs_period_us")
    if quota is not None and quota > 0 and period is not None:
        columns["cpu_quota_ns"] = quota * 1000
        columns["cpu_period_ns"] = period * 1000
    stat = files.table(folder, "cpu.stat")
    for name, column in (
        ("nr_periods", "n_cpu_periods"),
        ("nr_throttled", "n_cpu_throttled"),
        ("throttled_time", "cpu_throttled_ns"),
    ):
        if name in stat:
            columns[column] = stat[name]
    return columns


def _read_memory(folder: str, files: _Files) -> dict[str, int]:
    """Version 1, controller ``memory``."""
    columns: dict[str, int] = {}
    for name, column in (
        ("memory.usage_in_bytes", "memory_used_bytes"),
        ("memory.limit_in_bytes", "memory_total_bytes"),
    ):
        value = files.number(folder, name)
        if value is not None and value < _NO_LIMIT:
            columns[column] = value
    stat = files.table(folder, "memory.stat")
    for name, column in (("total_swap", "swap_used_bytes"), ("total_pgmajfault", "n_major_faults")):
        if name in stat:
            columns[column] = stat[name]
    return columns
