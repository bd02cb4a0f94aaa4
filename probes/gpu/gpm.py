"""GPU performance monitoring (GPM, Hopper and newer): SM, tensor and memory activity, switches.

Two samples of the hardware counters span a window; NVML computes each metric over it. Metrics
are first asked for one by one, because a driver that does not know one may refuse the whole
request. Runs in the sampler's child process.
"""

from __future__ import annotations

import math
import time
from typing import Any

from probes.gpu.driver import Driver

_MIB = float(1 << 20)
#: Column of ``gpu_sample``, id of the metric and factor to the column's unit.
METRICS: tuple[tuple[str, int, float], ...] = (
    ("engine_active_pct", 1, 1.0),
    ("sm_active_pct", 2, 1.0),
    ("sm_occupancy_pct", 3, 1.0),
    ("tensor_active_pct", 5, 1.0),
    ("dram_active_pct", 10, 1.0),
    ("pcie_tx_bytes_per_s", 20, _MIB),
    ("pcie_rx_bytes_per_s", 21, _MIB),
    ("nvlink_rx_bytes_per_s", 60, _MIB),
    ("nvlink_tx_bytes_per_s", 61, _MIB),
)
#: Context switches of the eight graphics engines: requests are added up, the busiest share counts.
SWITCH_REQUESTS = tuple(172 + 5 * engine for engine in range(8))
SWITCH_ACTIVE = tuple(174 + 5 * engine for engine in range(8))

#: Device, and number of its instance; None for the whole.
_Key = tuple[int, int | None]

_IDS = (*(item[1] for item in METRICS), *SWITCH_REQUESTS, *SWITCH_ACTIVE)


class GpmSampler:
    """Samples the counters of the devices that have them.

    Args:
        driver: The thread's door to the driver.
        handles: NVML handles by index of the device.
    """

    def __init__(self, driver: Driver, handles: dict[int, Any]) -> None:
        self._driver = driver
        self._handles = handles
        self._supported: dict[_Key, bool] = {}
        self._metrics: dict[_Key, tuple[int, ...]] = {}
        self._samples: dict[_Key, tuple[Any, Any]] = {}
        self._taken_ns: dict[_Key, int] = {}

    def forget(self, device: int) -> None:
        """Start anew with a device, because it was lost."""
        for key in [key for key in self._taken_ns if key[0] == device]:
            del self._taken_ns[key]

    def sample(self, device: int, instance: int | None = None) -> dict[str, float | int] | None:
        """Return columns of ``gpu_sample`` over the window since the last call.

        None at the first call, and for a device without GPM. ``period_ns`` is the window.

        Args:
            device: Index of the device.
            instance: Number of a GPU instance of it (MIG); None for the whole.

        Raises:
            DeviceLostError: the device is gone.
        """
        key = (device, instance)
        if not self._is_supported(key):
            return None
        handle = self._handles[device]
        older, newer = self._samples[key]
        call = self._driver.call
        if instance is None:
            taken = call("nvmlGpmSampleGet", device, handle, newer)
        else:
            taken = call(
                "nvmlGpmMigSampleGet", device, handle, instance, newer, variant=1 + instance
            )
        if taken is None:
            self._taken_ns.pop(key, None)
            return None
        now = time.monotonic_ns()
        before = self._taken_ns.get(key)
        self._taken_ns[key] = now
        self._samples[key] = (newer, older)
        if before is None:
            return None
        if key not in self._metrics:
            self._metrics[key] = tuple(
                item for item in _IDS if self._read(device, older, newer, (item,))
            )
        values = self._read(device, older, newer, self._metrics[key])
        columns = columns_of(values)
        return {**columns, "period_ns": now - before} if columns else None

    def _is_supported(self, key: _Key) -> bool:
        """Whether the device has GPM; allocates two samples when it has."""
        known = self._supported.get(key)
        if known is not None:
            return known
        call, device = self._driver.call, key[0]
        support = call("nvmlGpmQueryDeviceSupport", device, self._handles[device])
        is_supported = bool(getattr(support, "isSupportedDevice", 0))
        if is_supported:
            samples = (call("nvmlGpmSampleAlloc", device), call("nvmlGpmSampleAlloc", device))
            is_supported = None not in samples
            self._samples[key] = samples
        self._supported[key] = is_supported
        return is_supported

    def _read(
        self, device: int, older: Any, newer: Any, metrics: tuple[int, ...]
    ) -> dict[int, float]:
        """Values of the metrics that the driver could compute."""
        if not metrics:
            return {}
        nvml = self._driver.nvml
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(metrics)
        request.sample1, request.sample2 = older, newer
        for position, item in enumerate(metrics):
            request.metrics[position].metricId = item
        variant = metrics[0] if len(metrics) == 1 else 0
        if self._driver.call("nvmlGpmMetricsGet", device, request, variant=variant) is None:
            return {}
        return {
            item: float(request.metrics[position].value)
            for position, item in enumerate(metrics)
            if request.metrics[position].nvmlReturn == 0
        }


def columns_of(values: dict[int, float]) -> dict[str, float | int]:
    """Return columns of ``gpu_sample`` for values by metric id; impossible ones are left out."""
    columns: dict[str, float | int] = {}
    for column, item, factor in METRICS:
        value = values.get(item)
        if value is None or not math.isfinite(value) or value < 0:
            continue
        if column.endswith("_pct") and value > 100.5:
            continue
        columns[column] = min(value, 100.0) if column.endswith("_pct") else value * factor
    requests = [values[item] for item in SWITCH_REQUESTS if _is_possible(values.get(item))]
    if requests:
        columns["n_context_switches"] = int(sum(requests))
    shares = [values[item] for item in SWITCH_ACTIVE if _is_possible(values.get(item), 100.5)]
    if shares:
        columns["context_switch_active_pct"] = min(max(shares), 100.0)
    return columns


def _is_possible(value: float | None, most: float = math.inf) -> bool:
    return value is not None and math.isfinite(value) and 0 <= value <= most
