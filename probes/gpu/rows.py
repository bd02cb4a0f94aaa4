"""Turns what the sampler of NVML sends into columns, leaving out what cannot be true."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.schema import GPU_PROCESS, GPU_SAMPLE, Table
from probes.gpu.nvml_child import FAST_COLUMNS
from probes.host import proc
from probes.host.containers import ContainerNames
from probes.probe import Batch, make_batch

#: Maps wall-clock times, received at times of CLOCK_MONOTONIC, to CLOCK_MONOTONIC and the error
#: bounds of that, all in ns and of shape (n,).
ToMonotonic = Callable[
    [NDArray[np.int64], NDArray[np.int64]], tuple[NDArray[np.int64], NDArray[np.int64]]
]
#: Columns whose values may be larger than a 32-bit number.
_WIDE = {"energy_mj", "memory_bytes", "memory_used_bytes", "memory_total_bytes", "clock_reasons"}
_UNCHECKED = {
    *("time_ns", "sample_ns", "period_ns", "query_ns", "source", "device", "is_repeated"),
    "instance_uuid",
}
#: Shares of a process up to here are rounding and are cut to 100; beyond are blanks or garbage.
_MOST_SHARE = 200
_MANY_PROCESSES = 4096
#: A time of the driver from here on (the year 2116) is garbage.
_LATEST_US = 1 << 52


def clean(column: str, value: Any) -> Any:
    """Return the value of a column of ``gpu_sample``, None for one that cannot be true."""
    if value is None or column in _UNCHECKED:
        return value
    if column.endswith("_pct"):
        return value if 0 <= value <= 100 else None
    most = 1 << 60 if column in _WIDE or column.endswith("_per_s") else 1 << 31
    return value if 0 <= value < most else None


def sample_batch(rows: Sequence[Mapping[str, Any]], table: Table = GPU_SAMPLE) -> Batch:
    """Return a batch of ``gpu_sample``, or of the table of instances, from rows of its columns."""
    told = {name for row in rows for name in row}
    columns = {
        name: [clean(name, row.get(name)) for row in rows]
        for name in table.column_names
        if name in told
    }
    return make_batch(table, columns)


def fast_rows(items: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return rows of the fast samples; each has the settings and new slow values beside it."""
    return [
        {**dict(zip(FAST_COLUMNS, row, strict=True)), **extra, "source": "nvml"}
        for row, extra in items
    ]


def buffer_rows(
    items: Iterable[tuple[int, str, Sequence[tuple[int, float | None]]]],
    to_monotonic: ToMonotonic,
    start_ns: int,
    now_ns: int,
) -> tuple[list[dict[str, Any]], int]:
    """Return rows of the driver's own samples at the driver's times, and how many were dropped.

    Args:
        items: Device, column, and the samples: wall-clock time in us and value.
        to_monotonic: Maps wall-clock times to CLOCK_MONOTONIC with error bounds.
        start_ns: Begin of the recording; a sample from before it is dropped.
        now_ns: The present; a sample from after it (beyond the error bound) is dropped.
    """
    merged: dict[tuple[int, int], dict[str, Any]] = {}
    n_dropped = 0
    for device, column, samples in items:
        for stamp_us, value in samples:
            if 0 <= stamp_us < _LATEST_US:
                merged.setdefault((device, stamp_us), {})[column] = value
            else:
                n_dropped += 1
    rows = []
    stamps = np.array([stamp_us * 1000 for _, stamp_us in merged], np.int64)
    times, errors = to_monotonic(stamps, np.full(stamps.size, now_ns, np.int64))
    for (device, _), columns, time_ns, error_ns in zip(
        merged, merged.values(), times.tolist(), errors.tolist(), strict=True
    ):
        if time_ns + error_ns < start_ns or time_ns - error_ns > now_ns:
            n_dropped += 1
            continue
        row = {"time_ns": time_ns, "sample_ns": time_ns, "device": device, "source": "nvml_buffer"}
        rows.append({**row, **columns})
    return rows, n_dropped


class ProcessNamer:
    """Names and containers of the processes that the driver lists.

    Args:
        root: Where /proc is.
    """

    def __init__(self, root: Path = proc.PROC) -> None:
        self._root = root
        self._cgroups: dict[int, tuple[str, dict[str, str]]] = {}
        self._names = ContainerNames()

    def name(self, pid: int) -> str | None:
        """Return the name of a process; None when there is no such process here."""
        data = proc.read_bytes(f"{self._root}/{pid}/comm", 64)
        return None if data is None else data.decode("utf-8", "replace").rstrip("\n")

    def container(self, pid: int, name: str) -> tuple[str | None, str | None]:
        """Return id and name of the container of a process, whose cgroups are remembered while the
        process's name stays the same.
        """
        known = self._cgroups.get(pid)
        if known is None or known[0] != name:
            if len(self._cgroups) > _MANY_PROCESSES:
                self._cgroups.clear()
            known = (name, proc.read_cgroups(pid, self._root))
            self._cgroups[pid] = known
        return proc.container_id(known[1]), self._names.name(known[1])


def process_rows(
    items: Iterable[tuple[Any, ...]], namer: ProcessNamer, targets: set[int]
) -> tuple[list[dict[str, Any]], set[int]]:
    """Return rows of ``gpu_process``, and the pids listed that no process here has.

    Args:
        items: Time, device, compute, MPS and graphics lists (None: not told), and SM shares.
        namer: Tells names and containers.
        targets: Ids of the recorded processes.
    """
    rows: list[dict[str, Any]] = []
    unseen: set[int] = set()
    for time_ns, device, compute, through_mps, graphics, shares in items:
        types: dict[int, str | None] = dict.fromkeys(shares)
        memory: dict[int, int | None] = {}
        for kind, listed in (("G", graphics), ("C", compute), ("M+C", through_mps)):
            for pid, used in listed or ():
                types[pid] = kind
                memory[pid] = used if memory.get(pid) is None else memory[pid]
        for pid, type_ in types.items():
            name = namer.name(pid) if pid > 0 else None
            if name is None:
                if type_ is not None:
                    unseen.add(pid)
                continue
            _, sm_share, memory_share = shares.get(pid, (0, None, None))
            container, container_name = namer.container(pid, name)
            rows.append(
                {
                    "time_ns": time_ns,
                    "device": device,
                    "pid": pid,
                    "type": type_,
                    "memory_bytes": clean("memory_used_bytes", memory.get(pid)),
                    "sm_util_pct": _share(sm_share),
                    "memory_util_pct": _share(memory_share),
                    "name": name,
                    "container": container,
                    "container_name": container_name,
                    "is_target": pid in targets,
                }
            )
    return rows, unseen


def process_batch(rows: Sequence[Mapping[str, Any]]) -> Batch:
    """Return a batch of ``gpu_process`` from rows of its columns."""
    columns = {name: [row.get(name) for row in rows] for name in GPU_PROCESS.column_names}
    return make_batch(GPU_PROCESS, columns)


def _share(value: int | None) -> float | None:
    """A process's share, cut to 100; None for blanks and garbage."""
    if value is None or not 0 <= value <= _MOST_SHARE:
        return None
    return float(min(value, 100))
