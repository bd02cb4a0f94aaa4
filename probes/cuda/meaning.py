"""What calls mean beyond their arguments: device of the thread, capture, first use of a kernel.

State over a recording. What was set before the recording began is not known, and stays unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from probes.cuda.decode import FUNCTIONS_BY_INDEX, Arguments
from probes.cuda.functions import SYMBOL_INDEX
from probes.cuda.pairing import Calls, index_threads
from probes.host import proc

_I64 = npt.NDArray[np.int64]
_Bool = npt.NDArray[np.bool_]

#: An ended capture is kept so long for calls that are still to come.
_KEEP_CAPTURE_NS = 5_000_000_000
#: Kinds that are recorded into a graph under capture instead of being executed.
_CAPTURED_KINDS = ("launch", "copy", "set", "graph_launch", "collective", "event", "wait")


def _symbols(pattern: str) -> _Bool:
    """Which functions have a name that matches."""
    matches = np.zeros(len(SYMBOL_INDEX), np.bool_)
    for symbol, index in SYMBOL_INDEX.items():
        matches[index] = re.fullmatch(pattern, symbol) is not None
    return matches


_SETS_DEVICE = _symbols("cudaSetDevice|cudaInitDevice")
_HIDES_DEVICE = _symbols("cuCtxSetCurrent|cuCtxCreate.*|cudaDeviceReset")
_BEGINS_CAPTURE = _symbols("(cuda|cu)StreamBegin(C|Rec)apture.*")
_ENDS_CAPTURE = _symbols("(cuda|cu)StreamEndCapture.*")
_REGISTERS = _symbols("__cudaRegisterFunction")
_IS_CAPTURED = np.array([function.kind in _CAPTURED_KINDS for function in FUNCTIONS_BY_INDEX])
_IS_LAUNCH = np.array(
    [function.kind in ("launch", "graph_launch") for function in FUNCTIONS_BY_INDEX]
)
_IS_DRIVER = np.array([function.layer == "driver" for function in FUNCTIONS_BY_INDEX])
_IS_GRAPH = np.array([function.kind == "graph_launch" for function in FUNCTIONS_BY_INDEX])


@dataclass
class _Capture:
    """One capture: where it goes on, from when and until when (None: not ended)."""

    pid_tgid: int
    stream: int
    start_ns: int
    end_ns: int | None = None


@dataclass(frozen=True)
class Meaning:
    """Columns as long as the calls; ``device`` is -1 and the flags' masks False where unknown."""

    device: npt.NDArray[np.int32]
    is_capture: _Bool
    is_first_seen: _Bool
    is_launch: _Bool
    is_first_use: _Bool
    knows_first_use: _Bool


