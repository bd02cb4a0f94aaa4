"""Which GPU of the machine each CUDA device of a process is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from probes.cuda.meaning import visible_devices

_DRIVER = Path("/proc/driver/nvidia/gpus")
_UUID = re.compile(r"GPU UUID:\s*GPU-([0-9a-fA-F-]{36})")


def device_indices(pid: int, header: Any, driver: Path = _DRIVER) -> list[int] | None:
    """Return the GPU index of each CUDA ordinal, -1 where unknown; None when all are in order.

    By the UUIDs that the process told, where the driver lists its GPUs; else by the process's
    ``CUDA_VISIBLE_DEVICES``.

    Args:
        pid: The process.
        header: Header of its ring.
        driver: Where the driver lists its GPUs.
    """
    known = _indices_by_uuid(driver)
    if not known:
        return visible_devices(pid)
    count = min(int(header["n_devices"]), len(header["uuid"]))
    told = [bytes(header["uuid"][index]).hex() for index in range(count)]
    return [known.get(uuid, -1) for uuid in told]


def _indices_by_uuid(driver: Path) -> dict[str, int]:
    """GPU index by UUID: the driver numbers GPUs by their place on the bus."""
    result: dict[str, int] = {}
    try:
        folders = sorted(path for path in driver.iterdir() if path.is_dir())
    except OSError:
        return result
    for index, folder in enumerate(folders):
        try:
            match = _UUID.search((folder / "information").read_text(errors="replace"))
        except OSError:
            continue
        if match is not None:
            result[match[1].replace("-", "").lower()] = index
    return result
