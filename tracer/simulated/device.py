"""The simulated machine's controller: rates, clocks, faults, MPS, and what really happened."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int32, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path

from tracer.simulated.build import Libraries, build

#: Variable that tells a process which simulated machine it is on.
STATE_VARIABLE = "TRACER_SIM_STATE"
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
        path: State file to make; a second file with the ending ``.clients`` is made beside it.
        devices: Devices of the machine, 1 to 8.
        truth_capacity: Activities kept for :meth:`SimulatedDevice.totals` and tests, a power of 2.

    Raises:
        DeviceError: the state cannot be made.
    """

    def __init__(self, path: Path, devices: int = 1, truth_capacity: int = 1 << 16) -> None:
        self.path = path
        self.libraries: Libraries = build()
        self._core = _core(self.libraries)
        self._handle = self._core.sim_create(str(path).encode(), devices, truth_capacity)
        if not self._handle:
            raise DeviceError(f"The state {path} cannot be made. Remove it if it is left over.")

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

    def start_mps(self, pipe: Path) -> None:
        """Begin to be an MPS server whose control pipe is in the folder ``pipe``."""
        pipe.mkdir(parents=True, exist_ok=True)
        (pipe / "control").touch()
        self._core.sim_set_mps_pipe(self._handle, str(pipe).encode())
        self.set("mps", 1)

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

    def close(self) -> None:
        """Let go of the machine and remove its files."""
        if self._handle:
            self._core.sim_close(self._handle)
            self._handle = None
        for path in (self.path, self.path.with_name(self.path.name + ".clients")):
            path.unlink(missing_ok=True)


def _core(libraries: Libraries) -> ctypes.CDLL:
    core = ctypes.CDLL(str(libraries.libtracersim))
    core.sim_create.argtypes = (c_char_p, c_uint32, c_uint32)
    core.sim_create.restype = c_void_p
    core.sim_close.argtypes = (c_void_p,)
    core.sim_close.restype = None
    core.sim_set.argtypes = (c_void_p, c_int, c_char_p, c_double)
    core.sim_get.argtypes = (c_void_p, c_int, c_char_p, POINTER(c_double))
    core.sim_set_mps_pipe.argtypes = (c_void_p, c_char_p)
    core.sim_set_mps_pipe.restype = None
    core.sim_read_totals.argtypes = (c_void_p, c_uint32, POINTER(_Totals))
    core.sim_read_clients.argtypes = (c_void_p, POINTER(_Client), c_uint32)
    core.sim_read_clients.restype = c_uint32
    return core
