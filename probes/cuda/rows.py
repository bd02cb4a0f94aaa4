"""Calls as rows: columns of ``cuda_call`` and ``open_call`` out of paired records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
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
_COPY_KINDS = pa.array(COPY_KIND_NAMES)


class _Text:
    """A text that belongs to each function; as a column it is a code for each row."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = pa.array(sorted(set(texts)))
        places = {text: place for place, text in enumerate(self._texts.to_pylist())}
        self._codes = np.array([places[text] for text in texts], np.int8)

    def of(self, function: npt.NDArray[np.intp]) -> pa.Array:
        """The text of each function, coded."""
        return pa.DictionaryArray.from_arrays(pa.array(self._codes.take(function)), self._texts)


_LAYERS = _Text([function.layer for function in FUNCTIONS_BY_INDEX])
_KINDS = _Text([function.kind for function in FUNCTIONS_BY_INDEX])
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


class _Columns:
    """Arrow arrays over NumPy's values, where a mask that several of them share is packed once."""

    def __init__(self) -> None:
        self._bitmaps: dict[int, tuple[npt.NDArray[np.bool_], pa.Buffer | None]] = {}

    def array(
        self, values: npt.NDArray[np.generic], is_known: npt.NDArray[np.bool_] | None = None
    ) -> pa.Array:
        """The values, null where they are not known; not copied."""
        kind = pa.from_numpy_dtype(values.dtype)
        if values.dtype == np.bool_:
            data = pa.py_buffer(np.packbits(values.view(np.bool_), bitorder="little"))
        else:
            data = pa.py_buffer(np.ascontiguousarray(values))
        bitmap = None if is_known is None else self._bitmap(is_known)
        return pa.Array.from_buffers(kind, len(values), [bitmap, data])

    def _bitmap(self, is_known: npt.NDArray[np.bool_]) -> pa.Buffer | None:
        found = self._bitmaps.get(id(is_known))
        if found is None:
            packed = np.packbits(is_known, bitorder="little")
            bitmap = None if is_known.all() else pa.py_buffer(packed)
            # The mask is kept as well: no other can get its identity meanwhile.
            found = self._bitmaps[id(is_known)] = (is_known, bitmap)
        return found[1]


def call_columns(calls: Calls, arguments: Arguments, meaning: Meaning) -> dict[str, Any]:
    """Return the columns of ``cuda_call`` for closed calls; those of text are coded."""
    index = calls.function
    start_ns, pid_tgid, returned = calls.start_ns, calls.pid_tgid, calls.has_return
    array = _Columns().array
    columns: dict[str, Any] = {
        "start_ns": array(start_ns),
        "duration_ns": array(calls.end_ns - start_ns, returned),
        "pid": array((pid_tgid >> np.uint64(32)).astype(np.int32)),
        "tid": array(pid_tgid.astype(np.uint32).view(np.int32)),
        "function": pa.DictionaryArray.from_arrays(array(index.astype(np.int16)), _NAMES),
        "layer": _LAYERS.of(index),
        "kind": _KINDS.of(index),
        "call_id": array(calls.call_id),
        "parent_call_id": array(calls.parent_id, calls.parent_id >= 0),
        "depth": array(calls.depth.astype(np.int16)),
        "device": array(meaning.device, meaning.device >= 0),
        "return_code": array(calls.result.astype(np.int32), returned & HAS_CODE.take(index)),
        "is_first_seen": array(meaning.is_first_seen, meaning.is_launch),
        "is_first_use": array(meaning.is_first_use, meaning.knows_first_use),
        "is_capture": array(meaning.is_capture),
    }
    for name in _ARGUMENT_COLUMNS:
        if name in arguments.values:
            columns[name] = array(arguments.values[name], arguments.is_known[name])
    if "copy_kind" in arguments.values:
        codes = array(arguments.values["copy_kind"], arguments.is_known["copy_kind"])
    else:
        codes = pa.nulls(len(calls), pa.int8())
    columns["copy_kind"] = pa.DictionaryArray.from_arrays(codes, _COPY_KINDS)
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
        "layer": _LAYERS.of(function),
        "kind": _KINDS.of(function),
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
