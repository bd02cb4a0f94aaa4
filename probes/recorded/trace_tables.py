"""Rows of the session's tables from activities, calls and ranges with device times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.schema import ANNOTATION, GPU_ACTIVITY, KERNEL_FUNCTION
from probes.probe import Batch, make_batch
from probes.recorded.activity_names import copy_kind_of, is_collective_name
from probes.recorded.calls import CallAssembler, nullable, same, texts
from probes.recorded.columns import Gathered, Names, distinct
from probes.recorded.devices import DeviceIndex
from probes.recorded.recording import BATCH_ROWS, Problems

_Columns = dict[str, npt.NDArray[Any]]
_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]

#: Kinds that the column ``kind`` of activities indexes.
ACTIVITY_KINDS = ("kernel", "copy", "set", "graph")
#: Categories that the column ``category`` of ranges indexes.
RANGE_CATEGORIES = ("step", "user", "operator", "python", "overhead", "os")

#: A column ``no_X`` says where ``X`` has no value.
ACTIVITY_COLUMNS = (
    *("start_ns", "duration_ns", "name", "kind", "pid", "no_pid", "device", "no_device"),
    *("stream", "no_stream", "correlation", "no_correlation", "bytes", "no_bytes"),
    *("graph", "no_graph", "grid", "no_grid", "block", "no_block", "is_collective"),
)
#: What a sync waited for, which its call does not say.
SYNC_COLUMNS = (
    *("start_ns", "pid", "no_pid", "device", "no_device", "stream", "no_stream"),
    *("correlation", "no_correlation"),
)
CALL_COLUMNS = (
    *("start_ns", "duration_ns", "name", "pid", "tid", "correlation", "no_correlation"),
    *("return_code", "no_return_code"),
)
RANGE_COLUMNS = (
    *("start_ns", "duration_ns", "name", "pid", "no_pid", "tid", "no_tid", "category"),
)


class TraceTables:
    """Gathers activities, calls and ranges with device times and turns them into batches.

    Activities, syncs and calls are joined by process and correlation id within what is held at a
    flush.

    Attributes:
        activities: Columns ``ACTIVITY_COLUMNS`` of what the GPUs did.
        syncs: Columns ``SYNC_COLUMNS`` of waits for a device, stream or event.
        calls: Columns ``CALL_COLUMNS`` of the calls.
        ranges: Columns ``RANGE_COLUMNS`` of named ranges.
        names: Names that the ``name`` columns index.
        pids: Processes seen.
        start_ns: Earliest begin seen.
        end_ns: Latest end seen.
        n_rows_out: Rows handed out so far.
    """

    def __init__(self, devices: DeviceIndex, problems: Problems) -> None:
        self._devices = devices
        self._problems = problems
        self._assembler = CallAssembler()
        self.activities = Gathered(ACTIVITY_COLUMNS)
        self.syncs = Gathered(SYNC_COLUMNS)
        self.calls = Gathered(CALL_COLUMNS)
        self.ranges = Gathered(RANGE_COLUMNS)
        self.names = Names()
        self._handles: dict[str, int] = {}
        self._named: set[int] = set()
        self.pids: set[int] = set()
        self.start_ns: int | None = None
        self.end_ns: int | None = None
        self.n_rows_out = 0

    @property
    def n_held(self) -> int:
        """Rows gathered and not handed out."""
        return sum(held.n_rows for held in (self.activities, self.syncs, self.calls, self.ranges))

    def see(self, start_ns: npt.NDArray[np.int64], duration_ns: npt.NDArray[np.int64]) -> None:
        """Widen the extent of the recording by some rows."""
        if not len(start_ns):
            return
        first, last = int(start_ns.min()), int((start_ns + duration_ns).max())
        self.start_ns = first if self.start_ns is None else min(first, self.start_ns)
        self.end_ns = last if self.end_ns is None else max(last, self.end_ns)

    def flush(self, rank: int | None) -> Iterator[Batch]:
        """Hand out everything gathered, sorted, as of one rank."""
        activities = self.activities.take("start_ns")
        syncs = self.syncs.take("start_ns")
        calls = self.calls.take("start_ns")
        ranges = self.ranges.take("start_ns")
        names = self.names.texts
        self.names = Names()
        pid = _commonest(calls["pid"], ranges["pid"][~ranges["no_pid"].astype(bool)])
        if pid is not None:
            for rows in (activities, syncs):
                rows["pid"] = np.where(rows["no_pid"], pid, rows["pid"])
                rows["no_pid"] = np.zeros(len(rows["pid"]), bool)
            self.pids.update(np.unique(calls["pid"]).tolist(), [pid])
        if len(activities["start_ns"]):
            missing = int(activities["no_device"].sum())
            self._problems.add("activity that names no GPU", missing)
            activities = _rows(activities, ~activities["no_device"])
            activities["device"] = self._devices.numbers(activities["device"])
        syncs = _rows(syncs, ~syncs["no_device"].astype(bool))
        syncs["device"] = self._devices.numbers(syncs["device"])
        kernels = self._kernels(activities, names)
        for batch in (
            *self._activity_batches(activities, names, rank),
            *self._kernel_batches(activities, kernels, names),
            *self._call_batches(calls, activities, syncs, kernels, names, rank),
            *self._range_batches(ranges, names, rank),
        ):
            self.n_rows_out += batch.rows.num_rows
            yield batch

    def _kernels(self, activities: _Columns, names: list[str]) -> npt.NDArray[np.uint64]:
        """Return a handle for each activity's kernel, the same for the same name."""
        if not len(activities["start_ns"]):
            return np.empty(0, np.uint64)
        unique, inverse = distinct(activities["name"])
        handles = [
            self._handles.setdefault(names[code], len(self._handles) + 1)
            for code in unique.tolist()
        ]
        return np.array(handles, np.uint64)[inverse]

    def _activity_batches(
        self, rows: _Columns, names: list[str], rank: int | None
    ) -> Iterator[Batch]:
        unique, codes = distinct(rows["name"])
        words = [names[code] for code in unique.tolist()]
        collective = np.array([is_collective_name(word) for word in words], bool)
        pageable = np.array(["ageable" in word for word in words], bool)
        directions = [copy_kind_of(word) for word in words]
        for part in _parts(len(codes)):
            piece = {name: values[part] for name, values in rows.items()}
            code, is_copy = codes[part], piece["kind"] == 1
            columns = {
                "start_ns": piece["start_ns"],
                "duration_ns": piece["duration_ns"],
                "device": piece["device"],
                "pid": nullable(piece["pid"], piece["no_pid"]),
                "stream": nullable(piece["stream"], piece["no_stream"]),
                "kind": texts(piece["kind"], ACTIVITY_KINDS),
                "name": texts(code, words),
                "copy_kind": texts(np.where(is_copy, code, len(words)), [*directions, None]),
                "size_bytes": nullable(piece["bytes"], piece["no_bytes"]),
                "is_pageable": nullable(pageable[code] if len(words) else code, ~is_copy),
                "correlation_id": nullable(piece["correlation"], piece["no_correlation"]),
                "graph_id": nullable(piece["graph"], piece["no_graph"]),
                "is_collective": (piece["kind"] == 0) & (piece["is_collective"] | collective[code]),
                "rank": same(rank, len(code)),
            }
            for shape in ("grid", "block"):
                for axis, letter in enumerate("xyz"):
                    columns[f"{shape}_{letter}"] = nullable(
                        piece[shape][:, axis], piece[f"no_{shape}"]
                    )
            yield make_batch(GPU_ACTIVITY, columns)

    def _kernel_batches(
        self,
        activities: _Columns,
        kernels: npt.NDArray[np.uint64],
        names: list[str],
    ) -> Iterator[Batch]:
        rows = np.flatnonzero((activities["kind"] == 0) & ~activities["no_pid"].astype(bool))
        if not len(rows):
            return
        pairs = activities["pid"][rows] << 32 | kernels[rows].astype(np.int64)
        pairs, first = np.unique(pairs, return_index=True)
        is_new = np.array([pair not in self._named for pair in pairs.tolist()], bool)
        self._named.update(pairs.tolist())
        first = np.sort(rows[first[is_new]])
        for part in _parts(len(first)):
            rows = first[part]
            yield make_batch(
                KERNEL_FUNCTION,
                {
                    "time_ns": activities["start_ns"][rows],
                    "pid": activities["pid"][rows],
                    "kernel": kernels[rows],
                    "name": [names[code] for code in activities["name"][rows].tolist()],
                    "source": ["import"] * len(rows),
                },
            )

    def _call_batches(
        self,
        calls: _Columns,
        activities: _Columns,
        syncs: _Columns,
        kernels: npt.NDArray[np.uint64],
        names: list[str],
        rank: int | None,
    ) -> Iterator[Batch]:
        if not len(calls["start_ns"]):
            return
        row, is_alone = _joined(calls, activities)
        where = _places(row, is_alone, activities, *_joined(calls, syncs), syncs)
        joined: Mapping[str, npt.NDArray[Any]] = activities
        if not len(kernels):
            joined = {name: np.zeros(1, np.int64) for name in activities}
            kernels = np.zeros(1, np.uint64)
        for part in _parts(len(row)):
            piece = {name: values[part] for name, values in calls.items()}
            at, no_match = row[part], is_alone[part]
            device, no_device, stream, no_stream = where
            is_kernel = joined["kind"][at] == 0
            unique, codes = distinct(piece["name"])
            words = [names[code] for code in unique.tolist()]
            is_graph = np.array(["GraphLaunch" in word for word in words], bool)[codes]
            activity_names = joined["name"][at]
            copies, copy = distinct(activity_names)
            directions = [copy_kind_of(names[int(code)]) for code in copies.tolist()]
            no_copy = no_match | (joined["kind"][at] != 1)
            yield self._assembler.add(
                piece["start_ns"],
                piece["duration_ns"],
                piece["pid"],
                piece["tid"],
                (codes, words),
                {
                    "device": nullable(device[part], no_device[part]),
                    "stream": nullable(stream[part], no_stream[part]),
                    "size_bytes": nullable(
                        joined["bytes"][at], no_match | joined["no_bytes"][at].astype(bool)
                    ),
                    "copy_kind": texts(
                        np.where(no_copy, len(directions), copy), [*directions, None]
                    ),
                    "return_code": nullable(piece["return_code"], piece["no_return_code"]),
                    "correlation_id": nullable(piece["correlation"], piece["no_correlation"]),
                    "rank": same(rank, len(at)),
                },
                (kernels[at], no_match | ~is_kernel | is_graph),
            )

    def _range_batches(
        self, ranges: _Columns, names: list[str], rank: int | None
    ) -> Iterator[Batch]:
        for part in _parts(len(ranges["start_ns"])):
            piece = {name: values[part] for name, values in ranges.items()}
            unique, codes = distinct(piece["name"])
            yield make_batch(
                ANNOTATION,
                {
                    "start_ns": piece["start_ns"],
                    "duration_ns": piece["duration_ns"],
                    "pid": nullable(piece["pid"], piece["no_pid"]),
                    "tid": nullable(piece["tid"], piece["no_tid"]),
                    "category": texts(piece["category"], RANGE_CATEGORIES),
                    "name": texts(codes, [names[code] for code in unique.tolist()]),
                    "rank": same(rank, len(codes)),
                },
            )


