"""The sampled quantities of a session as counters of a trace."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.report.trace.builder import Lines
from analysis.report.trace.model import Floats, Ints, Item
from analysis.timeline import Session

#: Columns of gpu_sample, their names, units and factors.
_GPU = (
    ("util_pct", "utilisation", "%", 1.0),
    ("memory_util_pct", "memory utilisation", "%", 1.0),
    ("sm_active_pct", "SM active", "%", 1.0),
    ("tensor_active_pct", "tensor active", "%", 1.0),
    ("dram_active_pct", "DRAM active", "%", 1.0),
    ("power_mw", "power", "W", 1e-3),
    ("sm_clock_mhz", "SM clock", "MHz", 1.0),
    ("memory_clock_mhz", "memory clock", "MHz", 1.0),
    ("temperature_celsius", "temperature", "degC", 1.0),
    ("memory_used_bytes", "memory used", "bytes", 1.0),
    ("pcie_tx_bytes_per_s", "PCIe sent", "bytes/s", 1.0),
    ("pcie_rx_bytes_per_s", "PCIe received", "bytes/s", 1.0),
)
#: Cumulative times of host_sample that are shown as a share of each interval.
_HOST = (
    ("cpu_busy_ns", "CPU time used"),
    ("cpu_steal_ns", "CPU time stolen"),
    ("cpu_some_ns", "some task waited for a CPU"),
    ("memory_some_ns", "some task waited for memory"),
    ("cpu_throttled_ns", "CPU quota: time parked"),
)


def all_counters(lines: Lines, session: Session) -> Iterator[Item]:
    """Yield the counters of GPUs, threads, processes, the host and the engine."""
    yield from _gpus(lines, session)
    yield from _threads(lines, session)
    yield from _processes(lines, session)
    yield from _host(lines, session)
    yield from _engine(lines, session)


def _frame(session: Session, table: str, columns: list[str]) -> pd.DataFrame | None:
    if not session.has(table):
        return None
    rows: pd.DataFrame = session.table(table, columns=columns).to_pandas()
    return None if rows.empty else rows


def _column(rows: pd.DataFrame, time: str, column: str) -> tuple[Ints, Floats]:
    told = rows[rows[column].notna()]
    return told[time].to_numpy(dtype=np.int64), told[column].to_numpy(dtype=float)


def _gpus(lines: Lines, session: Session) -> Iterator[Item]:
    columns = [column for column, *_rest in _GPU]
    rows = _frame(session, "gpu_sample", ["time_ns", "device", *columns])
    if rows is None:
        return
    for device, own in rows.groupby("device"):
        gpu = f"GPU {device}"
        yield from lines.group(gpu)
        for column, name, unit, factor in _GPU:
            time, value = _column(own, "time_ns", column)
            yield from lines.samples(gpu, name, unit, time, factor * value)


def _threads(lines: Lines, session: Session) -> Iterator[Item]:
    columns = ["start_ns", "duration_ns", "pid", "tid", "running_ns", "waiting_ns", "is_launcher"]
    rows = _frame(session, "thread_second", columns)
    if rows is None:
        return
    rows = rows[rows["is_launcher"].fillna(False).astype(bool) & (rows["duration_ns"] > 0)]
    for pid, tid in sorted(set(zip(rows["pid"].tolist(), rows["tid"].tolist(), strict=True))):
        own = rows[(rows["pid"] == pid) & (rows["tid"] == tid)]
        key = (int(pid), int(tid))
        yield from lines.thread(*key)
        time = own["start_ns"].to_numpy(dtype=np.int64)
        length = own["duration_ns"].to_numpy(dtype=float)
        for column, name in (("running_ns", "running"), ("waiting_ns", "waiting for a CPU")):
            value = 100 * own[column].to_numpy(dtype=float) / length
            yield from lines.samples(key, name, "%", time, value)


def _processes(lines: Lines, session: Session) -> Iterator[Item]:
    rows = _frame(session, "process_sample", ["time_ns", "pid", "rss_bytes"])
    if rows is None:
        return
    for pid in sorted(set(rows["pid"].tolist())):
        own = rows[rows["pid"] == pid]
        yield from lines.process(pid)
        yield from lines.samples(
            pid, "resident memory", "bytes", *_column(own, "time_ns", "rss_bytes")
        )


def _host(lines: Lines, session: Session) -> Iterator[Item]:
    columns = ["time_ns", "scope", *(column for column, _name in _HOST)]
    rows = _frame(session, "host_sample", columns)
    if rows is None:
        return
    for scope, own in rows.groupby("scope"):
        group = "Host" if scope == "host" else f"cgroup {scope}"
        yield from lines.group(group)
        for column, name in _HOST:
            time, value = _column(own, "time_ns", column)
            if len(time) > 1:
                share = 100 * np.diff(value) / np.maximum(np.diff(time), 1)
                yield from lines.samples(group, name, "%", time[1:], share)


def _engine(lines: Lines, session: Session) -> Iterator[Item]:
    columns = ["time_ns", "endpoint", "metric", "labels", "kind", "value"]
    rows = _frame(session, "engine_sample", columns)
    if rows is None:
        return
    rows = rows[rows["kind"].isin(["gauge", "counter"])]
    for (endpoint, metric, labels), own in rows.groupby(
        ["endpoint", "metric", "labels"], dropna=False
    ):
        group = f"Engine {endpoint}"
        yield from lines.group(group)
        name = f"{metric} {labels}" if isinstance(labels, str) and labels else str(metric)
        yield from lines.samples(group, name, "", *_column(own, "time_ns", "value"))
