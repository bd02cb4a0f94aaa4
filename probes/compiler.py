"""The one door to bcc: a child process that compiles BPF programs and hands them over.

Run as a script by :mod:`probes.bpf`; imports nothing of the package, so that it starts fast.
"""

from __future__ import annotations

import array
import ctypes
import errno
import json
import os
import platform
import re
import socket
import struct
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

#: Where distributions install bcc for Python.
_BCC_PLACES = ("/usr/lib/python3/dist-packages", "/usr/lib/python3/site-packages")
#: Descriptors that fit in one message.
MAX_DESCRIPTORS = 200
_PROGRAM_KPROBE = 2
_PROGRAM_TRACEPOINT = 5


def find_bcc() -> Path | None:
    """Return the folder that holds the distribution's bcc, or None."""
    for place in _BCC_PLACES:
        if (Path(place) / "bcc" / "libbcc.py").is_file():
            return Path(place)
    return None


def find_headers() -> tuple[Path, ...]:
    """Return the folders of kernel headers to use, best first halves last; empty if none.

    One folder is a whole tree. Two are the halves of a split tree: common, then architecture.
    """
    modules = Path("/lib/modules") / platform.release()
    build, source = modules / "build", modules / "source"
    if (build / "include" / "linux" / "kconfig.h").is_file():
        return (build.resolve(),)
    if build.is_dir() and (source / "include" / "linux" / "kconfig.h").is_file():
        return (source.resolve(), build.resolve())
    for common in sorted(Path("/usr/src").glob("linux-headers-*-common"), reverse=True):
        stem = common.name.removesuffix("common")
        for half in sorted(Path("/usr/src").glob(f"{stem}*")):
            if half != common and (half / "include" / "generated").is_dir():
                return (common, half)
    for tree in sorted(Path("/usr/src").glob("linux-headers-*"), reverse=True):
        if (tree / "include" / "linux" / "kconfig.h").is_file() and (
            tree / "include" / "generated"
        ).is_dir():
            return (tree,)
    return ()


def _mount_tracefs() -> Path:
    """Folder of the tracepoints; mounted for this process only when the machine has it not."""
    for place in ("/sys/kernel/tracing", "/sys/kernel/debug/tracing"):
        if (Path(place) / "events").is_dir():
            return Path(place)
    libc = ctypes.CDLL(None, use_errno=True)
    new_namespace, private_recursive = 0x00020000, (1 << 18) | (1 << 14)
    # Any folder serves: in a namespace of its own the mount hides it from this process alone.
    folders = [Path("/sys/kernel/tracing"), Path("/mnt")]
    folder = next((place for place in folders if place.is_dir()), None)
    if folder is None:
        raise OSError(errno.ENOENT, "no folder to mount the kernel's tracefs on")
    if (
        libc.unshare(new_namespace)
        or libc.mount(b"none", b"/", None, private_recursive, None)
        or libc.mount(b"tracefs", os.fsencode(folder), b"tracefs", 0, None)
    ):
        raise OSError(ctypes.get_errno(), "the kernel's tracefs cannot be mounted")
    return folder


def tracepoint_struct(name: str, text: str) -> str:
    """Return the C struct of a tracepoint's fields from its format file.

    Raises:
        ValueError: the fields overlap or leave no place for the padding between them.
    """
    lines = [f"struct {name}_arguments {{"]
    defines = []
    end = 0
    pattern = r"field:(.*?)(\w+)(\[\w*\])?;\s*offset:(\d+);\s*size:(\d+);\s*signed:(\d);"
    for match in re.finditer(pattern, text):
        kind, field, bounds = match.group(1), match.group(2), match.group(3)
        offset, size, is_signed = (int(match.group(index)) for index in (4, 5, 6))
        if offset < end:
            raise ValueError(f"fields of tracepoint {name} overlap")
        if offset > end:
            lines.append(f"    char padding_{end}[{offset - end}];")
        scalar = {1: "char", 2: "short", 4: "int", 8: "long long"}.get(size)
        if (bounds and "__data_loc" not in kind) or scalar is None:
            lines.append(f"    char {field}[{size}];")
        else:
            lines.append(f"    {'signed' if is_signed else 'unsigned'} {scalar} {field};")
        defines.append(f"#define {name}_HAS_{field} 1")
        end = offset + size
    lines.append("} __attribute__((packed));")
    return "\n".join((*lines, *defines))


def _merge_headers(folder: Path, halves: Sequence[Path]) -> Path:
    """One tree of symbolic links over the halves of a split header tree."""
    if len(halves) == 1:
        return halves[0]
    merged = folder / "headers"
    for half in halves:
        _link_tree(half, merged)
    return merged


