"""Nsight Systems' SQLite exports, schemas 2.9 to 3.25: every table and column is optional.

Times stay in the export's own clock, in nanoseconds. Activities and calls are joined by
correlation id *and* process. The environment, command lines, outputs and analysis texts that an
export embeds are never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from probes.probe import Batch
from probes.recorded.activity_names import RANGE_COUNTERS, range_category
from probes.recorded.call_names import plain_name
from probes.recorded.devices import MAX_DEVICES, MAX_STREAM, DeviceIndex
from probes.recorded.nsys_copies import copy_names
from probes.recorded.nsys_schedule import MAX_TIME_NS, SCHEDULE, off_cpu
from probes.recorded.recording import Problems, RecordingError
from probes.recorded.sqlite_file import Integers, SqliteFile, integer_column, quoted
from probes.recorded.trace_tables import ACTIVITY_KINDS, RANGE_CATEGORIES, TraceTables

#: Rows held before they are sorted and handed out.
_HELD_ROWS = 1_000_000
_MAX_NAMES = 2_000_000

_KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
_SET = "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_SYNC = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
_RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_NVTX = "NVTX_EVENTS"
_OS = "OSRT_API"
_OVERHEADS = ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD")
_ACTIVITY_TABLES = (_KERNEL, _COPY, _SET, _GRAPH)

#: NVTX events that are ranges: pushed and popped, started and ended.
_NVTX_RANGES = "eventType IN (59, 60)"

#: What rows of tables without names are called.
_UNNAMED = {_SET: "Memset (Device)", _GRAPH: "CUDA graph", _SYNC: "sync"}


def is_nsys(file: SqliteFile) -> bool:
    """Whether the database has the tables of an Nsight Systems export."""
    has_marks = bool({"META_DATA_EXPORT", "EXPORT_META_DATA", "StringIds"} & file.tables)
    known = {*_ACTIVITY_TABLES, _RUNTIME, _NVTX, _OS, SCHEDULE}
    return has_marks and bool(known & file.tables)


@dataclass(frozen=True)
class _Rows:
    """Valid rows of one table in order of their start."""

    table: str
    numbers: dict[str, Integers]
    name: pa.Array


class NsysRecording:
    """An SQLite export of Nsight Systems."""

    format = "nsys"

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self.problems = Problems()
        self._devices = DeviceIndex(is_per_file=False)
        self._strings = self._read_strings()
        self._tables = TraceTables(self._devices, self.problems)
        self._learn_devices()

    def _read_strings(self) -> dict[int, str]:
        if not self._file.has("StringIds", "id", "value"):
            return {}
        named = {"demangledName", "shortName", "nameId", "textId"}
        used = []
        for table in (*_ACTIVITY_TABLES, _RUNTIME, _NVTX, _OS, *_OVERHEADS):
            used += [
                f"SELECT {quoted(column)} FROM {quoted(table)}"
                for column in sorted(named & self._file.columns(table))
            ]
        if not used:
            return {}
        picked = f"{self._file.integer('StringIds', 'id')}, {self._file.text('StringIds', 'value')}"
        rows = self._file.all_rows(
            f"SELECT {picked} FROM StringIds WHERE id IN ({' UNION '.join(used)})", _MAX_NAMES
        )
        return {key: value for key, value in rows if key is not None and value is not None}

    def _learn_devices(self) -> None:
        table = "TARGET_INFO_GPU"
        if not self._file.has(table, "id"):
            return
        picked = ", ".join(
            (
                self._file.integer(table, "id"),
                self._file.text(table, "name"),
                self._file.integer(table, "totalMemory"),
            )
        )
        self._devices.learn(
            [
                {"id": key, "name": name, "totalGlobalMem": memory}
                for key, name, memory in self._file.all_rows(f"SELECT {picked} FROM {table}", 1000)
            ]
        )

    def manifest_facts(self) -> dict[str, Any]:
        """Return what a session's manifest says of it; see ``Recording``."""
        start_ns = self._tables.start_ns
        realtime_ns = self._realtime_at(start_ns) if start_ns is not None else None
        names: dict[int, str] = {}
        if self._file.has("PROCESSES", "globalPid", "name"):
            picked = (
                f"{self._file.integer('PROCESSES', 'globalPid')}, "
                f"{self._file.text('PROCESSES', 'name')}"
            )
            rows = self._file.all_rows(f"SELECT {picked} FROM PROCESSES", 100_000)
            names = {key >> 24 & 0xFFFFFF: name for key, name in rows if key and name}
        tables = ["annotation", "cuda_call", "gpu_activity", "kernel_function", "offcpu"]
        return {
            "origin": self.format,
            "host": {},
            "gpus": self._devices.gpus(),
            "targets": [{"pid": pid, "name": names.get(pid)} for pid in sorted(self._tables.pids)],
            "sources": [
                {
                    "name": "nsys",
                    "state": "ok",
                    "tables": tables,
                    "details": {
                        "export_version": self._version(),
                        "time_base": "clock of the export",
                    },
                }
            ],
            "start_ns": start_ns,
            "end_ns": self._tables.end_ns,
            "start_realtime_ns": realtime_ns,
        }

    def _realtime_at(self, time_ns: int) -> int | None:
        """Wall-clock time of a time of the export, or None."""
        table = "TARGET_INFO_SESSION_START_TIME"
        if not self._file.has(table, "utcEpochNs"):
            return None
        picked = (
            f"{self._file.integer(table, 'utcEpochNs')}, "
            f"{self._file.integer(table, 'systemClockNs')}"
        )
        for epoch_ns, clock_ns in self._file.all_rows(f"SELECT {picked} FROM {table}", 1):
            if epoch_ns is not None:
                return int(epoch_ns) + time_ns - int(clock_ns or 0)
        return None

    def _version(self) -> str | None:
        for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
            if self._file.has(table, "name", "value"):
                rows = self._file.all_rows(
                    f"SELECT {self._file.text(table, 'value')} FROM {table} "
                    "WHERE name IN ('EXPORT_SCHEMA_VERSION', 'SCHEMA_VERSION')",
                    1,
                )
                if rows and rows[0][0]:
                    return str(rows[0][0])[:40]
        return None

    def batches(self) -> Iterator[Batch]:
        """Yield the rows; see ``Recording``."""
        n_off = 0
        for batch in off_cpu(self._file, self._tables, self.problems):
            n_off += batch.rows.num_rows
            yield batch
        for rows in self._in_order_of_time():
            self._add(rows)
            if self._tables.n_held > _HELD_ROWS:
                yield from self._tables.flush(None)
        yield from self._tables.flush(None)
        if not self._tables.n_rows_out and not n_off:
            raise RecordingError(
                f"{self._file.path} holds no row that can be imported; "
                "record again with --trace=cuda,nvtx,osrt"
            )

    def _in_order_of_time(self) -> Iterator[_Rows]:
        """Yield the chunks of all tables, always the one that begins first."""
        readers = [
            self._read(table)
            for table in (*_ACTIVITY_TABLES, _SYNC, _RUNTIME, _NVTX, _OS, *_OVERHEADS)
            if self._file.has(table, "start", "end")
        ]
        heads = [(next(reader, None), reader) for reader in readers]
        waiting = [(head, reader) for head, reader in heads if head is not None]
        while waiting:
            first = min(
                range(len(waiting)), key=lambda i: int(waiting[i][0].numbers["start"][0][0])
            )
            head, reader = waiting.pop(first)
            yield head
            following = next(reader, None)
            if following is not None:
                waiting.append((following, reader))

    def _read(self, table: str) -> Iterator[_Rows]:
        file = self._file
        numbers = ["start", "end", "globalPid", "globalTid", "correlationId", *_NUMBERS[table]]
        picked = [file.integer(table, name) for name in numbers]
        text = file.text(table, "text") if table == _NVTX else "NULL"
        condition = _NVTX_RANGES if table == _NVTX and file.has(_NVTX, "eventType") else "1"
        query = (
            f"SELECT {', '.join([*picked, text])} FROM {quoted(table)} "
            f"WHERE {condition} ORDER BY {quoted(table)}.start"
        )
        for rows in file.rows(query):
            *columns, texts = zip(*rows, strict=True)
            found = {
                name: integer_column(values) for name, values in zip(numbers, columns, strict=True)
            }
            keep = self._possible(found, table)
            if not keep.any():
                continue
            name = self._names_of(table, found, texts)
            if not keep.all():
                found = {
                    key: (values[keep], is_null[keep]) for key, (values, is_null) in found.items()
                }
                name = name.filter(pa.array(keep))
            yield _Rows(table, found, name)

    def _possible(self, rows: dict[str, Integers], table: str) -> npt.NDArray[np.bool_]:
        """Where the times of rows can be true; the others are counted."""
        (start, no_start), (end, no_end) = rows["start"], rows["end"]
        has_times = ~no_start & ~no_end
        in_range = (np.abs(start) < MAX_TIME_NS) & (np.abs(end) < MAX_TIME_NS)
        in_range &= (start > -MAX_TIME_NS) & (end > -MAX_TIME_NS)
        is_forward = end >= start
        self.problems.add(f"row of {table} without begin or end", int((~has_times).sum()))
        self.problems.add(
            f"row of {table} with an impossible time", int((has_times & ~in_range).sum())
        )
        self.problems.add(
            f"row of {table} that ends before it begins",
            int((has_times & in_range & ~is_forward).sum()),
        )
        keep: npt.NDArray[np.bool_] = has_times & in_range & is_forward
        return keep

    def _names_of(
        self, table: str, rows: dict[str, Integers], texts: Sequence[str | None]
    ) -> pa.Array:
        if table == _COPY:
            return copy_names(rows)
        if table in _UNNAMED:
            return pa.array([_UNNAMED[table]] * len(texts), pa.string())
        picked = [column for column in _NUMBERS[table] if column in _NAME_COLUMNS]
        codes = np.zeros(len(texts), np.int64)
        is_missing = np.ones(len(texts), bool)
        for column in picked:
            values, is_null = rows[column]
            codes = np.where(is_missing, values, codes)
            is_missing &= is_null
        unique, inverse = np.unique(codes, return_inverse=True)
        words = [self._strings.get(code, "unknown") for code in unique.tolist()]
        if table == _RUNTIME:
            words = [plain_name(word) for word in words]
        names = pa.array([*words, "unknown"], pa.string()).take(
            pa.array(np.where(is_missing, len(words), inverse))
        )
        if table != _NVTX:
            return names
        words = pa.array(texts, pa.string())
        return pc.replace_substring_regex(pc.coalesce(words, names), RANGE_COUNTERS, "")

    def _add(self, rows: _Rows) -> None:
        start, end = rows.numbers["start"][0], rows.numbers["end"][0]
        common = {
            "start_ns": start,
            "duration_ns": end - start,
            "name": self._tables.names.codes(rows.name),
        }
        if rows.table == _SYNC:
            self._tables.syncs.add({"start_ns": start, **_submitted(rows.numbers)})
            return
        self._tables.see(start, end - start)
        if rows.table in _ACTIVITY_TABLES:
            self._add_activities(rows, common)
        elif rows.table == _RUNTIME:
            self._add_calls(rows, common)
        else:
            self._add_ranges(rows, common)

    def _add_activities(self, rows: _Rows, common: dict[str, npt.NDArray[Any]]) -> None:
        n_rows = len(common["start_ns"])
        none = np.zeros(n_rows, np.int64), np.ones(n_rows, bool)
        numbers = rows.numbers
        size, no_size = numbers.get("bytes", none)
        graph, no_graph = numbers.get("graphId", none)
        columns = {
            **common,
            **_submitted(numbers),
            "kind": np.full(n_rows, ACTIVITY_KINDS.index(_KIND_OF_TABLE[rows.table])),
            "bytes": size,
            "no_bytes": no_size | (size < 0),
            "graph": graph,
            "no_graph": no_graph | (graph <= 0),
            "is_collective": np.zeros(n_rows, bool),
        }
        for shape in ("grid", "block"):
            parts = [numbers.get(f"{shape}{axis}", none) for axis in "XYZ"]
            columns[shape] = np.column_stack([values for values, _ in parts])
            bad = [is_null | (values < 0) | (values >= 1 << 31) for values, is_null in parts]
            columns[f"no_{shape}"] = np.logical_or.reduce(bad)
        self._tables.activities.add(columns)

    def _add_calls(self, rows: _Rows, common: dict[str, npt.NDArray[Any]]) -> None:
        task = rows.numbers["globalTid"][0]
        correlation, no_correlation = rows.numbers["correlationId"]
        code, no_code = rows.numbers["returnValue"]
        self._tables.calls.add(
            {
                **common,
                "pid": task >> 24 & 0xFFFFFF,
                "tid": task & 0xFFFFFF,
                "correlation": correlation,
                "no_correlation": no_correlation | (correlation <= 0),
                "return_code": code,
                "no_return_code": no_code | (code < 0) | (code >= 1 << 31),
            }
        )

    def _add_ranges(self, rows: _Rows, common: dict[str, npt.NDArray[Any]]) -> None:
        task, no_task = rows.numbers["globalTid"]
        names = self._tables.names.texts
        if rows.table == _NVTX:
            unique, inverse = np.unique(common["name"], return_inverse=True)
            kinds = [range_category(names[code]) for code in unique.tolist()]
            category = np.array([RANGE_CATEGORIES.index(kind) for kind in kinds])[inverse]
        else:
            kind = "os" if rows.table == _OS else "overhead"
            category = np.full(len(task), RANGE_CATEGORIES.index(kind))
        self._tables.ranges.add(
            {
                **common,
                "pid": task >> 24 & 0xFFFFFF,
                "no_pid": no_task,
                "tid": task & 0xFFFFFF,
                "no_tid": no_task,
                "category": category,
            }
        )


