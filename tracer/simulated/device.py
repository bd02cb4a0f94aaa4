"""The simulated machine's controller: rates, clocks, faults, MPS, and what really happened.

What is simulated, in C (``native/core``), for all processes together and on CLOCK_MONOTONIC:

* Streams are in order; 1024 operations can wait in one, and then the launch blocks, and with it
  every other launch of the context. The legacy default stream orders itself with blocking streams.
* A kernel takes the larger of its compute time (over ``clock_factor``) and its memory time (over
  ``memory_factor``). The times come from the workload: for its next launch, for a kernel's name, or
  from FLOPs and bytes at the device's rates. A captured graph replays as one operation, cut only at
  collectives. Between host and device, copies use the link, pageable ones at a quarter of it.
* Streams whose turn it is overlap: each asks for its share of the device, all of it unless told
  otherwise, and when the sum exceeds 1 all are slowed alike. Processes take turns of
  ``timeslice_ns``, unless they are in MPS, which counts as one. A process that has nothing to run
  gives up its turn.
* A synchronising call sleeps until the device is done. ``cudaSetDeviceFlags``, the variable
  ``TRACER_SIM_SYNC`` (block, yield, spin) or ``default_wait`` make it spin instead; the real
  runtime's own default would spin on a machine with spare CPUs.
* The first use of a module and of each kernel burns CPU time. A collective starts when all its
  ranks have entered. A kernel can hang until its process dies, with all that the process held.
* NVML reads the same clock through real windows: utilisation over the last whole
  ``util_window_ns``, power over one second, energy since the start.

What is not: the contents of device memory (copies from it give zeros), what kernels compute,
module images (any kernel that is asked for exists), caches, NVLink, MIG, and counters beyond
GPM's few. The 50 µs that a change of context costs are a guess. Nothing runs between two calls: the
simulation is carried forward by whoever looks at it, so it needs no process of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int32, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracer.simulated.build import Libraries, build

#: Variable that tells a process which simulated machine it is on.
STATE_VARIABLE = "TRACER_SIM_STATE"
#: NVML errors for :meth:`SimulatedDevice.fail_nvml`; the first is a call that never returns.
NVML_BLOCKS, NVML_NOT_SUPPORTED, NVML_GPU_IS_LOST = 1, 3, 15
#: One true activity of a device, as the core writes it. ``kind``: 1 kernel, 2 graph, 3 copy to the
#: device, 4 copy from it, 5 copy within it, 6 set, 7 collective. Bit 1 of ``flags``: cut off by the
#: death of its process.
TRUTH = np.dtype(
    [
        ("submit_ns", "<i8"),
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("bytes", "<i8"),
        ("kernel", "<u4"),
        ("pid", "<i4"),
        ("stream", "<u4"),
        ("device", "<u4"),
        ("count", "<u4"),
        ("kind", "u1"),
        ("flags", "u1"),
        ("share", "<u2"),
        ("reserved", "<u8"),
    ]
)
# A file in memory: on a disk, writing back its pages would delay the launches of the workload.
MEMORY = Path("/dev/shm")
MEMORY_PREFIX = "tracer-simulated-"
_DEVICES = 8
_CLIENTS = 64
_NO_DEVICE = -1


class DeviceError(Exception):
    """The simulated machine refuses; the message says what and why."""


class _Totals(ctypes.Structure):
    _fields_ = (
        *((name, c_uint64) for name in ("now_ns", "created_ns", "busy_ns", "sm_ns", "memory_ns")),
        *((name, c_uint64) for name in ("tensor_ns", "rx_bytes", "tx_bytes", "switches")),
        ("recoveries", c_uint64),
    )


class _Client(ctypes.Structure):
    _fields_ = (
        ("pid", c_int32),
        ("mps", c_uint32),
        ("launches", c_uint64),
        ("memory_bytes", c_uint64 * _DEVICES),
        ("contexts", c_uint32 * _DEVICES),
    )


@dataclass(frozen=True)
class Totals:
    """What one device did since it was made, in ns, bytes and turns of contexts."""

    now_ns: int
    created_ns: int
    busy_ns: int
    sm_ns: int
    memory_ns: int
    tensor_ns: int
    rx_bytes: int
    tx_bytes: int
    switches: int
    recoveries: int


@dataclass(frozen=True)
class Client:
    """One process with a context on the machine."""

    pid: int
    is_in_mps: bool
    launches: int


class SimulatedDevice:
    """A simulated machine with one or more devices, shared by every process started with its
    :meth:`env`.

    Args:
        path: State file to make: a symbolic link to a file in memory, where there is room for
            such. A second file with the ending ``.clients`` is made beside it.
        devices: Devices of the machine, 1 to 8.
        truth_capacity: Activities kept for :meth:`truth`, a power of 2, or 0 for none.

    Raises:
        BuildError: the libraries cannot be built.
        DeviceError: the state cannot be made.
    """

    def __init__(self, path: Path, devices: int = 1, truth_capacity: int = 1 << 16) -> None:
        self.path = path
        self.libraries: Libraries = build()
        self._core = _core(self.libraries)
        self._truth_capacity = truth_capacity
        self._cursor = 0
        self._handle: int | None = None
        self._file = path
        if os.access(MEMORY, os.W_OK):
            self._file = MEMORY / f"{MEMORY_PREFIX}{secrets.token_hex(8)}"
        made = self._core.sim_create(str(self._file).encode(), devices, truth_capacity)
        if made:
            self._core.sim_close(made)
            self._file.with_name(self._file.name + ".clients").unlink(missing_ok=True)
            try:
                if self._file != path:
                    path.symlink_to(self._file)
                self._handle = self._core.sim_open(str(path).encode())
            except OSError:
                self._file.unlink()
        if not self._handle:
            raise DeviceError(f"The state {path} cannot be made. Remove it if it is left over.")

    def __enter__(self) -> SimulatedDevice:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def env(self) -> dict[str, str]:
        """Variables with which a process finds this machine's libraries and its state."""
        return {
            STATE_VARIABLE: str(self.path),
            "LD_LIBRARY_PATH": self.libraries.library_path(),
        }

    def set(self, name: str, value: float, device: int | None = None) -> None:
        """Set a value of ``struct sim_config`` of a device, or of ``struct sim_global``.

        Raises:
            DeviceError: there is no such value.
        """
        index = _NO_DEVICE if device is None else device
        if self._core.sim_set(self._handle, index, name.encode(), value) != 0:
            raise DeviceError(f"The simulated machine has no value {name}.")

    def get(self, name: str, device: int | None = None) -> float:
        """Return a value that :meth:`set` can set.

        Raises:
            DeviceError: there is no such value.
        """
        index = _NO_DEVICE if device is None else device
        value = c_double()
        if self._core.sim_get(self._handle, index, name.encode(), byref(value)) != 0:
            raise DeviceError(f"The simulated machine has no value {name}.")
        return value.value

    def release_hangs(self, device: int = 0) -> None:
        """End the kernels that hang now."""
        self.set("hang_release", self.get("hang_release", device) + 1, device)

    def fail_nvml(self, fault: int, functions: str = "") -> None:
        """Make NVML fail until ``fault`` is 0.

        Args:
            fault: ``NVML_BLOCKS`` for calls that do not return, or the NVML error they return.
            functions: Strike only functions whose name begins so; all by default.
        """
        self._core.sim_set_fault_function(self._handle, functions.encode())
        self.set("nvml_fault", fault)

    def start_mps(self, pipe: Path) -> None:
        """Begin to be an MPS server whose control pipe is in the folder ``pipe``.

        A process started from now on is in MPS if its ``CUDA_MPS_PIPE_DIRECTORY`` is that folder.
        """
        pipe.mkdir(parents=True, exist_ok=True)
        (pipe / "control").touch()
        self._core.sim_set_mps_pipe(self._handle, str(pipe).encode())
        self.set("mps", 1)

    def set_mps(self, pid: int, is_in_mps: bool) -> None:
        """Move a live process into MPS or out of it, as no real machine can.

        Raises:
            DeviceError: the process has no context.
        """
        if self._core.sim_set_mps(self._handle, pid, int(is_in_mps)) != 0:
            raise DeviceError(f"Process {pid} has no context on the simulated machine.")

    def totals(self, device: int = 0) -> Totals:
        """Return what a device did since it was made.

        Raises:
            DeviceError: there is no such device.
        """
        totals = _Totals()
        if self._core.sim_read_totals(self._handle, device, byref(totals)) != 0:
            raise DeviceError(f"The simulated machine has no device {device}.")
        return Totals(*(int(getattr(totals, name)) for name in Totals.__dataclass_fields__))

    def clients(self) -> list[Client]:
        """Return the live processes that have used the machine."""
        buffer = (_Client * _CLIENTS)()
        n = self._core.sim_read_clients(self._handle, buffer, _CLIENTS)
        return [Client(c.pid, bool(c.mps), c.launches) for c in buffer[:n]]

    def truth(self) -> npt.NDArray[np.void]:
        """Return the activities that ended since the last call, in the order of their ends.

        Returns:
            Array of dtype :data:`TRUTH`, times in ns of CLOCK_MONOTONIC. Only tests may look.

        Raises:
            DeviceError: more activities ended since then than the machine keeps.
        """
        rows = np.zeros(self._truth_capacity, TRUTH)
        cursor, lost = c_uint64(self._cursor), c_uint64()
        address = rows.ctypes.data
        n = self._core.sim_read_truth(self._handle, byref(cursor), address, len(rows), byref(lost))
        self._cursor = cursor.value
        if lost.value:
            raise DeviceError(
                f"{lost.value} activities were overwritten before they were read. "
                "Read more often, or make the machine with a larger truth_capacity."
            )
        return rows[:n]

    def kernel_name(self, kernel: int) -> str:
        """Name of a kernel of :meth:`truth`; empty for graphs, copies and sets."""
        name: bytes = self._core.sim_kernel_name(self._handle, kernel)
        return name.decode(errors="replace")

    def close(self) -> None:
        """Let go of the machine and remove its files."""
        if self._handle:
            self._core.sim_close(self._handle)
            self._handle = None
        for path in (self.path, self.path.with_name(self.path.name + ".clients"), self._file):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _core(libraries: Libraries) -> ctypes.CDLL:
    core = ctypes.CDLL(str(libraries.libtracersim))

    def declare(name: str, result: type[Any] | None, *arguments: Any) -> None:
        function: Callable[..., Any] = getattr(core, name)
        function.argtypes = arguments  # type: ignore[attr-defined]
        function.restype = result  # type: ignore[attr-defined]

    declare("sim_create", c_void_p, c_char_p, c_uint32, c_uint32)
    declare("sim_open", c_void_p, c_char_p)
    declare("sim_close", None, c_void_p)
    declare("sim_set", c_int, c_void_p, c_int, c_char_p, c_double)
    declare("sim_get", c_int, c_void_p, c_int, c_char_p, POINTER(c_double))
    declare("sim_set_fault_function", None, c_void_p, c_char_p)
    declare("sim_set_mps_pipe", None, c_void_p, c_char_p)
    declare("sim_set_mps", c_int, c_void_p, c_int, c_int)
    declare("sim_read_totals", c_int, c_void_p, c_uint32, POINTER(_Totals))
    declare("sim_read_clients", c_uint32, c_void_p, POINTER(_Client), c_uint32)
    declare(
        "sim_read_truth",
        c_uint32,
        *(c_void_p, POINTER(c_uint64), c_void_p, c_uint32, POINTER(c_uint64)),
    )
    declare("sim_kernel_name", c_char_p, c_void_p, c_uint32)
    return core
