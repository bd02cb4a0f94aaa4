"""Rows of the session's tables from the events of Kineto traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.schema import ANNOTATION, GPU_ACTIVITY, KERNEL_FUNCTION
from probes.probe import Batch, make_batch
from probes.recorded.activity_names import copy_kind_of, is_collective_name, is_step_name
from probes.recorded.calls import CallAssembler, nullable, texts
from probes.recorded.columns import Gathered, Names
from probes.recorded.kineto_rows import CALL, DEVICE, PYTHON, EventRows
from probes.recorded.recording import BATCH_ROWS, Problems

_Columns = dict[str, npt.NDArray[Any]]

_MAX_DEVICES = 4096
_ACTIVITY_KINDS = ("kernel", "copy", "set")
_KIND_OF_CATEGORY = {
    "kernel": 0,
    "gpu_memcpy": 1,
    "memcpy": 1,
    "gpu_memset": 2,
    "memset": 2,
}
_RANGES = ("step", "user", "operator", "python", "overhead")

_ACTIVITY = [
    "start_ns",
    "duration_ns",
    "name",
    "kind",
    "device",
    "no_device",
    "stream",
    "no_stream",
    "correlation",
    "no_correlation",
    "bytes",
    "no_bytes",
    "graph",
    "no_graph",
    "grid",
    "no_grid",
    "block",
    "no_block",
    "is_collective",
]
_CALL = ["start_ns", "duration_ns", "name", "pid", "tid", "correlation", "no_correlation"]
_RANGE = ["start_ns", "duration_ns", "name", "pid", "no_pid", "tid", "no_tid", "category"]


class DeviceIndex:
    """Numbers the GPUs of a recording.

    The traces of several ranks may come from several hosts, where equal ids are different GPUs:
    then every pair of file and id gets its own number. One trace keeps the ids it uses.
    """

    def __init__(self, is_per_file: bool) -> None:
        self._is_per_file = is_per_file
        self._file = 0
        self._numbers: dict[tuple[int, int], int] = {}
        self._described: dict[int, dict[str, Any]] = {}

    def learn(self, properties: object) -> None:
        """Take over what a trace says of its devices (``deviceProperties``)."""
        if not isinstance(properties, list):
            return
        for item in properties[:_MAX_DEVICES]:
            if not isinstance(item, dict) or not isinstance(item.get("id"), int):
                continue
            memory = item.get("totalGlobalMem")
            self._described[item["id"]] = {
                "name": str(item.get("name") or "unknown GPU")[:200],
                "memory_bytes": memory if isinstance(memory, int) else None,
            }
            if not self._is_per_file and 0 <= item["id"] < _MAX_DEVICES:
                self._numbers.setdefault((0, item["id"]), item["id"])

    def next_file(self) -> None:
        """Say that what follows comes from another file."""
        self._file += self._is_per_file

    def numbers(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the GPU's number in the manifest for each id of the present file."""
        unique, inverse = np.unique(ids, return_inverse=True)
        found = []
        for value in unique.tolist():
            key = (self._file, value)
            if key not in self._numbers:
                self._numbers[key] = len(self._numbers) if self._is_per_file else value
            found.append(self._numbers[key])
        return np.array(found, np.int64)[inverse]

    def gpus(self) -> list[dict[str, Any]]:
        """Return the GPUs for the manifest."""
        by_number = {number: key[1] for key, number in self._numbers.items()}
        unknown: dict[str, Any] = {"name": "unknown GPU"}
        return [
            {"index": number, **self._described.get(by_number.get(number, -1), unknown)}
            for number in range(max(by_number, default=-1) + 1)
        ]