def _joined(calls: _Columns, activities: _Columns) -> tuple[_Ints, _Bools]:
    """Return the first activity of each call by correlation (0 where none), and where none."""
    has_id = np.flatnonzero(~activities["no_correlation"].astype(bool))
    key, call_key = _join_keys(activities), _join_keys(calls)
    ids, first = np.unique(key[has_id], return_index=True)
    if not len(ids):
        return np.zeros(len(calls["start_ns"]), np.int64), np.ones(len(calls["start_ns"]), bool)
    at = np.minimum(np.searchsorted(ids, call_key), len(ids) - 1)
    is_alone = (ids[at] != call_key) | calls["no_correlation"].astype(bool)
    return np.where(is_alone, 0, has_id[first[at]]), is_alone


def _places(
    row: _Ints,
    no_activity: _Bools,
    activities: _Columns,
    at: _Ints,
    no_sync: _Bools,
    syncs: _Columns,
) -> tuple[_Ints, _Bools, _Ints, _Bools]:
    """Device and stream of each call, and where they are not known: those of its activity, else
    of its sync.
    """
    found: list[npt.NDArray[Any]] = []
    for name in ("device", "stream"):
        values, is_null = np.zeros(len(row), np.int64), np.ones(len(row), bool)
        for rows, index, is_absent in ((syncs, at, no_sync), (activities, row, no_activity)):
            if len(rows["start_ns"]):
                values = np.where(is_absent, values, rows[name][index])
                is_null = np.where(is_absent, is_null, rows[f"no_{name}"][index])
        found += [values, is_null]
    return found[0], found[1], found[2], found[3]


def _join_keys(columns: _Columns) -> npt.NDArray[np.int64]:
    """One number of process and correlation id: equal ids of other processes are not it."""
    keys: npt.NDArray[np.int64] = columns["pid"] << 40 ^ columns["correlation"]
    return keys


def _rows(columns: _Columns, keep: npt.NDArray[np.bool_]) -> _Columns:
    if keep.all():
        return columns
    return {name: values[keep] for name, values in columns.items()}


def _parts(n_rows: int) -> Iterator[slice]:
    for begin in range(0, n_rows, BATCH_ROWS):
        yield slice(begin, begin + BATCH_ROWS)


def _commonest(*choices: npt.NDArray[Any]) -> int | None:
    for values in choices:
        if len(values):
            unique, counts = np.unique(values, return_counts=True)
            return int(unique[counts.argmax()])
    return None
