"""Raw ``bpf`` and ``perf_event_open``: maps, links and perf events by file descriptor.

The recorder uses these instead of a BPF library, so that it never loads a compiler. x86-64 and
arm64 numbers; every function raises :class:`OSError` with the kernel's error number.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import os
import platform
import struct
from collections.abc import Sequence
from pathlib import Path

_NUMBERS = {"x86_64": (321, 298), "aarch64": (280, 241)}

_MAP_CREATE = 0
_MAP_LOOKUP = 1
_MAP_UPDATE = 2
_MAP_DELETE = 3
_MAP_NEXT_KEY = 4
_PROGRAM_LOAD = 5
_LINK_CREATE = 28

_TYPE_KPROBE = 2

#: Attach types of ``bpf``.
ATTACH_PERF_EVENT = 41
ATTACH_UPROBE_MULTI = 48

_UPROBE_MULTI_RETURN = 1
_PERF_FLAG_FD_CLOEXEC = 8
#: Bit of a uprobe event's ``config`` at which the offset of its counter begins.
_COUNTER_SHIFT = 32
_PERF_ATTRIBUTE_BYTES = 112
_PERF_TYPE_TRACEPOINT = 2
_PERF_IOC_ENABLE = 0x2400
_PERF_IOC_SET_BPF = 0x40042408

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _call(number: int, *arguments: ctypes._SimpleCData[int] | ctypes.Array[ctypes.c_char]) -> int:
    result: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def _numbers() -> tuple[int, int]:
    """Numbers of ``bpf`` and ``perf_event_open`` on this machine."""
    machine = platform.machine()
    if machine not in _NUMBERS:
        raise OSError(38, f"system call numbers of {machine} are not known")
    return _NUMBERS[machine]


def _bpf(command: int, attribute: bytes) -> int:
    buffer = ctypes.create_string_buffer(attribute, len(attribute))
    return _call(_numbers()[0], ctypes.c_int(command), buffer, ctypes.c_uint(len(attribute)))


def _map_attribute(fd: int, key: ctypes.Array[ctypes.c_char], value: int, flags: int) -> bytes:
    return struct.pack("<IIQQQ", fd, 0, ctypes.addressof(key), value, flags)


def map_lookup(fd: int, key: bytes, value_size: int) -> bytes | None:
    """Return the value of a key as bytes, or None when the map has none.

    Args:
        fd: File descriptor of the map.
        key: Key in the map's layout.
        value_size: Bytes of a value; for per-CPU maps times the number of possible CPUs.
    """
    key_buffer = ctypes.create_string_buffer(key, len(key))
    value = ctypes.create_string_buffer(value_size)
    try:
        _bpf(_MAP_LOOKUP, _map_attribute(fd, key_buffer, ctypes.addressof(value), 0))
    except FileNotFoundError:
        return None
    return value.raw


def map_update(fd: int, key: bytes, value: bytes) -> None:
    """Set the value of a key."""
    key_buffer = ctypes.create_string_buffer(key, len(key))
    buffer = ctypes.create_string_buffer(value, len(value))
    _bpf(_MAP_UPDATE, _map_attribute(fd, key_buffer, ctypes.addressof(buffer), 0))


def map_delete(fd: int, key: bytes) -> None:
    """Delete a key; nothing happens when the map does not have it."""
    key_buffer = ctypes.create_string_buffer(key, len(key))
    try:
        _bpf(_MAP_DELETE, _map_attribute(fd, key_buffer, 0, 0))
    except FileNotFoundError:
        return


def map_keys(fd: int, key_size: int) -> list[bytes]:
    """Return every key of a map."""
    keys: list[bytes] = []
    following = ctypes.create_string_buffer(key_size)
    current = 0
    while True:
        attribute = struct.pack("<IIQQQ", fd, 0, current, ctypes.addressof(following), 0)
        try:
            _bpf(_MAP_NEXT_KEY, attribute)
        except FileNotFoundError:
            return keys
        keys.append(following.raw)
        buffer = ctypes.create_string_buffer(following.raw, key_size)
        current = ctypes.addressof(buffer)


def create_map(kind: int, key_size: int, value_size: int, entries: int, flags: int) -> int:
    """Return the descriptor of a new map; arguments as in the kernel's ``bpf_attr``."""
    attribute = struct.pack("<IIIII", kind, key_size, value_size, entries, flags)
    return _bpf(_MAP_CREATE, attribute.ljust(128, b"\0"))