class TraceTables:
    """Gathers the events of one trace and turns them into batches.

    Attributes:
        pids: Processes seen.
        start_ns: Earliest begin seen.
        end_ns: Latest end seen.
        n_rows_out: Rows handed out so far.
    """

    def __init__(self, devices: DeviceIndex, problems: Problems) -> None:
        self._devices = devices
        self._problems = problems
        self._calls = CallAssembler()
        self._activities = Gathered(_ACTIVITY)
        self._bare_calls = Gathered(_CALL)
        self._ranges = Gathered(_RANGE)
        self._names = Names()
        self._handles: dict[str, int] = {}
        self.pids: set[int] = set()
        self.start_ns: int | None = None
        self.end_ns: int | None = None
        self.n_rows_out = 0

    @property
    def n_held(self) -> int:
        """Rows gathered and not handed out."""
        return self._activities.n_rows + self._bare_calls.n_rows + self._ranges.n_rows

    def add(self, rows: EventRows, shift_ns: int) -> None:
        """Take over some events, their times shifted by ``shift_ns``."""
        start = rows.start_ns + shift_ns
        first, last = int(start.min()), int((start + rows.duration_ns).max())
        self.start_ns = first if self.start_ns is None else min(first, self.start_ns)
        self.end_ns = last if self.end_ns is None else max(last, self.end_ns)
        common = {
            "start_ns": start,
            "duration_ns": rows.duration_ns,
            "name": self._names.codes(rows.name),
        }
        if rows.group == DEVICE:
            self._add_activities(rows, common)
        elif rows.group == CALL:
            self._add_calls(rows, common)
        else:
            self._add_ranges(rows, common)

    def _add_activities(self, rows: EventRows, common: _Columns) -> None:
        device, no_device = rows.integers("device")
        stream, no_stream = rows.integers("stream")
        correlation, no_correlation = rows.integers("correlation")
        size, no_size = rows.integers("bytes")
        graph, no_graph = rows.integers("graph id")
        grid, no_grid = rows.triple("grid")
        block, no_block = rows.triple("block")
        self._activities.add(
            {
                **common,
                "kind": np.array([_KIND_OF_CATEGORY[name] for name in rows.category], np.int64),
                "device": device,
                "no_device": no_device | (device < 0) | (device >= _MAX_DEVICES),
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
                "is_collective": rows.text("Collective name")
                .is_valid()
                .to_numpy(zero_copy_only=False),
            }
        )

    def _add_calls(self, rows: EventRows, common: _Columns) -> None:
        (pid, no_pid), (tid, no_tid) = rows.integers("pid"), rows.integers("tid")
        correlation, no_correlation = rows.integers("correlation")
        is_task = ~no_pid & ~no_tid & (pid >= 0) & (pid < 1 << 31)
        self._problems.add("call without process or thread", int((~is_task).sum()))
        columns = {
            **common,
            "pid": pid,
            "tid": tid & 0x7FFFFFFF,
            "correlation": correlation,
            "no_correlation": no_correlation | (correlation <= 0),
        }
        self._bare_calls.add({name: values[is_task] for name, values in columns.items()})

    def _add_ranges(self, rows: EventRows, common: _Columns) -> None:
        (pid, no_pid), (tid, no_tid) = rows.integers("pid"), rows.integers("tid")
        names = self._names.texts
        is_step = {code: is_step_name(names[code]) for code in np.unique(common["name"]).tolist()}
        kinds = [
            _range_category(rows.group, category, is_step[code])
            for category, code in zip(rows.category, common["name"].tolist(), strict=True)
        ]
        self._ranges.add(
            {
                **common,
                "pid": pid,
                "no_pid": no_pid | (pid < 0) | (pid >= 1 << 31),
                "tid": tid & 0x7FFFFFFF,
                "no_tid": no_tid,
                "category": np.array(kinds, np.int64),
            }
        )

    def flush(self, rank: int | None) -> Iterator[Batch]:
        """Hand out everything gathered, sorted, as of one rank."""
        activities = self._activities.take("start_ns")
        calls = self._bare_calls.take("start_ns")
        ranges = self._ranges.take("start_ns")
        names = self._names.texts
        self._names = Names()
        pid = _commonest(calls["pid"], ranges["pid"][~ranges["no_pid"].astype(bool)])
        if pid is not None:
            self.pids.add(pid)
        if len(activities["start_ns"]):
            missing = int(activities["no_device"].sum())
            self._problems.add("activity that names no GPU", missing)
            activities = _rows(activities, ~activities["no_device"])
            activities["device"] = self._devices.numbers(activities["device"])
            self._devices.next_file()
        kernels = self._kernels(activities, names)
        for batch in (
            *self._activity_batches(activities, names, pid, rank),
            *self._kernel_batches(activities, kernels, names, pid),
            *self._call_batches(calls, activities, kernels, names, rank),
            *self._range_batches(ranges, names, rank),
        ):
            self.n_rows_out += batch.rows.num_rows
            yield batch

    def _kernels(self, activities: _Columns, names: list[str]) -> npt.NDArray[np.uint64]:
        """Return a handle for each activity's kernel, the same for the same name."""
        if not len(activities["start_ns"]):
            return np.empty(0, np.uint64)
        unique, inverse = np.unique(activities["name"], return_inverse=True)
        handles = [
            self._handles.setdefault(names[code], len(self._handles) + 1)
            for code in unique.tolist()
        ]
        return np.array(handles, np.uint64)[inverse]

    def _activity_batches(
        self, rows: _Columns, names: list[str], pid: int | None, rank: int | None
    ) -> Iterator[Batch]:
        unique, codes = np.unique(rows["name"], return_inverse=True)
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
                "pid": [pid] * len(code),
                "stream": nullable(piece["stream"], piece["no_stream"]),
                "kind": texts(piece["kind"], _ACTIVITY_KINDS),
                "name": texts(code, words),
                "copy_kind": texts(np.where(is_copy, code, len(words)), [*directions, None]),
                "size_bytes": nullable(piece["bytes"], piece["no_bytes"]),
                "is_pageable": nullable(pageable[code] if len(words) else code, ~is_copy),
                "correlation_id": nullable(piece["correlation"], piece["no_correlation"]),
                "graph_id": nullable(piece["graph"], piece["no_graph"]),
                "is_collective": (piece["kind"] == 0) & (piece["is_collective"] | collective[code]),
                "rank": [rank] * len(code),
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
        pid: int | None,
    ) -> Iterator[Batch]:
        if pid is None or not len(kernels):
            return
        _, first = np.unique(kernels, return_index=True)
        first = first[activities["kind"][first] == 0]
        first.sort()
        for part in _parts(len(first)):
            rows = first[part]
            yield make_batch(
                KERNEL_FUNCTION,
                {
                    "time_ns": activities["start_ns"][rows],
                    "pid": [pid] * len(rows),
                    "kernel": kernels[rows],
                    "name": [names[code] for code in activities["name"][rows].tolist()],
                    "source": ["import"] * len(rows),
                },
            )

    def _call_batches(
        self,
        calls: _Columns,
        activities: _Columns,
        kernels: npt.NDArray[np.uint64],
        names: list[str],
        rank: int | None,
    ) -> Iterator[Batch]:
        if not len(calls["start_ns"]):
            return
        row, is_alone = _joined(calls, activities)
        joined: Mapping[str, npt.NDArray[Any]] = activities
        if not len(kernels):
            joined = {name: np.zeros(1, np.int64) for name in activities}
            kernels = np.zeros(1, np.uint64)
        for part in _parts(len(row)):
            piece = {name: values[part] for name, values in calls.items()}
            at, no_match = row[part], is_alone[part]
            is_kernel = joined["kind"][at] == 0
            unique, codes = np.unique(piece["name"], return_inverse=True)
            words = [names[code] for code in unique.tolist()]
            is_graph = np.array(["GraphLaunch" in word for word in words], bool)[codes]
            activity_names = joined["name"][at]
            copies, copy = np.unique(activity_names, return_inverse=True)
            directions = [copy_kind_of(names[int(code)]) for code in copies.tolist()]
            no_copy = no_match | (joined["kind"][at] != 1)
            yield self._calls.add(
                piece["start_ns"],
                piece["duration_ns"],
                piece["pid"],
                piece["tid"],
                (codes, words),
                {
                    "device": nullable(joined["device"][at], no_match),
                    "stream": nullable(
                        joined["stream"][at], no_match | joined["no_stream"][at].astype(bool)
                    ),
                    "size_bytes": nullable(
                        joined["bytes"][at], no_match | joined["no_bytes"][at].astype(bool)
                    ),
                    "copy_kind": texts(
                        np.where(no_copy, len(directions), copy), [*directions, None]
                    ),
                    "correlation_id": nullable(piece["correlation"], piece["no_correlation"]),
                    "rank": [rank] * len(at),
                },
                (kernels[at], no_match | ~is_kernel | is_graph),
            )

    def _range_batches(
        self, ranges: _Columns, names: list[str], rank: int | None
    ) -> Iterator[Batch]:
        for part in _parts(len(ranges["start_ns"])):
            piece = {name: values[part] for name, values in ranges.items()}
            unique, codes = np.unique(piece["name"], return_inverse=True)
            yield make_batch(
                ANNOTATION,
                {
                    "start_ns": piece["start_ns"],
                    "duration_ns": piece["duration_ns"],
                    "pid": nullable(piece["pid"], piece["no_pid"]),
                    "tid": nullable(piece["tid"], piece["no_tid"]),
                    "category": texts(piece["category"], _RANGES),
                    "name": texts(codes, [names[code] for code in unique.tolist()]),
                    "rank": [rank] * len(codes),
                },
            )


def _range_category(group: str, category: str, is_step: bool) -> int:
    if group == PYTHON:
        return _RANGES.index("python")
    if category == "overhead":
        return _RANGES.index("overhead")
    if is_step:
        return _RANGES.index("step")
    return _RANGES.index("user" if category == "user_annotation" else "operator")


def _joined(
    calls: _Columns, activities: _Columns
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the first activity of each call by correlation (0 where none), and where none."""
    has_id = np.flatnonzero(~activities["no_correlation"].astype(bool))
    ids, first = np.unique(activities["correlation"][has_id], return_index=True)
    if not len(ids):
        return np.zeros(len(calls["start_ns"]), np.int64), np.ones(len(calls["start_ns"]), bool)
    at = np.minimum(np.searchsorted(ids, calls["correlation"]), len(ids) - 1)
    is_alone = (ids[at] != calls["correlation"]) | calls["no_correlation"].astype(bool)
    return np.where(is_alone, 0, has_id[first[at]]), is_alone


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
