"""What /proc tells of one process; every reader takes the root to read below.

A process can end between two reads: readers return None (or an empty list) then, never raise.
Numbers are as the kernel gives them except where a name ends in a unit.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from probes.host.redaction import redact

#: Where the kernel's process files are.
PROC = Path("/proc")
#: Clock ticks per second, of which times in ``stat`` are counted.
TICKS_PER_SECOND: int = os.sysconf("SC_CLK_TCK")
#: Most bytes that are read of any file but ``maps``, and of ``maps`` (some 600,000 mappings).
MAX_READ_BYTES = 1 << 20
MAX_MAPS_BYTES = 64 << 20
#: Most bytes that are read of a command line.
MAX_COMMAND_LINE_BYTES = 1 << 17

_NS_PER_TICK = 1_000_000_000 // TICKS_PER_SECOND
_MAPS_LINE = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ([-r][-w][-x][-ps]) ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+)"
    rb"(?: +(.*))?$",
    re.MULTILINE,
)
_EXECUTABLE_LINE = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ([-r][-w]x[-ps]) ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) ([1-9]\d*)"
    rb"(?: +(.*))?$",
    re.MULTILINE,
)
_OCTAL = re.compile(rb"\\([0-7]{3})")
_CONTAINER_HASH = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_CONTAINER_LXC = re.compile(r"/lxc(?:\.payload)?[./]([\w.\-]+)")


@dataclass(frozen=True)
class ProcessStat:
    """``/proc/PID/stat`` (or a task's): times in ns, ``start_ticks`` in ticks of CLOCK_BOOTTIME.

    ``start_code`` and ``start_stack`` are addresses of the image; 0 or 1 where they are hidden or
    not set yet (in the middle of an exec).
    """

    pid: int
    name: str
    state: str
    parent_pid: int
    n_minor_faults: int
    n_major_faults: int
    cpu_user_ns: int
    cpu_system_ns: int
    n_threads: int
    start_ticks: int
    rss_pages: int
    start_code: int
    start_stack: int
    last_cpu: int | None

    @property
    def is_dead(self) -> bool:
        """Whether it has ended: a zombie or worse, with no other thread left."""
        return self.state in "ZXx" and self.n_threads <= 1


@dataclass(frozen=True)
class Mapping:
    """One line of ``/proc/PID/maps``; ``path`` as the kernel gives it, with ``(deleted)`` kept."""

    start: int
    end: int
    permissions: str
    offset: int
    device: int
    inode: int
    path: str

    @property
    def range_name(self) -> str:
        """Name of the mapping's link in ``map_files``."""
        return f"{self.start:x}-{self.end:x}"


def read_bytes(path: Path | str, limit: int = MAX_READ_BYTES) -> bytes | None:
    """Return the file's bytes, at most ``limit``; None when it is gone or may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        left = limit
        while left > 0:
            part = os.read(descriptor, min(left, 1 << 16))
            if not part:
                break
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def read_stat(pid: int, root: Path = PROC, tid: int | None = None) -> ProcessStat | None:
    """Return ``stat`` of a process, or of one of its threads; None when it is gone."""
    folder = f"{root}/{pid}" if tid is None else f"{root}/{pid}/task/{tid}"
    data = read_bytes(f"{folder}/stat")
    return None if data is None else parse_stat(data)


def parse_stat(data: bytes) -> ProcessStat | None:
    """Return the fields of a ``stat`` line; None when it is not one."""
    begin, end = data.find(b"("), data.rfind(b")")
    if begin < 0 or end < begin:
        return None
    fields = data[end + 1 :].split()
    try:
        return ProcessStat(
            pid=int(data[:begin]),
            name=data[begin + 1 : end].decode("utf-8", "replace"),
            state=fields[0].decode("ascii", "replace"),
            parent_pid=int(fields[1]),
            n_minor_faults=int(fields[7]),
            n_major_faults=int(fields[9]),
            cpu_user_ns=int(fields[11]) * _NS_PER_TICK,
            cpu_system_ns=int(fields[12]) * _NS_PER_TICK,
            n_threads=int(fields[17]),
            start_ticks=int(fields[19]),
            rss_pages=int(fields[21]),
            start_code=int(fields[23]),
            start_stack=int(fields[25]),
            last_cpu=int(fields[36]) if len(fields) > 36 else None,
        )
    except (ValueError, IndexError):
        return None


def boottime_offset_ns() -> int:
    """Return CLOCK_BOOTTIME minus CLOCK_MONOTONIC in ns: the time the host was suspended."""
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    boottime = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return boottime - (before + after) // 2


def start_time_ns(start_ticks: int, offset_ns: int) -> int:
    """Return a start in ns of CLOCK_MONOTONIC, good to one tick (10 ms on most hosts).

    Args:
        start_ticks: ``ProcessStat.start_ticks``.
        offset_ns: CLOCK_BOOTTIME minus CLOCK_MONOTONIC.
    """
    return start_ticks * _NS_PER_TICK - offset_ns


def read_status(pid: int, root: Path = PROC, tid: int | None = None) -> dict[str, str] | None:
    """Return ``status`` as text by key (``VmRSS``: ``"123 kB"``); None when it is gone."""
    folder = f"{root}/{pid}" if tid is None else f"{root}/{pid}/task/{tid}"
    data = read_bytes(f"{folder}/status")
    if data is None:
        return None
    fields: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").splitlines():
        key, mark, value = line.partition(":")
        if mark:
            fields[key] = value.strip()
    return fields


def namespace_pids(pid: int, root: Path = PROC) -> list[int]:
    """Return its ids from the outermost visible PID namespace to its own; empty when unknown."""
    fields = read_status(pid, root) or {}
    try:
        return [int(word) for word in fields.get("NSpid", "").split()]
    except ValueError:
        return []


def list_pids(root: Path = PROC) -> list[int]:
    """Return the ids of all visible processes, ascending."""
    return _numbers_in(str(root))


def _numbers_in(folder: str) -> list[int]:
    """The names in a folder that are numbers, ascending."""
    try:
        with os.scandir(folder) as entries:
            return sorted(int(entry.name) for entry in entries if entry.name.isdecimal())
    except OSError:
        return []


def list_tids(pid: int, root: Path = PROC) -> list[int]:
    """Return the ids of a process's threads, ascending; empty when it is gone."""
    return _numbers_in(f"{root}/{pid}/task")


def list_children(pid: int, root: Path = PROC) -> list[int] | None:
    """Return the children of all threads of a process; None where the kernel does not list them."""
    children: list[int] = []
    tids = list_tids(pid, root)
    is_listed = not tids
    for tid in tids:
        data = read_bytes(f"{root}/{pid}/task/{tid}/children")
        if data is not None:
            is_listed = True
            children.extend(int(word) for word in data.split() if word.isdigit())
    return children if is_listed else None


def read_maps(pid: int, root: Path = PROC, executable_only: bool = False) -> list[Mapping]:
    """Return the mappings of a process in address order; empty when it is gone.

    Args:
        pid: Process id.
        root: Where /proc is.
        executable_only: Only executable mappings of files, which costs a tenth.
    """
    data = read_bytes(f"{root}/{pid}/maps", MAX_MAPS_BYTES)
    return [] if data is None else parse_maps(data, executable_only)


def parse_maps(data: bytes, executable_only: bool = False) -> list[Mapping]:
    """Return the mappings of the text of a ``maps`` file; lines that are not one are skipped."""
    pattern = _MAPS_LINE
    if executable_only:
        pattern = _EXECUTABLE_LINE
        data = b"\n".join(executable_lines(data))
    return [
        Mapping(
            start=int(match[1], 16),
            end=int(match[2], 16),
            permissions=match[3].decode("ascii"),
            offset=int(match[4], 16),
            device=os.makedev(int(match[5], 16), int(match[6], 16)),
            inode=int(match[7]),
            path=_unescape(match[8] or b""),
        )
        for match in pattern.finditer(data)
    ]


def executable_lines(data: bytes) -> list[bytes]:
    """Return the lines of a ``maps`` file that may be executable mappings, unparsed."""
    return [line for line in data.split(b"\n") if b"xp " in line or b"xs " in line]


def _unescape(path: bytes) -> str:
    """A path of a maps file: the kernel writes a line feed in it as an octal number."""
    if b"\\" in path:
        path = _OCTAL.sub(lambda match: bytes((int(match[1], 8) & 0xFF,)), path)
    return os.fsdecode(path)


def read_cgroups(pid: int, root: Path = PROC) -> dict[str, str]:
    """Return the path of its cgroup by controller; key ``""`` is version 2's single tree."""
    return parse_cgroups(read_bytes(f"{root}/{pid}/cgroup") or b"")


def parse_cgroups(data: bytes) -> dict[str, str]:
    """Return the path by controller of the text of a process's ``cgroup`` file."""
    paths: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(","):
                paths[controller] = parts[2]
    return paths


def main_cgroup(cgroups: dict[str, str]) -> str | None:
    """Return the path that says most: of the cpu, memory or single tree, the first below ``/``."""
    paths = [cgroups[key] for key in ("cpu", "memory", "") if key in cgroups]
    return next((path for path in paths if path != "/"), paths[0] if paths else None)


def container_id(cgroups: dict[str, str]) -> str | None:
    """Return the container's id (64 hex digits or an LXC name) of its cgroups; None outside one."""
    for path in cgroups.values():
        hashes = _CONTAINER_HASH.findall(path)
        if hashes:
            return str(hashes[-1])
    for path in cgroups.values():
        match = _CONTAINER_LXC.search(path)
        if match:
            return match[1]
    return None


def command_line(pid: int, root: Path = PROC) -> str | None:
    """Return its command line without secrets and texts; None when gone, "" for kernel threads."""
    data = read_bytes(f"{root}/{pid}/cmdline", MAX_COMMAND_LINE_BYTES)
    return None if data is None else redacted(data)


def redacted(data: bytes) -> str:
    """Return the text of a ``cmdline`` file without secrets and texts; "" for kernel threads."""
    words = data.rstrip(b"\0 ").split(b"\0")
    return redact([word.decode("utf-8", "replace") for word in words]) if words[0] else ""
