"""What NVML, DCGM and an audit of MPS show of a case."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Any

from analysis import schema
from tests.analysis.builder import S
from tests.scenarios.play import Actor
from tests.scenarios.scene import Row, Scene, part_of

#: A device on which nothing is wrong.
GPU_LEVEL: dict[str, Any] = {
    "power_limit_mw": 700_000,
    "power_limit_default_mw": 700_000,
    "power_limit_requested_mw": 700_000,
    "sm_clock_mhz": 1_980,
    "sm_clock_max_mhz": 1_980,
    "memory_clock_mhz": 2_619,
    "clock_reasons": 0,
    "temperature_celsius": 55,
    "memory_used_bytes": 60_000_000_000,
    "memory_total_bytes": 80_000_000_000,
    "pcie_link_gen": 5,
    "pcie_link_width": 16,
    "pcie_tx_bytes_per_s": 2e6,
    "pcie_rx_bytes_per_s": 4e6,
}
#: Columns that NVML does not give: DCGM's profiling fields.
PROFILING = (
    *("engine_active_pct", "sm_active_pct", "sm_occupancy_pct", "tensor_active_pct"),
    *("dram_active_pct", "n_context_switches", "context_switch_active_pct"),
    *("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s"),
)
#: Columns of a GPU that are as they are, without noise.
_EXACT = (
    *("clock_reasons", "pcie_link_gen", "pcie_link_width", "sm_clock_max_mhz"),
    *("power_limit_mw", "power_limit_default_mw", "power_limit_requested_mw"),
    *("memory_total_bytes", "memory_clock_mhz"),
)


def busy_share(spans: Sequence[tuple[int, int]], begin: int, end: int) -> float:
    """Share of a window in which a device was busy."""
    used = sum(max(min(stop, end) - max(start, begin), 0) for start, stop in spans)
    return min(used / (end - begin), 1.0)


def gpu_samples(scene: Scene, actors: Sequence[Actor]) -> list[Row]:
    """Samples of NVML, of its driver's own buffer, and of DCGM where the report has its columns."""
    rows: list[Row] = []
    for device in range(int(scene.service.get("devices", len({a.device for a in actors})))):
        spans = _Spans([span for a in actors if a.device == device for span in a.busy])
        for time, share, phase in scene.times():
            if time == scene.start:
                continue
            util = _util(scene, spans, phase, device, share, time, scene.period_ns)
            rows.extend(_gpu_rows(scene, phase, device, time, share, util))
        if scene.has("calls") and scene.has("gpu", "util_pct"):
            for time, share, phase in scene.times(S // 6):
                if time > scene.start:
                    util = _util(scene, spans, phase, device, share, time, S // 6)
                    rows.append(
                        {
                            "time_ns": time,
                            "device": device,
                            "source": "nvml_buffer",
                            "sample_ns": time,
                            "util_pct": util,
                        }
                    )
    return rows


class _Spans:
    """Busy intervals of a device, sorted, for windows over them."""

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        self.spans = sorted(spans)
        self.starts = [start for start, _end in self.spans]
        self.longest = max((end - start for start, end in self.spans), default=0)

    def share(self, begin: int, end: int) -> float:
        low = bisect.bisect_left(self.starts, begin - self.longest)
        high = bisect.bisect_left(self.starts, end)
        return busy_share(self.spans[low:high], begin, end)


def _util(
    scene: Scene,
    spans: _Spans,
    phase: Mapping[str, Any],
    device: int,
    share: float,
    time: int,
    width: int,
) -> float:
    """Utilisation over a window, %: as described, else own work and a neighbour's."""
    described = part_of(phase.get("gpu", {}), device).get("util_pct")
    if described is not None:
        return float(round(min(scene.value(described, share), 100.0)))
    own = spans.share(time - width, time)
    other = phase.get("neighbour", {}).get("busy", 0.0)
    return float(round(100 * (own + (1 - own) * other)))


def _gpu_rows(
    scene: Scene, phase: Mapping[str, Any], device: int, time: int, share: float, util: float
) -> list[Row]:
    level = {
        "power_mw": 90_000 + 4_600 * util,
        "memory_util_pct": 0.6 * util,
        **GPU_LEVEL,
        **scene.service.get("gpu", {}),
        **part_of(phase.get("gpu", {}), device),
        "util_pct": util,
    }
    nvml: Row = {"source": "nvml", "sample_ns": None, "query_ns": 200_000}
    dcgm: Row = {"source": "dcgm", "sample_ns": time}
    columns = {column.name: column.type for column in schema.GPU_SAMPLE}
    for name, spec in level.items():
        assert name in columns, f"gpu_sample has no column {name}"
        # A preset has DCGM's columns only where a phase describes them.
        if not scene.has("gpu", name):
            continue
        value = scene.value(spec, share, name in _EXACT or name == "util_pct")
        value = min(value, 100.0) if name.endswith("_pct") else value
        row = dcgm if name in PROFILING else nvml
        row[name] = float(value) if columns[name] == "f64" else int(value)
    return [
        {"time_ns": time, "device": device, **row} for row in (nvml, dcgm) if row.keys() & level
    ]


def gpu_processes(scene: Scene, actors: Sequence[Actor]) -> list[Row]:
    """Processes with a context on each device, with what the driver ascribes to them."""
    rows: list[Row] = []
    own_type = "M+C" if scene.service.get("mps", {}).get("own") == "client" else "C"
    spans = {actor.pid: _Spans(actor.busy) for actor in actors}
    for time, share, phase in scene.times():
        if time == scene.start:
            continue
        for actor in actors:
            used = 100 * spans[actor.pid].share(time - scene.period_ns, time)
            described = part_of(phase.get("gpu", {}), actor.device).get("util_pct")
            used = float(described if isinstance(described, int | float) else used)
            rows.append(_context(time, actor.device, actor.pid, own_type, used, actor.name, True))
        other = phase.get("neighbour")
        for n in range(int(other.get("count", 1)) if other else 0):
            used = float(scene.value(other.get("sm_util_pct", 100 * other["busy"]), share))
            kind = other.get("type", "C")
            rows.append(_context(time, 0, 7000 + n, kind, used, other["by"], False))
    return rows


def _context(
    time: int, device: int, pid: int, kind: str, used: float, name: str, is_target: bool
) -> Row:
    return {
        "time_ns": time,
        "device": device,
        "pid": pid,
        "type": kind,
        "memory_bytes": 20_000_000_000,
        "sm_util_pct": float(round(used)),
        "name": name,
        "is_target": is_target,
    }


def mps_clients(scene: Scene, actors: Sequence[Actor]) -> list[Row]:
    """An audit of MPS every five seconds, where the case has a daemon."""
    mps = scene.service.get("mps")
    if not mps:
        return []
    rows: list[Row] = []
    for time, _share, phase in scene.times(5 * S):
        own = {"role": mps["own"], "reason": mps.get("reason")}
        rows.extend(
            {
                "time_ns": time,
                "device": actor.device,
                "pid": actor.pid,
                "name": actor.name,
                "is_target": True,
                "daemon_pid": 900,
                **own,
                "has_pipe_variable": mps["own"] == "client",
                "is_control_visible": mps["own"] == "client",
            }
            for actor in actors
        )
        if "neighbour" in phase:
            role = "client" if phase["neighbour"].get("type") == "M+C" else "outside"
            rows.append(
                {
                    "time_ns": time,
                    "device": 0,
                    "pid": 7000,
                    "name": phase["neighbour"]["by"],
                    "is_target": False,
                    "daemon_pid": 900,
                    "role": role,
                }
            )
    return rows
