"""Names for the kernel handles and addresses that launches carry.

A launch names its kernel by the address of its host function (CUDA 12), by a handle that the
runtime filled into a variable of the program (CUDA 13), or by a driver handle. Names come, in
this order, from look-ups and registrations that were seen live, from the symbols of the mapped
file, and from the handle variables of unstripped files. Where none tells, the name is null.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from analysis.schema import KERNEL_FUNCTION
from probes.cuda.demangle import kernel_name
from probes.cuda.elf import ElfError, ElfFile
from probes.cuda.memory import ProcessMemory
from probes.host import proc
from probes.probe import Batch, make_batch

#: Most handles that are worked on in one call; the others wait for the next.
MAX_PER_CALL = 2048
#: Most look-ups read in one call, and most registrations remembered of one process.
MAX_LOOKUPS = 1024
MAX_REGISTRATIONS = 1 << 20
#: Most handle variables that are remembered of one file.
MAX_VARIABLES = 1 << 18
#: Waits before an unnamed handle is tried again; afterwards its name is null.
RETRIES_NS = (1_000_000_000, 5_000_000_000)

_VARIABLE_MARK = b"E8__handle"
_VARIABLE = re.compile(r"_ZZL?(\d+)(?=[_a-zA-Z])")

_Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class _Name:
    """What is known of a kernel; ``name`` None when nothing is."""

    name: str | None
    source: str
    module: str | None = None
    build_id: str | None = None


@dataclass(frozen=True)
class _Module:
    """One mapped file of a process: where it lies and how to open it."""

    start: int
    end: int
    offset: int
    key: tuple[int, int]
    path: str
    open_path: str


@dataclass(frozen=True)
class _Variables:
    """Handle variables of one file: addresses as linked and the symbols of their kernels."""

    addresses: _Words
    symbols: tuple[str, ...]
    build_id: str | None


@dataclass
class _Process:
    """What is known of one process."""

    start_ticks: int
    done: _Words = field(default_factory=lambda: np.empty(0, np.uint64))
    #: Handle to number of tries and time of the next.
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: Host functions and where their names lie, as registered; later ones win.
    registered: list[tuple[_Words, _Words]] = field(default_factory=list)
    #: Variables that hold handles, and the host functions they stand for.
    variables: list[tuple[_Words, _Words]] = field(default_factory=list)
    #: Driver handle to name; None where two look-ups contradict each other.
    looked_up: dict[int, str | None] = field(default_factory=dict)


class KernelNames:
    """Resolves kernel handles of processes into rows of ``kernel_function``, each once.

    Args:
        root: Where /proc is.
    """

    def __init__(self, root: Path = proc.PROC) -> None:
        self._root = root
        self._processes: dict[int, _Process] = {}
        self._variables: dict[tuple[int, int], _Variables] = {}

    def note_registration(self, pid: int, host_functions: _Words, name_addresses: _Words) -> None:
        """Take over calls of ``__cudaRegisterFunction``: second and fourth argument.

        Only the names of kernels that are launched are read later: they are constants.
        """
        self._note(pid, "registered", host_functions, name_addresses)

    def note_handles(self, pid: int, variables: _Words, host_functions: _Words) -> None:
        """Take over calls of ``__cudaGetKernel``: address of the handle, and the host function."""
        self._note(pid, "variables", variables, host_functions)

    def note_lookup(self, pid: int, out_addresses: _Words, name_addresses: _Words) -> None:
        """Take over successful calls of ``cuModuleGetFunction`` or ``cuLibraryGetKernel``.

        Args:
            pid: Process.
            out_addresses: Where the call stored the handle (first argument).
            name_addresses: The name asked for.

        Note:
            Both are read after the call, from memory that the program may have used again: of
            several calls into one place only the last is believed, and a handle with two
            different names has none.
        """
        process = self._process(pid)
        if process is None or not len(out_addresses):
            return
        places, last = np.unique(out_addresses[::-1], return_index=True)
        names_at = name_addresses[::-1][last]
        places, names_at = places[:MAX_LOOKUPS], names_at[:MAX_LOOKUPS]
        with ProcessMemory(pid, self._root) as memory:
            handles, is_read = memory.words(places)
            names = memory.strings(names_at)
        for handle, name_at in zip(
            handles[is_read].tolist(), names_at[is_read].tolist(), strict=True
        ):
            name = names.get(name_at)
            if handle and name:
                before = process.looked_up.get(handle, name)
                process.looked_up[handle] = name if before == name else None
        self._retry(process, handles[is_read])

    def resolve(self, pid: int, handles: _Words, time_ns: int) -> Batch:
        """Return rows for the handles that became known, or known to have no name.

        A handle that nothing names is tried again after 1 s and 5 s, then gets a row without a
        name. Handles that got a row are skipped; after one without a name, a later registration
        or look-up gives a second row.

        Args:
            pid: Process that launched.
            handles: ``cuda_call.kernel`` of its launches, repetitions allowed; may be empty.
            time_ns: CLOCK_MONOTONIC.
        """
        process = self._process(pid)
        if process is None:
            return _batch(pid, {}, time_ns)
        new = np.setdiff1d(handles[handles != 0], process.done)
        for handle in new.tolist():
            process.waiting.setdefault(handle, (0, time_ns))
        due = [handle for handle, (_, at) in process.waiting.items() if at <= time_ns]
        due = due[:MAX_PER_CALL]
        if not due:
            return _batch(pid, {}, time_ns)
        found = self._names_of(pid, process, np.array(due, np.uint64))
        for handle in due:
            if handle in found:
                del process.waiting[handle]
                continue
            tries = process.waiting[handle][0]
            if tries < len(RETRIES_NS):
                process.waiting[handle] = (tries + 1, time_ns + RETRIES_NS[tries])
            else:
                del process.waiting[handle]
                found[handle] = _Name(None, "elf")
        process.done = np.union1d(process.done, np.array(list(found), np.uint64))
        return _batch(pid, found, time_ns)

    def forget(self, pid: int) -> None:
        """Drop what is known of a process that ended or began another program."""
        self._processes.pop(pid, None)

    def _process(self, pid: int) -> _Process | None:
        """What is known of a process; None when it is gone."""
        stat = proc.read_stat(pid, self._root)
        if stat is None or stat.is_dead:
            self._processes.pop(pid, None)
            return None
        known = self._processes.get(pid)
        if known is None or known.start_ticks != stat.start_ticks:
            known = self._processes[pid] = _Process(stat.start_ticks)
        return known

    def _note(self, pid: int, kind: str, keys: _Words, values: _Words) -> None:
        process = self._process(pid)
        if process is None or not len(keys):
            return
        chunks: list[tuple[_Words, _Words]] = getattr(process, kind)
        if sum(len(chunk) for chunk, _ in chunks) + len(keys) <= MAX_REGISTRATIONS:
            chunks.append((keys.astype(np.uint64), values.astype(np.uint64)))
        if kind == "registered":
            self._retry(process, keys)

    @staticmethod
    def _retry(process: _Process, handles: _Words) -> None:
        """Let handles that were given up or wait be tried at the next call."""
        for handle in np.intersect1d(process.done, handles).tolist():
            process.waiting[handle] = (len(RETRIES_NS), 0)
        process.done = np.setdiff1d(process.done, handles)
        for handle in handles.tolist():
            if handle in process.waiting:
                process.waiting[handle] = (process.waiting[handle][0], 0)

    def _names_of(self, pid: int, process: _Process, due: _Words) -> dict[int, _Name]:
        """Names of handles, by all ways that are open."""
        found: dict[int, _Name] = {}
        for handle in due.tolist():
            looked_up = process.looked_up.get(handle)
            if looked_up is not None:
                found[handle] = _Name(kernel_name(looked_up), "module_lookup")
        modules = self._modules(pid)
        with ProcessMemory(pid, self._root) as memory:
            left = _without(due, found)
            found |= self._names_of_functions(process, memory, modules, left)
            left = _without(due, found)
            if len(left) and process.variables:
                held = _by_variables(process, memory, left)
                functions = np.unique(np.array(list(held.values()), np.uint64))
                names = self._names_of_functions(process, memory, modules, functions)
                found |= {h: names[f] for h, f in held.items() if f in names}
                left = _without(due, found)
            if len(left):
                found |= self._names_by_symbols(memory, modules, left)
        return found

    def _modules(self, pid: int) -> list[_Module]:
        """Executable mappings of files, by address."""
        return [
            _Module(
                mapping.start,
                mapping.end,
                mapping.offset,
                (mapping.device, mapping.inode),
                mapping.path,
                f"{self._root}/{pid}/map_files/{mapping.range_name}",
            )
            for mapping in proc.read_maps(pid, self._root, executable_only=True)
        ]

    def _names_of_functions(
        self, process: _Process, memory: ProcessMemory, modules: list[_Module], functions: _Words
    ) -> dict[int, _Name]:
        """Names of host functions: as registered, else by the symbols of the file."""
        found: dict[int, _Name] = {}
        if not len(functions):
            return found
        name_at: dict[int, int] = {}
        for keys, values in process.registered:
            is_wanted = np.isin(keys, functions)
            name_at.update(zip(keys[is_wanted].tolist(), values[is_wanted].tolist(), strict=True))
        texts = memory.strings(np.array(list(name_at.values()), np.uint64))
        starts = np.array([module.start for module in modules], np.uint64)
        places = np.searchsorted(starts, functions, side="right") - 1
        for place in np.unique(places[places >= 0]).tolist():
            module = modules[place]
            held = functions[(places == place) & (functions < np.uint64(module.end))]
            if not len(held):
                continue
            try:
                with ElfFile(module.open_path) as elf:
                    bias = elf.load_bias(module.start, module.offset)
                    build_id = elf.build_id
                    symbols: list[str | None] = [None] * len(held)
                    is_all_named = all(name_at.get(f) in texts for f in held.tolist())
                    if bias is not None and not is_all_named:
                        symbols = elf.functions_at(held - np.uint64(bias))
            except ElfError:
                continue
            for function, symbol in zip(held.tolist(), symbols, strict=True):
                text = texts.get(name_at.get(function, 0))
                if text is not None:
                    name = _Name(kernel_name(text), "registration", module.path, build_id)
                    found[function] = name
                elif symbol is not None:
                    name = _Name(kernel_name(symbol), "elf", module.path, build_id)
                    found[function] = name
        return found

    def _names_by_symbols(
        self, memory: ProcessMemory, modules: list[_Module], handles: _Words
    ) -> dict[int, _Name]:
        """Names of CUDA 13 handles: by the variables of unstripped files that hold them."""
        found: dict[int, _Name] = {}
        seen: set[tuple[int, int]] = set()
        for module in modules:
            if module.key in seen:
                continue
            seen.add(module.key)
            known = self._variables.get(module.key)
            try:
                if known is None:
                    with ElfFile(module.open_path) as elf:
                        known = self._variables[module.key] = _variables_of(elf)
                if not len(known.addresses):
                    continue
                with ElfFile(module.open_path) as elf:
                    bias = elf.load_bias(module.start, module.offset)
            except ElfError:
                continue
            if bias is None:
                continue
            values, is_read = memory.words(known.addresses + np.uint64(bias))
            for index in np.flatnonzero(is_read & np.isin(values, handles)).tolist():
                found[int(values[index])] = _Name(
                    kernel_name(known.symbols[index]), "elf", module.path, known.build_id
                )
        return found


def _variables_of(elf: ElfFile) -> _Variables:
    """Handle variables that nvcc made: ``_ZZ24__device_stub__Z4kernPfiPfiE8__handle``."""
    addresses = []
    symbols = []
    for symbol in elf.symbols_containing(_VARIABLE_MARK)[:MAX_VARIABLES]:
        match = _VARIABLE.match(symbol.name)
        if match is None or not symbol.name.endswith("E8__handle"):
            continue
        stub = symbol.name[match.end() : match.end() + int(match[1])]
        if stub.startswith("__device_stub_"):
            addresses.append(symbol.address)
            symbols.append(stub)
    return _Variables(np.array(addresses, np.uint64), tuple(symbols), elf.build_id)


def _by_variables(process: _Process, memory: ProcessMemory, handles: _Words) -> dict[int, int]:
    """Host function of each handle that a noted variable holds now."""
    variables = np.concatenate([chunk for chunk, _ in process.variables])
    functions = np.concatenate([chunk for _, chunk in process.variables])
    values, is_read = memory.words(variables)
    is_hit = is_read & np.isin(values, handles)
    return dict(zip(values[is_hit].tolist(), functions[is_hit].tolist(), strict=True))


def _without(handles: _Words, found: Iterable[int]) -> _Words:
    """Handles that are not found yet."""
    return np.setdiff1d(handles, np.array(list(found), np.uint64))


def _batch(pid: int, found: dict[int, _Name], time_ns: int) -> Batch:
    """Rows of ``kernel_function``."""
    names = list(found.values())
    return make_batch(
        KERNEL_FUNCTION,
        {
            "time_ns": np.full(len(found), time_ns, np.int64),
            "pid": np.full(len(found), pid, np.int32),
            "kernel": np.array(list(found), np.uint64),
            "name": [name.name for name in names],
            "module": [name.module for name in names],
            "build_id": [name.build_id for name in names],
            "source": [name.source for name in names],
        },
    )