class MeaningTracker:
    """Follows devices, captures and kernels of threads and processes.

    Args:
        root: Where /proc is.
    """

    def __init__(self, root: Path = proc.PROC) -> None:
        self._root = root
        self._device: dict[int, int] = {}
        self._visible: dict[int, list[int] | None] = {}
        self._captures: list[_Capture] = []
        #: Kernels by process and layer (whether the driver's), sorted.
        self._seen: dict[tuple[int, bool], npt.NDArray[np.uint64]] = {}
        self._registered: dict[int, set[int]] = {}
        self._started: set[int] = set()
        #: Kernels to be named; graphs have no name.
        self._new: dict[int, set[int]] = {}

    def note_start(self, pid: int) -> None:
        """The process's start, or the start of its program, was seen in this recording."""
        self.forget(pid)
        self._started.add(pid)

    def forget(self, pid: int) -> None:
        """Drop what is known of a process that ended or began another program."""
        for table in (self._visible, self._registered, self._new):
            table.pop(pid, None)
        for is_driver in (False, True):
            self._seen.pop((pid, is_driver), None)
        self._started.discard(pid)
        self._device = {key: value for key, value in self._device.items() if key >> 32 != pid}
        self._captures = [one for one in self._captures if one.pid_tgid >> 32 != pid]

    def explain(self, calls: Calls, arguments: Arguments) -> Meaning:
        """Return what the calls mean; they are taken over as the newest."""
        threads = index_threads(calls.pid_tgid)
        device = self._devices(calls, arguments, threads)
        is_capture = self._capture(calls, arguments)
        return Meaning(device, is_capture, *self._first(arguments, calls.function, threads))

    def take_new(self) -> dict[int, set[int]]:
        """Return the kernels that were first seen since the last call, by process."""
        new, self._new = self._new, {}
        return new

    def _devices(
        self,
        calls: Calls,
        arguments: Arguments,
        threads: tuple[npt.NDArray[np.uint64], _I64],
    ) -> npt.NDArray[np.int32]:
        """GPU of each call's thread; -1 is not known."""
        function, pid_tgid, start_ns = calls.function, calls.pid_tgid, calls.start_ns
        keys, thread = threads
        before = np.array([self._device.get(int(key), -1) for key in keys], np.int32)
        device: npt.NDArray[np.int32] = (
            before[thread] if len(keys) != 1 else np.full(len(calls), before[0])
        )
        if not (_SETS_DEVICE | _HIDES_DEVICE)[arguments.present].any():
            return device
        sets = np.flatnonzero(
            _is_good(calls)
            & (_SETS_DEVICE[function] | (_HIDES_DEVICE[function] & (calls.depth == 0)))
        )
        if not sets.size:
            return device
        ordinal = np.full(len(calls), -1, np.int32)
        if "device" in arguments.values:
            known = arguments.is_known["device"] & _SETS_DEVICE[function]
            ordinal[known] = arguments.values["device"][known]
        for key in np.unique(pid_tgid[sets]):
            mine = sets[pid_tgid[sets] == key]
            mine = mine[np.argsort(calls.end_ns[mine], kind="stable")]
            values = self._indices(int(key) >> 32, ordinal[mine])
            rows = np.flatnonzero(pid_tgid == key)
            latest = np.searchsorted(calls.end_ns[mine], start_ns[rows], side="right") - 1
            is_after = latest >= 0
            device[rows[is_after]] = values[latest[is_after]]
            device[mine] = np.where(values >= 0, values, device[mine])
            self._device[int(key)] = int(values[-1])
        return device

    def _indices(self, pid: int, ordinals: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """GPU indices of CUDA ordinals of a process; -1 where they cannot be told."""
        if pid not in self._visible:
            self._visible[pid] = visible_devices(pid, self._root)
        visible = self._visible[pid]
        if visible is None:
            return ordinals
        table = np.array([*visible, -1], np.int32)
        is_listed = (ordinals >= 0) & (ordinals < len(visible))
        chosen: npt.NDArray[np.int32] = table[np.where(is_listed, ordinals, -1)]
        return chosen

    def _capture(self, calls: Calls, arguments: Arguments) -> _Bool:
        """Which calls were recorded into a graph."""
        function, pid_tgid, start_ns = calls.function, calls.pid_tgid, calls.start_ns
        is_capture = np.zeros(len(calls), np.bool_)
        if not self._captures and not _BEGINS_CAPTURE[arguments.present].any():
            return is_capture
        stream = np.zeros(len(calls), np.uint64)
        if "stream" in arguments.values:
            np.copyto(stream, arguments.values["stream"], where=arguments.is_known["stream"])
        begins = np.flatnonzero(_is_good(calls) & _BEGINS_CAPTURE[function] & (calls.depth == 0))
        ends = np.flatnonzero(_ENDS_CAPTURE[function] & (calls.depth == 0))
        for row in sorted((*begins, *ends), key=lambda row: int(start_ns[row])):
            key, handle = int(pid_tgid[row]), int(stream[row])
            if _BEGINS_CAPTURE[function[row]]:
                self._captures.append(_Capture(key, handle, int(calls.end_ns[row])))
                continue
            for one in self._captures:
                if one.end_ns is None and one.pid_tgid >> 32 == key >> 32 and one.stream == handle:
                    one.end_ns = int(start_ns[row])
        for one in self._captures:
            end_ns = one.end_ns if one.end_ns is not None else np.iinfo(np.int64).max
            is_there = (pid_tgid == np.uint64(one.pid_tgid)) | (
                (stream == np.uint64(one.stream))
                & (pid_tgid >> np.uint64(32) == np.uint64(one.pid_tgid >> 32))
            )
            is_capture |= is_there & (start_ns >= one.start_ns) & (start_ns < end_ns)
        is_capture &= _IS_CAPTURED[function]
        if self._captures and len(calls):
            newest = int(start_ns.max())
            self._captures = [
                one
                for one in self._captures
                if one.end_ns is None or one.end_ns > newest - _KEEP_CAPTURE_NS
            ]
        return is_capture

    def _first(
        self,
        arguments: Arguments,
        function: _I64,
        threads: tuple[npt.NDArray[np.uint64], _I64],
    ) -> tuple[_Bool, _Bool, _Bool, _Bool]:
        """First seen, is a launch, first use, whether first use is known."""
        n = len(function)
        first = np.zeros(n, np.bool_)
        if "kernel" not in arguments.values:
            return first, first.copy(), first.copy(), first.copy()
        kernel = arguments.values["kernel"].view(np.uint64)
        is_known = arguments.is_known["kernel"]
        present = arguments.present
        is_launch: _Bool = _IS_LAUNCH.take(function) & is_known
        knows = is_launch.copy()
        is_of_driver = _IS_DRIVER.take(function)
        groups = [
            (is_driver, np.flatnonzero(is_launch & (is_of_driver == is_driver)))
            for is_driver in (False, True)
            if (_IS_LAUNCH[present] & (_IS_DRIVER[present] == is_driver)).any()
        ]
        registers = np.empty(0, np.int64)
        if _REGISTERS[present].any():
            registers = np.flatnonzero(_REGISTERS[function] & is_known)
        pids = (threads[0] >> np.uint64(32)).astype(np.int64)
        pid = pids[threads[1]] if len(pids) > 1 and (pids != pids[0]).any() else None
        for process in np.unique(pids).tolist():

            def own(rows: _I64, process: int = process) -> _I64:
                return rows if pid is None else rows[pid[rows] == process]

            if registers.size:
                known = self._registered.setdefault(process, set())
                known.update(kernel[own(registers)].tolist())
            for is_driver, group in groups:
                rows = own(group)
                if rows.size:
                    self._note_launches(process, is_driver, rows, kernel, function, first, knows)
        return first, is_launch, first & knows, knows

    def _note_launches(
        self,
        process: int,
        is_driver: bool,
        rows: _I64,
        kernel: npt.NDArray[np.uint64],
        function: _I64,
        first: _Bool,
        knows: _Bool,
    ) -> None:
        """Mark the first launches of kernels; the layers have handles of their own."""
        seen = self._seen.get((process, is_driver), np.empty(0, np.uint64))
        launched = kernel[rows]
        if len(seen):
            place = np.minimum(np.searchsorted(seen, launched), len(seen) - 1)
            if (seen[place] == launched).all():
                return
        handles, where = np.unique(launched, return_index=True)
        is_new = ~np.isin(handles, seen)
        self._seen[process, is_driver] = np.union1d(seen, handles)
        added = rows[where[is_new]]
        first[added] = True
        names = kernel[added[~_IS_GRAPH[function[added]]]]
        self._new.setdefault(process, set()).update(names.tolist())
        if process not in self._started:
            registered = self._registered.get(process, set())
            knows[added] = [handle in registered for handle in kernel[added].tolist()]


def _is_good(calls: Calls) -> _Bool:
    """Which calls returned without an error."""
    is_good: _Bool = calls.has_return & (calls.result == 0)
    return is_good


def visible_devices(pid: int, root: Path = proc.PROC) -> list[int] | None:
    """Return the GPU index of each CUDA ordinal of a process; None when all are visible in order.

    From ``CUDA_VISIBLE_DEVICES`` of the process's start; an entry that is no number ends up as -1.
    The environment is read for this one name and not kept.
    """
    data = proc.read_bytes(f"{root}/{pid}/environ") or b""
    for item in data.split(b"\0"):
        name, _, value = item.partition(b"=")
        if name == b"CUDA_VISIBLE_DEVICES":
            parts = value.decode(errors="replace").split(",")
            return [int(part) if part.strip().isdigit() else -1 for part in parts if part.strip()]
    return None
