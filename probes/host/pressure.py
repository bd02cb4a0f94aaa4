"""Pressure stall information (PSI): how long tasks waited for CPU, memory or I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence

from probes.host.held import ReadFile
from probes.host.proc import read_bytes

#: What tasks wait for.
RESOURCES = ("cpu", "memory", "io")
#: Column of ``host_sample`` by file and line.
_COLUMNS = {
    ("cpu", "some"): "cpu_some_ns",
    ("memory", "some"): "memory_some_ns",
    ("memory", "full"): "memory_full_ns",
    ("io", "some"): "io_some_ns",
    ("io", "full"): "io_full_ns",
}

_TOTAL = re.compile(r"^(\w+) (?:.* )?total=([0-9]+)$", re.MULTILINE)


def parse_pressure(text: str) -> dict[str, int]:
    """Return the cumulative stall in ns by kind (``some``, ``full``) of one pressure file."""
    return {match[1]: int(match[2]) * 1000 for match in _TOTAL.finditer(text)}


def read_pressure(
    folder: str,
    suffix: str = "",
    read: ReadFile = read_bytes,
    resources: Sequence[str] = RESOURCES,
) -> dict[str, int]:
    """Return the columns of ``host_sample`` that the pressure files of a folder fill, in ns.

    Args:
        folder: ``/proc/pressure``, or the folder of a cgroup (version 2).
        suffix: What follows the resource's name: empty, or ``.pressure`` in a cgroup.
        read: Reads a file.
        resources: What the pressure is read of.
    """
    columns: dict[str, int] = {}
    for resource in resources:
        data = read(f"{folder}/{resource}{suffix}")
        if data is None:
            continue
        for kind, total in parse_pressure(data.decode("ascii", "replace")).items():
            column = _COLUMNS.get((resource, kind))
            if column is not None:
                columns[column] = total
    return columns
