"""What NVML tells slowly or what changes slowly: processes, limits, memory, temperature, links,
buffers, health, GPM.

Runs in a thread of the sampler's child process, so that its calls (PCIe throughput takes 20 ms a
counter) never hold up the fast samples.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import combinations, pairwise
from typing import Any

from probes.gpu.driver import DeviceLostError, Driver, fields, number, text
from probes.gpu.gpm import GpmSampler
from probes.gpu.since import Since

#: Kinds of the driver's sample buffers: NVML's number and column.
BUFFERS = ((0, "power_mw"), (1, "util_pct"), (2, "memory_util_pct"), (5, "sm_clock_mhz"))

_FIELDS_PCIE = (197, 198)
_FIELDS_NVLINK = (138, 139)
_ALL_LINKS = 0xFFFFFFFF
_FIELD_LINK_COUNT = 91
_SECOND_NS = 1_000_000_000
_PCIE_NS = 2 * _SECOND_NS
_HEALTH_NS = 30 * _SECOND_NS
#: MIG instances that are looked at, whatever number the driver tells.
_MOST_PARTS = 64

#: Takes a kind of row and a row.
Put = Callable[[str, Any], None]


class SlowSampler:
    """Samples each device about once a second.

    Args:
        driver: The thread's door to the driver.
        handles: NVML handles by index of the device.
        put: Takes what is found.
        interval_ns: Time between two rounds.
    """

    def __init__(self, driver: Driver, handles: dict[int, Any], put: Put, interval_ns: int) -> None:
        self._driver = driver
        self._handles = handles
        self._put = put
        self._interval_ns = interval_ns
        self._gpm = GpmSampler(driver, handles)
        self._lock = threading.Lock()
        self._once: dict[int, dict[str, Any]] = {}
        self._settings: dict[int, dict[str, Any]] = {}
        self._since = Since()
        self._counters: dict[tuple[int, int], tuple[int, int]] = {}
        self._health: dict[int, dict[str, int]] = {}
        self._parts: dict[int, list[tuple[int | None, str | None, Any]]] = {}

    def run(
        self,
        stop: threading.Event,
        is_lost: Callable[[int], bool],
        lose: Callable[[int, DeviceLostError], None],
    ) -> None:
        """Sample until told to stop; lost devices are left alone, and new losses told."""
        pcie_due = health_due = 0
        try:
            self._read_topology()
        except Exception as error:  # noqa: BLE001 - what is odd of it must not end the rest
            self._driver.errors[f"topology: {type(error).__name__}"] += 1
        while not stop.is_set():
            begin = time.monotonic_ns()
            nearly = begin + self._interval_ns // 2  # a beat comes a little sooner or later
            with_pcie, with_health = nearly >= pcie_due, nearly >= health_due
            pcie_due = begin + _PCIE_NS if with_pcie else pcie_due
            health_due = begin + _HEALTH_NS if with_health else health_due
            for device, handle in list(self._handles.items()):
                if is_lost(device) or stop.is_set():
                    continue
                try:
                    self._sample(device, handle, with_pcie)
                    if with_health:
                        self._read_health(device, handle)
                except DeviceLostError as error:
                    self._forget(device)
                    lose(device, error)
                except Exception as error:  # noqa: BLE001 - what is odd of one must not end the rest
                    self._driver.errors[f"GPU {device}: {type(error).__name__}"] += 1
            # On the beat of the fast samples: what both use is at hand then.
            left = self._interval_ns - time.monotonic_ns() % self._interval_ns
            stop.wait(left / 1e9)

    def take(self, device: int) -> dict[str, Any]:
        """Return columns for the next fast row: settings that hold, and new values, once each."""
        with self._lock:
            return {**self._settings.get(device, {}), **self._once.pop(device, {})}

    def _forget(self, device: int) -> None:
        """Drop what was read of a device that is gone."""
        self._gpm.forget(device)
        self._parts.pop(device, None)
        with self._lock:
            self._once.pop(device, None)
            self._settings.pop(device, None)

    def _sample(self, device: int, handle: Any, with_pcie: bool) -> None:
        self._read_settings(device, handle)
        self._read_processes(device, handle)
        self._read_buffers(device, handle)
        columns = self._gpm.sample(device)
        if columns is not None:
            self._put("gpm", (time.monotonic_ns(), device, columns))
        self._sample_instances(device)
        call = self._driver.call
        used, total = self._memory_of(device, handle)
        once: dict[str, Any] = {
            "memory_clock_mhz": call("nvmlDeviceGetClockInfo", device, handle, 2, variant=2),
            "temperature_celsius": call("nvmlDeviceGetTemperature", device, handle, 0),
            "memory_used_bytes": used,
            "memory_total_bytes": total,
            "pcie_link_gen": call("nvmlDeviceGetCurrPcieLinkGeneration", device, handle),
            "pcie_link_width": call("nvmlDeviceGetCurrPcieLinkWidth", device, handle),
            **self._read_links(device, handle, with_pcie),
        }
        with self._lock:
            self._once[device] = {key: value for key, value in once.items() if value is not None}

    def _read_settings(self, device: int, handle: Any) -> None:
        """Limits: settings that hold until they are changed."""
        call = self._driver.call
        settings = {
            "power_limit_mw": call("nvmlDeviceGetEnforcedPowerLimit", device, handle),
            "power_limit_default_mw": call(
                "nvmlDeviceGetPowerManagementDefaultLimit", device, handle
            ),
            "power_limit_requested_mw": call("nvmlDeviceGetPowerManagementLimit", device, handle),
            "sm_clock_max_mhz": call("nvmlDeviceGetMaxClockInfo", device, handle, 1),
        }
        with self._lock:
            self._settings.setdefault(device, {}).update(settings)

    def _read_processes(self, device: int, handle: Any) -> None:
        """Processes with a context, those through MPS, and the SM share of each."""
        compute = self._process_list(device, handle, "Compute")
        through_mps = self._process_list(device, handle, "MPSCompute")
        graphics = self._process_list(device, handle, "Graphics")
        key = (device, -1)
        since = self._since.ask_from(key)
        items = self._driver.call("nvmlDeviceGetProcessUtilization", device, handle, since) or []
        stamped = [(int(item.timeStamp), item) for item in items]
        shares = {
            int(item.pid): (stamp, int(item.smUtil), int(item.memUtil))
            for stamp, item in self._since.take(key, stamped)
        }
        lists = (compute, through_mps, graphics)
        self._put("processes", (time.monotonic_ns(), device, *lists, shares))

    def _process_list(
        self, device: int, handle: Any, kind: str
    ) -> list[tuple[int, int | None]] | None:
        """Pid and memory of each process; None when the driver does not tell."""
        for version in ("_v3", "_v2"):
            name = f"nvmlDeviceGet{kind}RunningProcesses{version}"
            items = self._driver.call(name, device, handle)
            if items is not None:
                return [(int(item.pid), item.usedGpuMemory) for item in items]
        return None

    def _read_buffers(self, device: int, handle: Any) -> None:
        """The driver's own samples since the last look, with its times (wall clock, in us)."""
        for kind, column in BUFFERS:
            key = (device, kind)
            since, before = self._since.ask_from(key), self._since.last(key)
            result = self._driver.call(
                "nvmlDeviceGetSamples", device, handle, kind, since, variant=kind
            )
            if result is None:
                continue
            value_type, samples = result
            rows = self._since.take(
                key,
                [(int(item.timeStamp), number(value_type, item.sampleValue)) for item in samples],
            )
            if not rows:
                continue
            stamps = [row[0] for row in rows]
            if before is not None and before < stamps[0]:
                stamps.insert(0, before)
            self._put("buffers", (device, column, rows))
            if column == "util_pct" and len(stamps) > 1:
                gaps = sorted(after - before for before, after in pairwise(stamps))
                with self._lock:
                    settings = self._settings.setdefault(device, {})
                    settings["period_ns"] = gaps[len(gaps) // 2] * 1000

    def _read_links(self, device: int, handle: Any, with_pcie: bool) -> dict[str, float | None]:
        """Bytes per second over PCIe and NVLink."""
        rates: dict[str, float | None] = {}
        names = ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s")
        counters = fields(self._driver, device, handle, _FIELDS_PCIE)
        for position, name in enumerate(names):
            counter = counters[position]
            if counter is not None:
                rates[name] = self._rate(device, _FIELDS_PCIE[position], counter, 1)
            elif with_pcie:
                value = self._driver.call(
                    "nvmlDeviceGetPcieThroughput", device, handle, position, variant=position
                )
                rates[name] = None if value is None else value * 1024.0
        names = ("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s")
        links = [(field, _ALL_LINKS) for field in _FIELDS_NVLINK]
        for position, counter in enumerate(fields(self._driver, device, handle, links)):
            if counter is not None:
                field = _FIELDS_NVLINK[position]
                rates[names[position]] = self._rate(device, field, counter, 1024)
        return rates

    def _rate(self, device: int, field: int, counter: int, unit: int) -> float | None:
        """Bytes per second since the last look; None at first and when the counter went back."""
        now = time.monotonic_ns()
        before = self._counters.get((device, field))
        self._counters[device, field] = (now, counter)
        if before is None or counter < before[1] or now <= before[0]:
            return None
        return (counter - before[1]) * unit * 1e9 / (now - before[0])

    def _read_health(self, device: int, handle: Any) -> None:
        """Memory errors and MIG mode; the parent makes an event of a change."""
        call = self._driver.call
        health: dict[str, int] = {}
        uncorrected = call("nvmlDeviceGetTotalEccErrors", device, handle, 1, 0)
        if isinstance(uncorrected, int):
            health["uncorrected_ecc_errors"] = uncorrected
        rows = call("nvmlDeviceGetRemappedRows", device, handle)
        if isinstance(rows, (tuple, list)) and len(rows) == 4:
            names = ("correctable", "uncorrectable", "pending", "failed")
            for name, row in zip(names, rows, strict=True):
                health[f"remapped_rows_{name}"] = int(row)
        mig = call("nvmlDeviceGetMigMode", device, handle)
        if isinstance(mig, (tuple, list)) and mig:
            health["mig_mode"] = int(mig[0])
            self._parts[device] = self._find_parts(device, handle) if health["mig_mode"] else []
            if self._parts[device]:
                self._put("instances", (device, self._describe_instances(device)))
        before = self._health.get(device)
        self._health[device] = health
        if health != before:
            self._put("health", (time.monotonic_ns(), device, health, before))

    def _find_parts(self, device: int, handle: Any) -> list[tuple[int | None, str | None, Any]]:
        """MIG instances of a GPU: number, UUID and handle of each."""
        call = self._driver.call
        parts = []
        n_parts = call("nvmlDeviceGetMaxMigDeviceCount", device, handle) or 0
        for index in range(min(n_parts, _MOST_PARTS)):
            part = call("nvmlDeviceGetMigDeviceHandleByIndex", device, handle, index)
            if part is None:
                continue
            number = call("nvmlDeviceGetGpuInstanceId", device, part)
            uuid = text(call("nvmlDeviceGetUUID", device, part))
            parts.append((number if isinstance(number, int) else None, uuid, part))
        return parts

    def _memory_of(self, device: int, part: Any, variant: int = 0) -> tuple[int | None, int | None]:
        """Used and whole memory of a GPU, or of a MIG instance of it (another variant)."""
        memory = self._driver.call("nvmlDeviceGetMemoryInfo", device, part, variant=variant)
        return (None, None) if memory is None else (int(memory.used), int(memory.total))

    def _describe_instances(self, device: int) -> list[dict[str, Any]]:
        """What the manifest says of the MIG instances of a GPU."""
        described = []
        for instance, uuid, part in self._parts[device]:
            used, total = self._memory_of(device, part, variant=1)
            described.append(
                {
                    "uuid": uuid,
                    "gpu_instance": instance,
                    "memory_bytes": total,
                    "memory_used_bytes": used,
                }
            )
        return described

    def _sample_instances(self, device: int) -> None:
        """A row for each MIG instance: its memory, and its activity where there is GPM.

        The driver tells utilisation of none.
        """
        measured = set()
        for instance, uuid, part in self._parts.get(device, ()):
            used, total = self._memory_of(device, part, variant=1)
            columns: dict[str, Any] = {"memory_used_bytes": used, "memory_total_bytes": total}
            # Several compute instances share the counters of one GPU instance.
            if instance is not None and instance not in measured:
                measured.add(instance)
                columns.update(self._gpm.sample(device, instance) or {})
            source = "gpm" if "period_ns" in columns else "nvml"
            row = {"gpu_instance": instance, "instance_uuid": uuid, "source": source, **columns}
            self._put("instance_samples", (time.monotonic_ns(), device, row))

    def _read_topology(self) -> None:
        """How near the GPUs are to each other: NVML's level by pair, and links of each."""
        pairs: dict[str, int] = {}
        links: dict[str, int] = {}
        try:
            for (one, first), (two, second) in combinations(self._handles.items(), 2):
                level = self._driver.call("nvmlDeviceGetTopologyCommonAncestor", one, first, second)
                if isinstance(level, int):
                    pairs[f"{one}-{two}"] = level
            for device, handle in self._handles.items():
                (count,) = fields(self._driver, device, handle, (_FIELD_LINK_COUNT,))
                if count is not None:
                    links[str(device)] = count
        except DeviceLostError:
            return
        self._put("topology", {"ancestor_level": pairs, "n_nvlinks": links})
