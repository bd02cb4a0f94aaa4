"""Calls as rows: columns of ``cuda_call`` and ``open_call`` out of paired records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from analysis.schema import OPEN_CALL
from probes.cuda.decode import COPY_KIND_NAMES, FUNCTIONS_BY_INDEX, HAS_CODE, Arguments, decode
from probes.cuda.functions import SYMBOLS
from probes.cuda.meaning import Meaning
from probes.cuda.pairing import Calls, OpenCalls
from probes.host import proc
from probes.probe import Batch, make_batch

#: Most open calls in one snapshot.
MAX_OPEN = 4096

_NAMES = pa.array(SYMBOLS)
_LAYERS = pa.array([function.layer for function in FUNCTIONS_BY_INDEX])
_KINDS = pa.array([function.kind for function in FUNCTIONS_BY_INDEX])
_COPY_KINDS = pa.array(COPY_KIND_NAMES)
_ARGUMENT_COLUMNS = (
    "stream",
    "kernel",
    "grid_x",
    "grid_y",
    "grid_z",
    "block_x",
    "block_y",
    "block_z",
    "shared_memory_bytes",
    "size_bytes",
    "rank",
)


def call_columns(calls: Calls, arguments: Arguments, meaning: Meaning) -> dict[str, Any]:
    """Return the columns of ``cuda_call`` for closed calls."""
    entries = calls.entries
    function = entries["function"].astype(np.int64)
    start_ns = entries["time_ns"].astype(np.int64)
    missing = ~calls.has_return
    device = meaning.device
    index = pa.array(function)
    columns: dict[str, Any] = {
        "start_ns": start_ns,
        "duration_ns": pa.array(np.where(missing, 0, calls.end_ns - start_ns), mask=missing),
        "pid": (entries["pid_tgid"] >> np.uint64(32)).astype(np.int32),
        "tid": entries["pid_tgid"].astype(np.uint32).astype(np.int32),
        "function": _NAMES.take(index),
        "layer": _LAYERS.take(index),
        "kind": _KINDS.take(index),
        "call_id": calls.call_id,
        "parent_call_id": pa.array(calls.parent_id, mask=calls.parent_id < 0),
        "depth": calls.depth.astype(np.int16),
        "device": pa.array(device, mask=device < 0),
        "return_code": pa.array(calls.result.astype(np.int32), mask=missing | ~HAS_CODE[function]),
        "is_first_seen": pa.array(meaning.is_first_seen, mask=~meaning.is_launch),
        "is_first_use": pa.array(meaning.is_first_use, mask=~meaning.knows_first_use),
        "is_capture": meaning.is_capture,
    }
    for name in _ARGUMENT_COLUMNS:
        column = arguments.array(name)
        if column is not None:
            columns[name] = column
    if "copy_kind" in arguments.values:
        kinds = pa.array(arguments.values["copy_kind"], mask=~arguments.is_known["copy_kind"])
        columns["copy_kind"] = _COPY_KINDS.take(kinds)
    return columns


def open_batch(calls: OpenCalls, now_ns: int) -> Batch:
    """Return the snapshot of the open calls, oldest first."""
    rows = np.argsort(calls.entries["time_ns"], kind="stable")[:MAX_OPEN]
    entries = calls.entries[rows]
    arguments = decode(entries)
    pid = (entries["pid_tgid"] >> np.uint64(32)).astype(np.int32)
    tid = entries["pid_tgid"].astype(np.uint32).astype(np.int32)
    states = []
    for process, thread in zip(pid.tolist(), tid.tolist(), strict=True):
        stat = proc.read_stat(process, tid=thread)
        states.append(None if stat is None else stat.state)
    function = entries["function"].astype(np.int64)
    columns: dict[str, Any] = {
        "time_ns": np.full(len(entries), now_ns),
        "start_ns": entries["time_ns"].astype(np.int64),
        "pid": pid,
        "tid": tid,
        "function": _NAMES.take(pa.array(function)),
        "layer": _LAYERS.take(pa.array(function)),
        "kind": _KINDS.take(pa.array(function)),
        "call_id": calls.call_id[rows],
        "depth": calls.depth[rows],
        "is_doubtful": calls.is_doubtful[rows],
        "thread_state": pa.array(states, pa.string()),
    }
    for name in ("stream", "kernel"):
        column = arguments.array(name)
        if column is not None:
            columns[name] = column
    return make_batch(OPEN_CALL, columns)