def load_program(kind: int, attach_type: int, code: bytes, name: str = "") -> int:
    """Return the descriptor of a loaded program.

    Args:
        kind: Type of the program, as the kernel numbers it.
        attach_type: What it is loaded for; 0 for nothing in particular.
        code: Its instructions, maps in them by descriptor.
        name: Shown by tools that list programs; cut to 15 letters.
    """
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"GPL")
    attribute = bytearray(128)
    places = (ctypes.addressof(instructions), ctypes.addressof(licence))
    struct.pack_into("<IIQQ", attribute, 0, kind, len(code) // 8, *places)
    struct.pack_into("<15s", attribute, 48, name.encode("ascii", "replace"))
    struct.pack_into("<I", attribute, 68, attach_type)
    return _bpf(_PROGRAM_LOAD, bytes(attribute))


def load_empty_program(attach_type: int = 0) -> int:
    """Return the descriptor of a program of type kprobe that does nothing and returns 0."""
    return load_program(_TYPE_KPROBE, attach_type, struct.pack("<QQ", 0xB7, 0x95))


def link_uprobe_multi(
    program_fd: int,
    path: str,
    offsets: Sequence[int],
    cookies: Sequence[int],
    *,
    is_return: bool,
    pid: int = 0,
    counters: Sequence[int] = (),
) -> int:
    """Return the descriptor of a link that runs a program at many places of a file.

    Args:
        program_fd: Program of type kprobe loaded for ``ATTACH_UPROBE_MULTI``.
        path: File, as the recorder can open it.
        offsets: Places as offsets in the file.
        cookies: One number per place, which the program can read.
        is_return: Run when the functions at these places return.
        pid: Only in this process; 0 is every process.
        counters: Offsets in the file of the counters that turn the places on while anybody looks,
            one per place, 0 for none; may be empty.
    """
    name = ctypes.create_string_buffer(os.fsencode(path))
    switches = array.array("Q", counters)
    places = array.array("Q", offsets)
    numbers = array.array("Q", cookies)
    attribute = struct.pack(
        "<IIIIQQQQIII",
        program_fd,
        0,
        ATTACH_UPROBE_MULTI,
        0,
        ctypes.addressof(name),
        places.buffer_info()[0],
        switches.buffer_info()[0] if any(counters) else 0,
        numbers.buffer_info()[0],
        len(places),
        _UPROBE_MULTI_RETURN if is_return else 0,
        pid,
    )
    return _bpf(_LINK_CREATE, attribute.ljust(64, b"\0"))


def link_perf_event(program_fd: int, event_fd: int, cookie: int) -> int:
    """Return the descriptor of a link that runs a program at a perf event, with a cookie."""
    attribute = struct.pack("<IIIIQ", program_fd, event_fd, ATTACH_PERF_EVENT, 0, cookie)
    return _bpf(_LINK_CREATE, attribute.ljust(64, b"\0"))


def _open_event(kind: int, config: int, config1: int, config2: int, pid: int, cpu: int) -> int:
    attribute = bytearray(_PERF_ATTRIBUTE_BYTES)
    struct.pack_into("<IIQQ", attribute, 0, kind, _PERF_ATTRIBUTE_BYTES, config, 1)
    struct.pack_into("<QQ", attribute, 56, config1, config2)
    buffer = ctypes.create_string_buffer(bytes(attribute), len(attribute))
    return _call(
        _numbers()[1],
        buffer,
        ctypes.c_int(pid),
        ctypes.c_int(cpu),
        ctypes.c_int(-1),
        ctypes.c_ulong(_PERF_FLAG_FD_CLOEXEC),
    )


def open_uprobe_event(
    path: str, offset: int, *, kind: int, return_bit: int | None, pid: int, counter: int = 0
) -> int:
    """Return the descriptor of a perf event at one place of a file.

    Args:
        path: File, as the recorder can open it.
        offset: Place as offset in the file.
        kind: Perf type of uprobes on this machine (``/sys/bus/event_source/devices/uprobe/type``).
        return_bit: Bit of ``config`` that asks for returns; None at entry.
        pid: Only in this process; -1 is every process.
        counter: Offset in the file of the counter that turns the place on; 0 for none.
    """
    name = ctypes.create_string_buffer(os.fsencode(path))
    config = counter << _COUNTER_SHIFT | (0 if return_bit is None else 1 << return_bit)
    cpu = 0 if pid == -1 else -1
    return _open_event(kind, config, ctypes.addressof(name), offset, pid, cpu)


def attach_tracepoint(program_fd: int, tracepoint_id: int) -> int:
    """Return the descriptor of a perf event that runs a program at a tracepoint on every CPU."""
    event = _open_event(_PERF_TYPE_TRACEPOINT, tracepoint_id, 0, 0, -1, 0)
    try:
        fcntl.ioctl(event, _PERF_IOC_SET_BPF, program_fd)
        fcntl.ioctl(event, _PERF_IOC_ENABLE, 0)
    except OSError:
        os.close(event)
        raise
    return event


def possible_cpus() -> int:
    """Return the number of CPUs that per-CPU maps hold values for."""
    text = Path("/sys/devices/system/cpu/possible").read_text(encoding="ascii").strip()
    return int(text.split(",")[-1].split("-")[-1]) + 1
