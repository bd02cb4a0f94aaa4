"""The sampler of NVML in a process of its own, because a call into the driver may never return.

The main thread samples what is cheap, a second one what is slow (:mod:`probes.gpu.nvml_slow`), a
third waits for Xid events. Rows travel to the parent in bulk over a pipe, each frame a 4-byte
length and a pickle. The process ends when the pipe closes.

This is the one module that imports ``pynvml``, and only in the child.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import pickle
import signal
import struct
import sys
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from probes.gpu.driver import (
    EVENTS,
    FAST,
    SLOW,
    DeviceLostError,
    Driver,
    DriverGoneError,
    fields,
    text,
)
from probes.gpu.nvml_slow import SlowSampler

#: Columns of a fast row, in order.
FAST_COLUMNS = (
    "time_ns",
    "device",
    "query_ns",
    "util_pct",
    "memory_util_pct",
    "power_mw",
    "power_instant_mw",
    "energy_mj",
    "sm_clock_mhz",
    "clock_reasons",
)
#: Length of a frame, before it.
FRAME_HEAD = struct.Struct("<I")
#: The fast loop slows down while it spends more than this share of its time in the driver.
MAX_DRIVER_SHARE = 0.05

_SECOND_NS = 1_000_000_000
_FLUSH_NS = 3 * _SECOND_NS // 4
_SLOWEST_NS = _SECOND_NS
#: Devices that are looked at, whatever number the driver tells.
_MOST_DEVICES = 1024
#: Pause before waiting for events anew after that failed.
_EVENTS_AGAIN_S = 1.0
#: Average and instant power, energy.
_POWER_FIELDS = (185, 186, 83)
_TIMEOUT = 10
_STOP_SIGNALS = (signal.SIGTERM,)
#: New objects after which Python's collector looks for garbage.
_NEW_OBJECTS = 20_000


@dataclass(frozen=True)
class Config:
    """What a child is told to do.

    ``devices`` are the only ones sampled (None: all); ``excluded`` are left alone. ``uuids`` tells
    which GPU has which number, where that is known: the driver numbers anew when one is gone.
    """

    watch_fd: int
    interval_ns: int
    slow_interval_ns: int
    devices: list[int] | None = None
    excluded: tuple[int, ...] = ()
    uuids: dict[int, str | None] | None = None

    def to_json(self) -> str:
        """Return the text that :meth:`from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Config:
        """Return the configuration of a line of JSON."""
        values = json.loads(line)
        uuids = values.pop("uuids", None)
        return cls(**values, uuids=uuids and {int(key): text for key, text in uuids.items()})


class Outbox:
    """Rows by kind until they are sent; used by all threads.

    Args:
        output: File descriptor of the pipe to the parent.
    """

    def __init__(self, output: int) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._rows: dict[str, list[Any]] = {}

    def put(self, kind: str, row: Any) -> None:
        """Keep a row for the next frame."""
        with self._lock:
            self._rows.setdefault(kind, []).append(row)

    def send(self) -> None:
        """Send what is there; ends the process when the parent is gone."""
        with self._lock:
            rows, self._rows = self._rows, {}
        data = pickle.dumps(rows, protocol=5)
        view = memoryview(FRAME_HEAD.pack(len(data)) + data)
        try:
            while view:
                view = view[os.write(self._output, view) :]
        except OSError:
            os._exit(0)


class Sampler:
    """Samples the devices and sends what it finds until told to stop.

    Args:
        config: What to do.
        nvml: The module ``pynvml``.
        outbox: Takes the rows.
    """

    def __init__(self, config: Config, nvml: Any, outbox: Outbox) -> None:
        self._config = config
        self._nvml = nvml
        self._outbox = outbox
        watch = mmap.mmap(config.watch_fd, 0)
        self._fast = Driver(nvml, watch, FAST)
        self._slow = Driver(nvml, watch, SLOW)
        self._events = Driver(nvml, watch, EVENTS)
        self._handles: dict[int, Any] = {}
        self._lost: set[int] = set()
        self._slow_sampler = SlowSampler(
            self._slow, self._handles, outbox.put, config.slow_interval_ns
        )
        self._stop = threading.Event()
        self._is_open = False
        self._interval_ns = config.interval_ns

    def run(self) -> None:
        """Sample until told to stop, by a signal that all threads block."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
        if not self._open():
            self._outbox.send()
            return
        self._is_open = True
        slow = (self._stop, self._lost.__contains__, self._lose)
        threading.Thread(target=self._slow_sampler.run, args=slow, daemon=True).start()
        threading.Thread(target=self._run_events, daemon=True).start()
        flush = window = time.monotonic_ns()
        spent = 0
        while not self._stop.is_set():
            for device in self._handles.keys() - self._lost:
                self._guarded(device)
            now = time.monotonic_ns()
            if now - window >= _SECOND_NS:
                self._pace(self._fast.spent_ns - spent, now - window)
                window, spent = now, self._fast.spent_ns
            if now >= flush:
                self._flush()
                flush = now + _FLUSH_NS
            # On the beat of the recorder, whose code is at hand then. The signal is blocked:
            # waiting for it costs less than handling it.
            pause = self._interval_ns - now % self._interval_ns
            if signal.sigtimedwait(_STOP_SIGNALS, pause / 1e9) is not None:
                self._stop.set()
        self._flush()

    def _open(self) -> bool:
        """Initialise the library and tell what devices there are; False when there is nothing."""
        begin = time.monotonic_ns()
        try:
            self._fast.attempt("nvmlInit", -1)
            count = int(self._fast.attempt("nvmlDeviceGetCount", -1))
        except self._nvml.NVMLError as error:
            self._outbox.put("failed", f"NVML cannot be initialised: {error}")
            return False
        known = self._config.uuids or range(min(count, _MOST_DEVICES))
        gpus = [self._describe(device) for device in known]
        call = self._fast.call
        driver_version = nvml_version = None
        try:
            driver_version = text(call("nvmlSystemGetDriverVersion", -1))
            nvml_version = text(call("nvmlSystemGetNVMLVersion", -1))
        except DriverGoneError as error:
            self._lose(-1, error)
        if self._stop.is_set():
            return False  # the driver went meanwhile
        hello = {
            "gpus": gpus,
            "driver_version": driver_version,
            "nvml_version": nvml_version,
            "open_ns": time.monotonic_ns() - begin,
        }
        self._outbox.put("hello", hello)
        if not self._handles and not self._lost and not self._config.excluded:
            self._outbox.put("failed", "NVML knows of no GPU")
        return bool(self._handles.keys() - self._lost)

    def _describe(self, device: int) -> dict[str, Any]:
        """Fields of the manifest's list of GPUs; opens the device unless it is to be left alone."""
        wanted = self._config.devices
        row: dict[str, Any] = {"index": device, "name": f"GPU {device}"}
        if device in self._config.excluded or (wanted is not None and device not in wanted):
            return row
        call = self._fast.call
        try:
            handle = self._handle(device)
            if handle is None:
                return row
            self._handles[device] = handle
            memory = call("nvmlDeviceGetMemoryInfo", device, handle)
            pci = call("nvmlDeviceGetPciInfo", device, handle)
            numa = call("nvmlDeviceGetNumaNodeId", device, handle)
            row.update(
                name=text(call("nvmlDeviceGetName", device, handle)) or row["name"],
                uuid=text(call("nvmlDeviceGetUUID", device, handle)),
                memory_bytes=int(memory.total) if memory is not None else None,
                power_limit_mw=call("nvmlDeviceGetEnforcedPowerLimit", device, handle),
                sm_clock_max_mhz=call("nvmlDeviceGetMaxClockInfo", device, handle, 1),
                pci_bus_id=text(pci.busId) if pci is not None else None,
                numa_node=numa if isinstance(numa, int) and numa >= 0 else None,
            )
        except DeviceLostError as error:
            self._lose(device, error)
        return row

    def _handle(self, device: int) -> Any:
        """Handle of the device of a number; None when there is none.

        Raises:
            DeviceLostError: it is gone.
        """
        uuid = (self._config.uuids or {}).get(device)
        if not uuid:
            return self._fast.call("nvmlDeviceGetHandleByIndex", device, device)
        handle = self._fast.call("nvmlDeviceGetHandleByUUID", device, uuid.encode())
        if handle is None:
            raise DeviceLostError(device, "nvmlDeviceGetHandleByUUID", "there is no such GPU")
        return handle

    def _guarded(self, device: int) -> None:
        """Sample a device; note when it is lost."""
        try:
            self._sample(device)
        except DeviceLostError as error:
            self._lose(device, error)

    def _lose(self, device: int, error: DeviceLostError) -> None:
        """Note a lost device, for good: its handle stays lost also when the GPU is back.

        Without a driver or any device this process has nothing more to do.
        """
        now = time.monotonic_ns()
        if isinstance(error, DriverGoneError):
            if not self._stop.is_set():
                self._stop.set()
                self._outbox.put("failed", f"{error.function} says: {error}")
            return
        if device not in self._lost:
            self._lost.add(device)
            self._outbox.put("events", (now, device, f"{error.function} says: {error}"))
        if self._handles.keys() <= self._lost and self._is_open:
            self._stop.set()

    def _sample(self, device: int) -> None:
        """One row of what is cheap to ask."""
        driver, handle = self._fast, self._handles[device]
        call = driver.call
        begin, spent = time.monotonic_ns(), driver.spent_ns
        rates = call("nvmlDeviceGetUtilizationRates", device, handle)
        average, instant, energy = fields(driver, device, handle, _POWER_FIELDS)
        if average is None:
            average = call("nvmlDeviceGetPowerUsage", device, handle)
        if energy is None:
            energy = call("nvmlDeviceGetTotalEnergyConsumption", device, handle)
        sm_clock = call("nvmlDeviceGetClockInfo", device, handle, 1, variant=1)
        reasons = call("nvmlDeviceGetCurrentClocksEventReasons", device, handle)
        if reasons is None:
            reasons = call("nvmlDeviceGetCurrentClocksThrottleReasons", device, handle)
        row = (
            (begin + time.monotonic_ns()) // 2,
            device,
            driver.spent_ns - spent,
            rates.gpu if rates is not None else None,
            rates.memory if rates is not None else None,
            average,
            instant,
            energy,
            sm_clock,
            reasons,
        )
        self._outbox.put("fast", (row, self._slow_sampler.take(device)))

    def _pace(self, spent_ns: int, wall_ns: int) -> None:
        """Slow down while the driver takes too much of the time, and speed up again after."""
        share = spent_ns / max(wall_ns, 1)
        if share > MAX_DRIVER_SHARE:
            self._interval_ns = min(2 * self._interval_ns, max(_SLOWEST_NS, self._interval_ns))
        elif share < MAX_DRIVER_SHARE / 4:
            self._interval_ns = max(self._interval_ns // 2, self._config.interval_ns)

    def _run_events(self) -> None:
        """Wait for Xid and memory errors, anew after each failure: one lost GPU must not hide the
        errors of the others.
        """
        try:
            while not self._stop.is_set() and self._wait_for_events():
                self._stop.wait(_EVENTS_AGAIN_S)
        except DeviceLostError:
            return

    def _wait_for_events(self) -> bool:
        """Wait until waiting fails; tells whether to try again.

        Raises:
            DriverGoneError: the driver is gone.
        """
        nvml, call = self._nvml, self._events.call
        kinds = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
        events = call("nvmlEventSetCreate", -1)
        if events is None:
            return False
        devices = {}
        for device in self._handles.keys() - self._lost:
            handle = self._handles[device]
            try:
                call("nvmlDeviceRegisterEvents", device, handle, kinds, events)
            except DriverGoneError:
                raise
            except DeviceLostError:
                continue  # the sampling finds that out by itself
            devices[_address(handle)] = device
        while not self._stop.is_set():
            # Waiting is what this call is for: it is not marked as one that must return soon.
            try:
                data = nvml.nvmlEventSetWait_v2(events, 1000)
            except nvml.NVMLError as error:
                if int(getattr(error, "value", 999)) != _TIMEOUT:
                    self._events.errors[f"nvmlEventSetWait: {error}"] += 1
                    break
                self._stop.wait(0.05)
                continue
            device_of = devices.get(_address(data.device))
            row = (time.monotonic_ns(), device_of, int(data.eventType), int(data.eventData))
            self._outbox.put("xids", row)
        call("nvmlEventSetFree", -1, events)
        return True

    def _flush(self) -> None:
        """Send everything collected, with what it cost."""
        stats = {
            "interval_ns": self._interval_ns,
            "cpu_ns": time.process_time_ns(),
            "driver_ns": self._fast.spent_ns + self._slow.spent_ns,
            "errors": dict(self._fast.errors + self._slow.errors + self._events.errors),
        }
        self._outbox.put("stats", stats)
        self._outbox.send()


def _address(handle: Any) -> int | None:
    """What tells one handle from another."""
    return ctypes.cast(handle, ctypes.c_void_p).value


def main() -> None:
    """Run the sampler with the configuration given as the first argument."""
    output = os.dup(1)
    os.dup2(2, 1)
    config = Config.from_json(sys.argv[1])
    import pynvml

    # What there is now stays, and rows die without the collector.
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)
    Sampler(config, pynvml, Outbox(output)).run()
    os._exit(0)
