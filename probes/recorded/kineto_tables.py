"""Gathers the events of Kineto traces as activities, calls and ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from probes.recorded.activity_names import is_step_name
from probes.recorded.columns import distinct
from probes.recorded.devices import MAX_DEVICES, MAX_STREAM
from probes.recorded.kineto_fields import CALL, DEVICE, PYTHON, SYNC, EventRows
from probes.recorded.recording import Problems
from probes.recorded.trace_tables import RANGE_CATEGORIES, TraceTables

_Columns = dict[str, npt.NDArray[Any]]

#: Index of a category's activities in ``ACTIVITY_KINDS``.
_KIND_OF_CATEGORY = {
    "kernel": 0,
    "gpu_memcpy": 1,
    "memcpy": 1,
    "gpu_memset": 2,
    "memset": 2,
}
_STEP, _USER, _OPERATOR = (RANGE_CATEGORIES.index(name) for name in ("step", "user", "operator"))


def add_events(tables: TraceTables, rows: EventRows, shift_ns: int, problems: Problems) -> None:
    """Take over some events, their times shifted by ``shift_ns``."""
    start = rows.start_ns + shift_ns
    if rows.group == SYNC:
        _add_syncs(tables, rows, start)
        return
    tables.see(start, rows.duration_ns)
    common = {
        "start_ns": start,
        "duration_ns": rows.duration_ns,
        "name": tables.names.recode(rows.names, rows.name),
    }
    if rows.group == DEVICE:
        _add_activities(tables, rows, common)
    elif rows.group == CALL:
        _add_calls(tables, rows, common, problems)
    else:
        _add_ranges(tables, rows, common)


def _add_activities(tables: TraceTables, rows: EventRows, common: _Columns) -> None:
    device, no_device = rows.integers["device"]
    stream, no_stream = rows.integers["stream"]
    correlation, no_correlation = rows.integers["correlation"]
    size, no_size = rows.integers["bytes"]
    graph, no_graph = rows.integers["graph id"]
    grid, no_grid = rows.triples["grid"]
    block, no_block = rows.triples["block"]
    kinds = np.array([_KIND_OF_CATEGORY.get(name, 0) for name in rows.categories], np.int64)
    tables.activities.add(
        {
            **common,
            "kind": kinds[rows.category],
            "pid": np.zeros(len(device), np.int64),
            "no_pid": np.ones(len(device), bool),
            "device": device,
            "no_device": no_device | (device < 0) | (device >= MAX_DEVICES),
            "stream": stream,
            "no_stream": no_stream | (stream < 0),
            "correlation": correlation,
            "no_correlation": no_correlation | (correlation <= 0),
            "bytes": size,
            "no_bytes": no_size | (size < 0),
            "graph": graph,
            "no_graph": no_graph | (graph <= 0),
            "grid": grid,
            "no_grid": no_grid | (grid >= 1 << 31).any(axis=1),
            "block": block,
            "no_block": no_block | (block >= 1 << 31).any(axis=1),
            "is_collective": rows.flags["Collective name"],
        }
    )


def _add_syncs(tables: TraceTables, rows: EventRows, start_ns: npt.NDArray[np.int64]) -> None:
    device, no_device = rows.integers["device"]
    stream, no_stream = rows.integers["stream"]
    correlation, no_correlation = rows.integers["correlation"]
    tables.syncs.add(
        {
            "start_ns": start_ns,
            "pid": np.zeros(len(device), np.int64),
            "no_pid": np.ones(len(device), bool),
            "device": device,
            "no_device": no_device | (device < 0) | (device >= MAX_DEVICES),
            "stream": stream,
            "no_stream": no_stream | (stream < 0) | (stream >= MAX_STREAM),
            "correlation": correlation,
            "no_correlation": no_correlation | (correlation <= 0),
        }
    )


def _add_calls(tables: TraceTables, rows: EventRows, common: _Columns, problems: Problems) -> None:
    (pid, no_pid), (tid, no_tid) = rows.integers["pid"], rows.integers["tid"]
    correlation, no_correlation = rows.integers["correlation"]
    is_task = ~no_pid & ~no_tid & (pid >= 0) & (pid < 1 << 31)
    problems.add("call without process or thread", int((~is_task).sum()))
    columns = {
        **common,
        "pid": pid,
        "tid": tid & 0x7FFFFFFF,
        "correlation": correlation,
        "no_correlation": no_correlation | (correlation <= 0),
        "return_code": np.zeros(len(pid), np.int64),
        "no_return_code": np.ones(len(pid), bool),
    }
    tables.calls.add({name: values[is_task] for name, values in columns.items()})


def _add_ranges(tables: TraceTables, rows: EventRows, common: _Columns) -> None:
    (pid, no_pid), (tid, no_tid) = rows.integers["pid"], rows.integers["tid"]
    names = tables.names.texts
    unique, code = distinct(common["name"])
    is_step = np.array([is_step_name(names[name]) for name in unique.tolist()], bool)[code]
    kinds = np.array([_range_category(rows.group, name) for name in rows.categories], np.int64)
    category = kinds[rows.category]
    may_be_step = (category == _USER) | (category == _OPERATOR)
    tables.ranges.add(
        {
            **common,
            "pid": pid,
            "no_pid": no_pid | (pid < 0) | (pid >= 1 << 31),
            "tid": tid & 0x7FFFFFFF,
            "no_tid": no_tid,
            "category": np.where(is_step & may_be_step, _STEP, category),
        }
    )


def _range_category(group: str, category: str) -> int:
    if group == PYTHON:
        return RANGE_CATEGORIES.index("python")
    if category == "overhead":
        return RANGE_CATEGORIES.index("overhead")
    return _USER if category == "user_annotation" else _OPERATOR
