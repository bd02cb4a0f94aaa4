"""The BPF side of a recording: loaded programs, rings, the set of targets, counters of losses.

Shared by the probes of calls and of off-CPU intervals, which are one BPF module.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from analysis.schema import (
    CALL_ENTRY,
    CALL_RETURN,
    COLLECTION_RECORD,
    OFFCPU_RECORD,
    PROCESS_RECORD,
)
from probes import attach, syscalls
from probes.cuda import program
from probes.cuda.loading import TRACEPOINTS, WAKE_BYTES, ModuleLoading
from probes.ring import Ring

#: Counters of the BPF side, by their index there.
COUNTERS = (
    "slot_collision",
    "too_deep",
    "process_lost",
    "offcpu_lost",
    "targets_full",
    "ring_full",
    "collections_lost",
)


class Tracing:
    """One loaded BPF module with its rings open.

    Args:
        loading: The module, being compiled; waited for here.

    Raises:
        ProbeError: the programs cannot be loaded on this machine.
    """

    def __init__(self, loading: ModuleLoading) -> None:
        self.is_multi = loading.is_multi
        self._module = loading.result()
        maps = self._module.maps
        for index, value in program.descriptions().items():
            syscalls.map_update(maps["described"], struct.pack("<I", index), value)
        self.entries = Ring(maps["entries"], loading.entry_bytes, CALL_ENTRY.numpy_dtype())
        self.returns = Ring(maps["returns"], loading.return_bytes, CALL_RETURN.numpy_dtype())
        self.processes = Ring(maps["processes"], loading.side_bytes, PROCESS_RECORD.numpy_dtype())
        self.offcpu = Ring(maps["offcpu"], loading.side_bytes, OFFCPU_RECORD.numpy_dtype())
        self.collections = Ring(
            maps["collections"], program.COLLECTION_BYTES, COLLECTION_RECORD.numpy_dtype()
        )
        #: New processes and libraries, for who attaches to them: readable when there are any.
        self.wakes = Ring(maps["wakes"], WAKE_BYTES, PROCESS_RECORD.numpy_dtype())
        self.wakes_descriptor = maps["wakes"]
        self.attacher = attach.Attacher(
            self._module.programs, program.RETURN_PROGRAM, self.is_multi
        )
        self._events: list[int] = []
        #: Held while rings are drained from another thread than the one that closes them.
        self.lock = threading.Lock()
        self.is_closed = False
        self._n_cpus = syscalls.possible_cpus()

    def watch(self, programs: Iterable[str]) -> list[int]:
        """Attach programs to their tracepoints; closing the returned descriptors detaches them."""
        events = [
            syscalls.attach_tracepoint(
                self._module.programs[name], self._module.tracepoints[TRACEPOINTS[name]]
            )
            for name in programs
        ]
        self._events.extend(events)
        return events

    def unwatch(self) -> None:
        """Detach every program from its tracepoint."""
        while self._events:
            os.close(self._events.pop())

    def add_target(self, pid: int) -> None:
        """Record this process from now on."""
        syscalls.map_update(
            self._module.maps["targets"], struct.pack("<I", pid), struct.pack("<Q", 0)
        )

    def remove_target(self, pid: int) -> None:
        """Record no new thread of this process any more."""
        syscalls.map_delete(self._module.maps["targets"], struct.pack("<I", pid))

    def target_pids(self) -> set[int]:
        """Return the processes that the kernel side records."""
        keys = syscalls.map_keys(self._module.maps["targets"], 4)
        return {int.from_bytes(key, "little") for key in keys}

    def counters(self) -> dict[str, int]:
        """Return what the kernel side counted since the start, by name."""
        return {
            name: int(self._per_cpu("counters", index).sum()) for index, name in enumerate(COUNTERS)
        }

    def lost(self, kind: str, symbols: Iterable[int]) -> dict[int, int]:
        """Return the records that found the ring full since the start, by symbol; zeros left out.

        Args:
            kind: ``entries`` or ``returns``.
            symbols: Numbers of the symbols to ask for.
        """
        counts = {index: int(self._per_cpu(f"lost_{kind}", index).sum()) for index in symbols}
        return {index: count for index, count in counts.items() if count}

    def _per_cpu(self, name: str, index: int) -> npt.NDArray[np.uint64]:
        key = struct.pack("<I", index)
        value = syscalls.map_lookup(self._module.maps[name], key, 8 * self._n_cpus)
        return np.frombuffer(value or b"", np.uint64)

    def close(self) -> None:
        """Detach the tracepoints and free rings, maps and programs."""
        self.unwatch()
        with self.lock:
            self.is_closed = True
            self._free()

    def _free(self) -> None:
        side = (self.processes, self.offcpu, self.collections, self.wakes)
        for ring in (self.entries, self.returns, *side):
            ring.close()
        self._module.close()
