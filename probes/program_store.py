"""Compiled BPF programs, kept until the next boot, so that only the first start runs the compiler.

What the compiling child loaded is kept as instructions and the properties of the maps they use. A
key stands for the source, what was asked for, the running kernel and its boot, so whatever is
found fits; what is found and cannot be loaded is as good as not there. The folder and its files
belong to root alone, and others' are not read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probes import syscalls

#: Where compiled programs lie. Emptied by the system at every boot, usually.
FOLDER = Path("/run/gpu-wait-tracer")
#: Programs of so many different sources are kept.
MAX_FILES = 8
#: Largest file that is read.
MAX_BYTES = 4 << 20
#: Name of what is kept: instructions depend on who wrote them down.
_FORMAT = "2"

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_INSTRUCTION = struct.Struct("<BBhi")


def key_of(request: bytes) -> str | None:
    """Return the name under which the programs of a request are kept; None where they cannot be.

    Args:
        request: What the compiling child is asked for.
    """
    try:
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return None
    facts = "\n".join((_FORMAT, boot, platform.release(), platform.version(), platform.machine()))
    return hashlib.sha256(facts.encode() + b"\n" + request).hexdigest()


def load(
    key: str, folder: Path = FOLDER
) -> tuple[dict[str, int], dict[str, int], dict[str, int]] | None:
    """Return descriptors of the programs, of the maps, and ids of the tracepoints, all by name.

    None where nothing (that the kernel takes) is kept under this key.
    """
    data = _read_own(folder / f"{key}.json")
    if data is None:
        return None
    descriptors: list[int] = []
    try:
        told, _, content = data.partition(b"\n")
        if told != _sum_of(content):
            return None
        kept = json.loads(content)
        maps = {}
        by_number = []
        for one in kept["maps"]:
            fd = syscalls.create_map(
                one["type"], one["key"], one["value"], one["entries"], one["flags"]
            )
            descriptors.append(fd)
            by_number.append(fd)
            if one["name"] is not None:
                maps[one["name"]] = fd
        programs = {}
        for one in kept["programs"]:
            code = _with_maps(bytes.fromhex(one["code"]), by_number)
            programs[one["name"]] = syscalls.load_program(
                one["type"], one["attach_type"], code, one["name"]
            )
            descriptors.append(programs[one["name"]])
        tracepoints = {str(name): int(number) for name, number in kept["tracepoints"].items()}
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, struct.error):
        for fd in descriptors:
            os.close(fd)
        return None
    named = set(maps.values()) | set(programs.values())
    for fd in descriptors:
        if fd not in named:
            os.close(fd)  # the programs hold it
    return programs, maps, tracepoints


def keep(key: str, kept: Mapping[str, Any], folder: Path = FOLDER) -> None:
    """Keep what the compiling child told of its programs; without effect where it cannot be."""
    target = folder / f"{key}.json"
    temporary = folder / f".{key}.{os.getpid()}.tmp"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if not _is_own(folder.lstat(), stat.S_ISDIR):
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        content = json.dumps(kept).encode("ascii")
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(_sum_of(content) + b"\n" + content)
        temporary.rename(target)
        files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in files[:-MAX_FILES]:
            path.unlink(missing_ok=True)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def forget(folder: Path = FOLDER) -> None:
    """Delete everything that is kept."""
    for path in folder.glob("*.json"):
        path.unlink(missing_ok=True)


def _sum_of(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode("ascii")


def _is_own(status: os.stat_result, is_kind: Any) -> bool:
    """Whether a file is of that kind, and this user's and nobody else's to write."""
    mode = status.st_mode
    return bool(is_kind(mode)) and status.st_uid == os.geteuid() and not mode & 0o022


def _read_own(path: Path) -> bytes | None:
    """The content of a file that only this user could have written; None for any other."""
    try:
        if not _is_own(path.parent.lstat(), stat.S_ISDIR):
            return None
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not _is_own(status, stat.S_ISREG) or status.st_size > MAX_BYTES:
                return None
            return file.read()
    except OSError:
        return None


def _with_maps(code: bytes, descriptors: list[int]) -> bytes:
    """Instructions with the numbers of maps replaced by their descriptors."""
    patched = bytearray(code)
    for index, (operation, registers, _offset, number) in enumerate(_INSTRUCTION.iter_unpack(code)):
        if _is_map_reference(operation, registers):
            struct.pack_into("<i", patched, 8 * index + 4, descriptors[number])
    return bytes(patched)


def _is_map_reference(operation: int, registers: int) -> bool:
    """Return whether an instruction loads the address of a map given by its descriptor."""
    return operation == 0x18 and registers >> 4 == 1