def _submitted(numbers: dict[str, Integers]) -> dict[str, npt.NDArray[Any]]:
    """Process, device, stream and correlation id of activities or syncs."""
    (device, no_device), (stream, no_stream) = numbers["deviceId"], numbers["streamId"]
    pid, no_pid = numbers["globalPid"]
    correlation, no_correlation = numbers["correlationId"]
    return {
        "pid": pid >> 24 & 0xFFFFFF,
        "no_pid": no_pid,
        "device": device,
        "no_device": no_device | (device < 0) | (device >= MAX_DEVICES),
        "stream": stream,
        "no_stream": no_stream | (stream < 0) | (stream >= MAX_STREAM),
        "correlation": correlation,
        "no_correlation": no_correlation | (correlation <= 0),
    }


_KIND_OF_TABLE = {_KERNEL: "kernel", _COPY: "copy", _SET: "set", _GRAPH: "graph"}
#: Columns of names, the first that has one counts.
_NAME_COLUMNS = ("demangledName", "shortName", "nameId", "textId")
_NUMBERS: dict[str, tuple[str, ...]] = {
    _KERNEL: (
        *("deviceId", "streamId", "graphId", "demangledName", "shortName"),
        *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
    ),
    _COPY: ("deviceId", "streamId", "bytes", "copyKind", "srcKind", "dstKind"),
    _SET: ("deviceId", "streamId", "bytes"),
    _GRAPH: ("deviceId", "streamId", "graphId"),
    _SYNC: ("deviceId", "streamId"),
    _RUNTIME: ("nameId", "returnValue"),
    _NVTX: ("textId",),
    _OS: ("nameId",),
    **dict.fromkeys(_OVERHEADS, ("nameId",)),
}
