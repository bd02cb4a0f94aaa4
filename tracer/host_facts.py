"""Facts about the host for the manifest: names and sizes, nothing that identifies a user."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def host_facts(root: Path = Path("/")) -> dict[str, Any]:
    """Return boot id, host name, kernel, CPU model, CPUs, NUMA nodes and memory in bytes.

    Args:
        root: Where ``proc`` and ``sys`` are. What cannot be read is None.
    """
    return {
        "boot_id": boot_id(root),
        "hostname": _text(root / "proc/sys/kernel/hostname"),
        "kernel": _text(root / "proc/sys/kernel/osrelease"),
        "machine": platform.machine(),
        "cpu_model": _field(root / "proc/cpuinfo", "model name"),
        "n_cpus": os.cpu_count(),
        "n_numa_nodes": len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None,
        "memory_bytes": _memory(root / "proc/meminfo"),
    }


def boot_id(root: Path = Path("/")) -> str | None:
    """Return the id of this boot, None where it cannot be read."""
    return _text(root / "proc/sys/kernel/random/boot_id")


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _field(path: Path, name: str) -> str | None:
    for line in (_text(path) or "").splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() == name:
            return value.strip()
    return None


def _memory(path: Path) -> int | None:
    value = _field(path, "MemTotal")
    try:
        return int(value.split()[0]) * 1024 if value else None
    except (ValueError, IndexError):
        return None