def _link_tree(source: Path, target: Path) -> None:
    """Link what the target lacks; where both have a folder, go into it."""
    target.mkdir(exist_ok=True)
    for item in source.iterdir():
        place = target / item.name
        if place.is_symlink() and place.is_dir() and item.is_dir():
            other = place.resolve()
            place.unlink()
            _link_tree(other, place)
            _link_tree(item, place)
        elif place.is_dir() and item.is_dir():
            _link_tree(item, place)
        elif not place.exists():
            place.symlink_to(item)


def _compile(request: dict[str, Any], keep: list[object]) -> tuple[dict[str, Any], list[int]]:
    """Compile and load; the reply and its descriptors, programs first."""
    tracefs = _mount_tracefs()
    prefix = []
    identifiers = {}
    for tracepoint in request["tracepoints"]:
        folder = tracefs / "events" / tracepoint
        identifiers[tracepoint] = int((folder / "id").read_text())
        name = tracepoint.split("/")[1]
        prefix.append(tracepoint_struct(name, (folder / "format").read_text()))
    bcc_folder = find_bcc()
    if bcc_folder is None:
        raise ImportError("the distribution's bcc is not installed")
    sys.path.append(str(bcc_folder))
    with tempfile.TemporaryDirectory(prefix="tracer-headers-") as folder:
        os.environ["BCC_KERNEL_SOURCE"] = str(_merge_headers(Path(folder), find_headers()))
        import bcc

        module = bcc.BPF(
            text="#include <uapi/linux/ptrace.h>\n" + "\n".join((*prefix, request["source"])),
            cflags=["-Wno-everything"],
        )
    keep.append(module)
    programs = {}
    written = []
    for name, kind in request["programs"]:
        program_type = _PROGRAM_TRACEPOINT if kind == "tracepoint" else _PROGRAM_KPROBE
        attach_type = 48 if kind == "uprobe_multi" else -1
        programs[name] = module.load_func(name, program_type, attach_type=attach_type).fd
        written.append((name, program_type, max(attach_type, 0), module.dump_func(name)))
    maps = {name: module[name].map_fd for name in request["maps"]}
    reply = {
        "programs": list(programs),
        "maps": list(maps),
        "tracepoints": identifiers,
        "kept": _write_down(written, maps) | {"tracepoints": identifiers},
    }
    return reply, [*programs.values(), *maps.values()]


def _write_down(
    programs: Sequence[tuple[str, int, int, bytes]], maps: dict[str, int]
) -> dict[str, Any]:
    """Programs (name, type, attach type, instructions) and maps, so that they can be loaded again.

    In the instructions a map's descriptor is replaced by its place among the maps.
    """
    names = {fd: name for name, fd in maps.items()}
    places = {fd: place for place, fd in enumerate(names)}
    written = []
    for name, program_type, attach_type, code in programs:
        text = bytearray(code)
        for at in range(0, len(code), 8):
            operation, registers, _offset, number = struct.unpack_from("<BBhi", code, at)
            if operation == 0x18 and registers >> 4 == 1:
                struct.pack_into("<i", text, at + 4, places.setdefault(number, len(places)))
        written.append(
            {"name": name, "type": program_type, "attach_type": attach_type, "code": text.hex()}
        )
    return {
        "programs": written,
        "maps": [{"name": names.get(fd)} | _map_properties(fd) for fd in places],
    }


def _map_properties(fd: int) -> dict[str, int]:
    """What a map was made with, from what the kernel tells of its descriptor."""
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="ascii").splitlines()
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    return {
        "type": int(told["map_type"]),
        "key": int(told["key_size"]),
        "value": int(told["value_size"]),
        "entries": int(told["max_entries"]),
        "flags": int(told["map_flags"], 16),
    }


def _serve(descriptor: int) -> None:
    """Read a request from standard input and answer it over a socket."""
    request = json.loads(sys.stdin.buffer.read())
    keep: list[object] = []
    descriptors: list[int] = []
    try:
        reply, descriptors = _compile(request, keep)
    except Exception as error:  # noqa: BLE001 - whatever bcc raises goes to the parent as text
        reply = {"error": f"{type(error).__name__}: {error}"}
    connection = socket.socket(fileno=descriptor)
    text = json.dumps(reply).encode()
    first = descriptors[:MAX_DESCRIPTORS]
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", first))
    connection.sendmsg([text[:1]], [rights] if first else [])
    for index in range(MAX_DESCRIPTORS, len(descriptors), MAX_DESCRIPTORS):
        more = array.array("i", descriptors[index : index + MAX_DESCRIPTORS])
        text = text[1:]
        connection.sendmsg([text[:1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, more)])
    connection.sendall(text[1:])
    connection.close()
    sys.stdout.flush()
    os._exit(0)  # bcc's own clean-up at exit is of no use


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
