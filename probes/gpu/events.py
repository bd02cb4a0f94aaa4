"""Events of GPUs: a device lost or sampled again, Xid and memory errors, changes of health."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Index that stands for the library as a whole.
ALL = -1
_XID_EVENT = 8


def gpu_name(device: int) -> str:
    """Return what to call a device in a sentence."""
    return "NVML" if device == ALL else f"GPU {device}"


def device_event(time_ns: int, kind: str, device: int, detail: str) -> dict[str, Any]:
    """Return the columns of an event about the sampling of a device."""
    name = "nvml" if device == ALL else f"nvml gpu {device}"
    return {"time_ns": time_ns, "kind": kind, "name": name, "detail": detail}


def driver_event(time_ns: int, device: int | None, kind: int, data: int) -> dict[str, Any]:
    """Return the columns of an event for an Xid or memory error told by the driver."""
    where = "a GPU" if device is None else f"GPU {device}"
    if kind & _XID_EVENT:
        detail = f"Xid {data} on {where}, told by NVML"
        return {"time_ns": time_ns, "kind": "xid", "name": f"xid {data}", "detail": detail}
    detail = f"Uncorrectable memory error on {where}, told by NVML"
    return {"time_ns": time_ns, "kind": "other", "name": "memory_error", "detail": detail}


def health_events(
    time_ns: int, device: int, health: Mapping[str, int], before: Mapping[str, int] | None
) -> list[dict[str, Any]]:
    """Return an event for changes of memory errors and MIG mode since the last look."""
    changes = [
        f"{name} {before[name]} -> {value}"
        for name, value in health.items()
        if before is not None and name in before and before[name] != value
    ]
    if not changes:
        return []
    detail = f"GPU {device}: {', '.join(changes)}"
    return [{"time_ns": time_ns, "kind": "other", "name": "gpu_health", "detail": detail}]
