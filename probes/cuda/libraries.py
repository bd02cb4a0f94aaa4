"""Which mapped files of a process hold CUDA functions, where in the file, and who calls them.

Every executable mapping is looked at by device and inode, not by name: a static runtime may hide
in any file, several copies may be mapped, files may be deleted, replaced, or lie in another mount
namespace. What a file holds is read once and kept for as long as the file does not change.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from probes.cuda.elf import EM_X86_64, ElfError, ElfFile
from probes.cuda.functions import Function, by_symbol
from probes.host import proc

#: Functions that do nothing but jump into another: probing both would count a call twice.
JUMPS = {
    "__cudaLaunchKernel": "cudaLaunchKernel",
    "__cudaLaunchKernel_ptsz": "cudaLaunchKernel_ptsz",
}
#: Kinds of functions whose absence would hide work of the device.
LAUNCH_KINDS = frozenset(("launch", "graph_launch", "collective"))
#: Cost of a probe by the first instruction, see :func:`cost_class`.
COST_CLASSES = ("emulated", "nop5", "stepped")

_LAUNCH_LIKE = re.compile(r"(__)?(cuda|cu)(Graph)?Launch(?!HostFunc)[A-Za-z]*(_v\d+)?(_ptsz)?")
_SONAME_VERSION = re.compile(r"\.so\.([0-9][0-9.]*)$")
_RUNTIME_MARKER = b"CUDA driver version is insufficient for CUDA runtime version"
_RODATA_LIMIT_BYTES = 64 << 20
_ENDBR64 = b"\xf3\x0f\x1e\xfa"
_NOP5 = b"\x0f\x1f\x44\x00\x00"


@dataclass(frozen=True)
class LibraryFile:
    """What one file holds, whichever process maps it.

    Attributes:
        soname: Name the file gives itself.
        build_id: GNU build id, hex.
        version: From the file's name or soname (``12``, ``550.54.15``), None when not told.
        layers: Of runtime, driver, nccl, those it has functions of; sorted.
        functions: Symbol to the file offset to attach at. It is the function's begin, or the
            instruction behind a leading ``endbr64`` where that one is cheap to probe.
        costs: Symbol to class of cost, see :func:`cost_class`.
        aliases: Symbols of functions that another symbol in ``functions`` names already.
        imports: Declared functions that it calls in other files; sorted.
        unknown_launches: Launch functions that it calls and that nobody declared; sorted.
        is_static: It holds a CUDA runtime without being libcudart.
        is_stripped: It has no full symbol table, so a static runtime in it cannot be seen.
        has_hidden_runtime: It holds a static runtime whose symbols were stripped.
    """

    soname: str | None = None
    build_id: str | None = None
    version: str | None = None
    layers: tuple[str, ...] = ()
    functions: Mapping[str, int] = field(default_factory=dict)
    costs: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    unknown_launches: tuple[str, ...] = ()
    is_static: bool = False
    is_stripped: bool = False
    has_hidden_runtime: bool = False

    @property
    def is_relevant(self) -> bool:
        """Whether it has to do with CUDA at all."""
        return bool(
            self.functions or self.imports or self.unknown_launches or self.has_hidden_runtime
        )


@dataclass(frozen=True)
class Library:
    """One file as mapped by one process.

    Attributes:
        pid: Process that maps it.
        path: Path as the process sees it, with ``(deleted)`` kept.
        open_path: Path that opens that very file from here; None when none does.
        device_inode: ``major:minor:inode``, equal for all processes that map the file.
        file: What it holds.
        problem: One sentence when it could not be read.
    """

    pid: int
    path: str
    open_path: str | None
    device_inode: str
    file: LibraryFile = LibraryFile()
    problem: str = ""


def cost_class(code: bytes) -> str:
    """Return the class of cost of a probe on an x86-64 instruction.

    ``emulated`` (push, jump, call, nop: 0.6-0.7 µs measured on Linux 6.18), ``nop5`` (the
    five-byte nop: 0.45 µs), or ``stepped`` (all else, ``endbr64`` included: 9.2 µs).
    """
    if code[:5] == _NOP5:
        return "nop5"
    first, second = (*code[:2], 0, 0)[:2]
    is_push = 0x50 <= first <= 0x57 or (first == 0x41 and 0x50 <= second <= 0x57)
    is_jump = first in (0xE8, 0xE9, 0xEB) or 0x70 <= first <= 0x7F
    is_far_jump = first == 0x0F and 0x80 <= second <= 0x8F
    is_nop = first == 0x90 or (first, second) == (0x0F, 0x1F)
    if is_push or is_jump or is_far_jump or is_nop:
        return "emulated"
    return "stepped"


def read_library(elf: ElfFile, symbols: Mapping[str, Function] = by_symbol) -> LibraryFile:
    """Return what a file holds of the declared functions, exported or in its full table.

    Raises:
        ElfError: the file is damaged.
    """
    names = frozenset(symbols)
    found = {symbol.name: symbol for symbol in elf.functions(names)}
    exported = set(found)
    if elf.has_symtab:
        for symbol in elf.functions(names, "symtab"):
            found.setdefault(symbol.name, symbol)
    functions: dict[str, int] = {}
    costs: dict[str, str] = {}
    aliases: dict[str, str] = {}
    first_at: dict[int, str] = {}
    # Exported names first, so that an alias is never kept in place of the declared name.
    for name in sorted(found, key=lambda name: (name not in exported, name)):
        offset = elf.file_offset(found[name].address)
        if offset is None:
            continue
        if offset in first_at:
            aliases[name] = first_at[offset]
            continue
        first_at[offset] = name
        functions[name], costs[name] = _attach_place(elf, offset)
    soname = elf.soname
    has_runtime = any(symbols[name].layer == "runtime" for name in functions)
    imports = elf.imports(names | JUMPS.keys())
    unknown = sorted(
        name
        for name in {*elf.imports_containing(b"cudaLaunch"), *elf.imports_containing(b"cuLaunch")}
        | {*elf.imports_containing(b"cudaGraphLaunch"), *elf.imports_containing(b"cuGraphLaunch")}
        if name not in symbols and name not in JUMPS and _LAUNCH_LIKE.fullmatch(name)
    )
    return LibraryFile(
        soname=soname,
        build_id=elf.build_id,
        version=_version_of(soname),
        layers=tuple(sorted({symbols[name].layer for name in functions})),
        functions=functions,
        costs=costs,
        aliases=aliases,
        imports=tuple(imports),
        unknown_launches=tuple(unknown),
        is_static=has_runtime and not (soname or "").startswith("libcudart"),
        is_stripped=not elf.has_symtab,
        has_hidden_runtime=not has_runtime
        and not elf.has_symtab
        and _RUNTIME_MARKER in elf.section(".rodata", _RODATA_LIMIT_BYTES),
    )


def _attach_place(elf: ElfFile, offset: int) -> tuple[int, str]:
    """File offset to attach at and its class of cost, for a function that begins at an offset."""
    code = elf.read(offset, 16)
    if elf.machine != EM_X86_64:
        return offset, "stepped"
    if code.startswith(_ENDBR64):
        behind = cost_class(code[4:])
        if behind != "stepped":
            return offset + 4, behind
    return offset, cost_class(code)


def _version_of(name: str | None) -> str | None:
    match = _SONAME_VERSION.search(name or "")
    return match[1] if match else None


@dataclass
class _Seen:
    """What was found for one process at the last scan, by its first mapping of each file."""

    lines: list[bytes]
    mappings: dict[tuple[int, int], proc.Mapping]
    start_ticks: int
    libraries: list[Library]


class LibraryScanner:
    """Finds the CUDA libraries of processes, and remembers what files hold.

    Args:
        symbols: Declared functions by exported name.
        root: Where /proc is.
    """

    def __init__(self, symbols: Mapping[str, Function] = by_symbol, root: Path = proc.PROC) -> None:
        self._symbols = symbols
        self._root = root
        self._files: dict[tuple[int, int, int, int], LibraryFile] = {}
        self._seen: dict[int, _Seen] = {}

    def scan(self, pid: int) -> list[Library]:
        """Return the files mapped by a process that have to do with CUDA, by first address.

        Empty for a process that is gone, or whose maps may not be read. A file that could not be
        read is in the list with its problem.
        """
        state = proc.read_stat(pid, self._root)
        data = proc.read_bytes(f"{self._root}/{pid}/maps", proc.MAX_MAPS_BYTES)
        if state is None or not data:
            self._seen.pop(pid, None)
            return []
        lines = proc.executable_lines(data)
        seen = self._seen.get(pid)
        if seen is None or seen.start_ticks != state.start_ticks:
            seen = _Seen([], {}, state.start_ticks, [])
        if seen.lines == lines:
            return seen.libraries
        first: dict[tuple[int, int], proc.Mapping] = {}
        for mapping in proc.parse_maps(b"\n".join(lines), executable_only=True):
            first.setdefault((mapping.device, mapping.inode), mapping)
        known = {library.device_inode: library for library in seen.libraries}
        libraries = []
        for key, mapping in first.items():
            if seen.mappings.get(key) == mapping:
                library = known.get(_device_inode(mapping))
            else:
                library = self._look_at(pid, mapping)
            if library is not None:
                libraries.append(library)
        self._seen[pid] = _Seen(lines, first, state.start_ticks, libraries)
        return libraries

    def mappings(self, pid: int) -> list[proc.Mapping]:
        """Return the first executable mapping of each file of a process, as last scanned."""
        seen = self._seen.get(pid)
        return [] if seen is None else list(seen.mappings.values())

    def forget(self, pid: int) -> None:
        """Drop what is remembered of a process that ended."""
        self._seen.pop(pid, None)

    def _look_at(self, pid: int, mapping: proc.Mapping) -> Library | None:
        """The library of a mapping; None when the file has nothing to do with CUDA."""
        library = Library(pid, mapping.path, None, _device_inode(mapping))
        paths = (
            f"{self._root}/{pid}/map_files/{mapping.range_name}",
            f"{self._root}/{pid}/root{mapping.path.removesuffix(' (deleted)')}",
        )
        for path in paths:
            try:
                status = os.stat(path)  # noqa: PTH116 - a string is a third of the time here
            except OSError:
                continue
            if not stat.S_ISREG(status.st_mode):
                return None
            if not _is_same(status, path, mapping):
                continue
            key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            held = self._files.get(key)
            if held is None:
                try:
                    with ElfFile(path) as elf:
                        held = read_library(elf, self._symbols)
                except ElfError as error:
                    held = LibraryFile()
                    if _is_cuda_name(mapping.path):
                        return replace(library, problem=f"{mapping.path} cannot be used: {error}.")
                self._files[key] = held
            if not held.is_relevant:
                return None
            version = _version_of(mapping.path.removesuffix(" (deleted)"))
            if version and len(version) > len(held.version or ""):
                held = replace(held, version=version)
            return replace(library, open_path=path, file=held)
        if not _is_cuda_name(mapping.path):
            return None
        return replace(
            library,
            problem=f"{mapping.path} of process {pid} cannot be opened, so nothing in it is "
            "probed; run as root on the host.",
        )


def scan(pid: int, root: Path = proc.PROC) -> list[Library]:
    """Return the files mapped by a process that have to do with CUDA; for a single look."""
    return LibraryScanner(root=root).scan(pid)


def _device_inode(mapping: proc.Mapping) -> str:
    """``major:minor:inode`` of a mapping."""
    return f"{os.major(mapping.device)}:{os.minor(mapping.device)}:{mapping.inode}"


def _is_same(status: os.stat_result, path: str, mapping: proc.Mapping) -> bool:
    """Whether a path opens the file of a mapping.

    Some file systems (btrfs, overlay on older kernels) show another device in ``maps`` than to
    ``stat``; there a link of ``map_files`` that still names the mapping's path is believed.
    """
    if (status.st_dev, status.st_ino) == (mapping.device, mapping.inode):
        return True
    if "/map_files/" not in path:
        return False
    try:
        return os.readlink(path) == mapping.path  # noqa: PTH115 - a string is faster
    except OSError:
        return False


def _is_cuda_name(path: str) -> bool:
    """Whether a path is named like a CUDA library: such a one must not be skipped silently."""
    name = path.rpartition("/")[2].lower()
    return any(part in name for part in ("libcuda", "cudart", "nccl"))
