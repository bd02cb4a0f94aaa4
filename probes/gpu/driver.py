"""Calls into NVML, each marked while it lasts so that another process can see one that is stuck.

Runs in the sampler's child process. The module ``pynvml`` itself comes from the caller.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

#: Slots of the watch area: one for each thread that calls the driver.
FAST, SLOW, EVENTS = 0, 1, 2
N_SLOTS = 3
#: Slot: begin of the call in ns (0: none under way), device (-1: none), name of the function.
_SLOT = struct.Struct("=qq48s")
_BEGIN = struct.Struct("=q")
WATCH_BYTES = _SLOT.size * N_SLOTS

#: Time for which a call that is not supported is not tried again.
_RETRY_NS = 60_000_000_000
_NOT_SUPPORTED = {2, 3, 4, 13, 25, 26}
_NOTHING_THERE = {6, 21, 27}
_LOST = {15, 16, 28}
#: Uninitialised, driver not loaded, blocked by the system, library and driver of two versions.
_GONE = {1, 9, 17, 18}


class DeviceLostError(Exception):
    """The driver says that a device is gone; the text is the driver's."""

    def __init__(self, device: int, function: str, text: str) -> None:
        super().__init__(text)
        self.device = device
        self.function = function


class DriverGoneError(DeviceLostError):
    """The driver as a whole is gone: only another process can find it again."""


class Driver:
    """Calls the driver from one thread.

    Args:
        nvml: The module ``pynvml``.
        watch: The watch area shared with the parent.
        slot: The thread's slot in it.
    """

    def __init__(self, nvml: Any, watch: mmap.mmap, slot: int) -> None:
        self.nvml = nvml
        #: Time spent in the driver.
        self.spent_ns = 0
        #: Unexpected errors by function and code.
        self.errors: Counter[str] = Counter()
        self._watch = watch
        self._offset = slot * _SLOT.size
        self._retry: dict[tuple[str, int, int], int] = {}
        #: Functions called before, and their names as a slot holds them.
        self._known: dict[str, tuple[Callable[..., Any], bytes]] = {}

    def call(self, function: str, device: int, *args: Any, variant: int = 0) -> Any:
        """Return what an NVML function returns; None when it is not supported or has nothing.

        Args:
            function: Name in ``pynvml``.
            device: Index of the device concerned, -1 for none.
            args: Its arguments.
            variant: Tells apart calls of one function that are supported independently.

        Raises:
            DeviceLostError: the device is gone.
            DriverGoneError: the driver is.
        """
        key = (function, device, variant)
        if key in self._retry and self._retry[key] > time.monotonic_ns():
            return None
        try:
            return self.attempt(function, device, *args)
        except self.nvml.NVMLError as error:
            code = int(getattr(error, "value", 999))
            if code in _GONE:
                raise DriverGoneError(device, function, str(error)) from None
            if code in _LOST and device >= 0:
                raise DeviceLostError(device, function, str(error)) from None
            if code in _NOT_SUPPORTED:
                self._retry[key] = time.monotonic_ns() + _RETRY_NS
            elif code not in _NOTHING_THERE:
                self.errors[f"{function}: {error}"] += 1
        except (ValueError, TypeError, AttributeError, OSError, ctypes.ArgumentError) as error:
            self.errors[f"{function}: {type(error).__name__}"] += 1
        return None

    def attempt(self, function: str, device: int, *args: Any) -> Any:
        """Return what an NVML function returns; marks the call while it lasts.

        Raises:
            NVMLError: the driver refuses (of the module ``nvml``).
            AttributeError: the module has no such function.
        """
        if function not in self._known:
            self._known[function] = (getattr(self.nvml, function), function.encode()[:48])
        wrapper, name = self._known[function]
        begin = time.monotonic_ns()
        _SLOT.pack_into(self._watch, self._offset, begin, device, name)
        try:
            return wrapper(*args)
        finally:
            _BEGIN.pack_into(self._watch, self._offset, 0)
            self.spent_ns += time.monotonic_ns() - begin


def call_under_way(watch: mmap.mmap, slot: int) -> tuple[int, int, str] | None:
    """Return begin in ns, device and function of a slot's call; None when none is under way."""
    begin, device, name = _SLOT.unpack_from(watch, slot * _SLOT.size)
    if not begin:
        return None
    return begin, device, name.rstrip(b"\0").decode("ascii", "replace")


def number(value_type: int, value: Any) -> int | float | None:
    """Return the number in one of NVML's unions; None for a type that is not known, and for what is
    no number.
    """
    fields = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    if not 0 <= value_type < len(fields):
        return None
    result: int | float = getattr(value, fields[value_type])
    return result if math.isfinite(result) else None


def fields(
    driver: Driver, device: int, handle: Any, wanted: Sequence[int | tuple[int, int]]
) -> list[int | None]:
    """Return field values as whole numbers; None where one is not supported.

    Args:
        driver: The thread's door to the driver.
        device: Index of the device.
        handle: Its NVML handle.
        wanted: Field ids, or pairs of field and scope.

    Raises:
        DeviceLostError: the device is gone.
    """
    first = wanted[0]
    variant = first[0] if isinstance(first, tuple) else first
    values = driver.call("nvmlDeviceGetFieldValues", device, handle, list(wanted), variant=variant)
    if values is None:
        return [None] * len(wanted)
    result: list[int | None] = []
    for item in values:
        value = number(item.valueType, item.value) if item.nvmlReturn == 0 else None
        result.append(None if value is None else int(value))
    return result


def text(value: Any) -> str | None:
    """Return a string of ``pynvml``, which gives bytes or str by version."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None
