"""Ingero's SQLite recordings: uprobes on CUDA, scheduler and system calls of one host.

Times are nanoseconds since the Unix epoch and stay so. CUDA and driver rows are stamped at the
entry of the call; scheduler, block and socket rows at the return, so their begin is the stamp
less the duration. A recording of more than 10 s is thinned by its tool unless it ran with
``record-all``: later rows are mostly outliers, and counts or percentiles of them say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.schema import ANNOTATION, EVENT, OFFCPU
from probes.probe import Batch, make_batch
from probes.recorded.calls import CallAssembler, nullable, texts
from probes.recorded.ingero_tables import host_samples, losses, read_stacks
from probes.recorded.recording import Problems
from probes.recorded.sqlite_file import Integers, SqliteFile

_RUNTIME, _HOST, _DRIVER = 1, 3, 4
_SCHED_SWITCH, _EXEC, _EXIT, _FORK = 1, 5, 6, 7
_PROCESS_OPS = {_EXEC: "exec", _EXIT: "exit", _FORK: "fork"}
_INCIDENT_OPS = (4, 10, 11, 12)

#: Names as exported, where the tool shortens them.
_FULL_NAMES = {
    "cudaStreamSync": "cudaStreamSynchronize",
    "cudaDeviceSync": "cudaDeviceSynchronize",
}
_COPY_KINDS = ("h2h", "h2d", "d2h", "d2d", "default")
_TAKES_SIZE = ("Malloc", "MemAlloc", "Memcpy")

#: The tool keeps every row for this long, then mostly outliers.
_COMPLETE_NS = 10_000_000_000
_MAX_TIME_NS = 1 << 62
_MAX_DURATION_NS = 1 << 58

_COLUMNS = (
    "timestamp",
    "pid",
    "tid",
    "source",
    "op",
    "duration",
    "gpu_id",
    "arg0",
    "arg1",
    "ret_code",
    "stack_hash",
    "rank",
)
_Bools = npt.NDArray[np.bool_]


def is_ingero(file: SqliteFile) -> bool:
    """Whether the database has the tables of an Ingero recording."""
    return file.has("events", "timestamp", "pid", "source", "op", "duration") and file.has(
        "ops", "source_id", "op_id", "name"
    )


class IngeroRecording:
    """A recording made by Ingero, either schema."""

    format = "ingero"

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self.problems = Problems()
        self._ops = {
            (source, op): _FULL_NAMES.get(name, name)
            for source, op, name in file.all_rows(
                f"SELECT {file.integer('ops', 'source_id')}, {file.integer('ops', 'op_id')}, "
                f"{file.text('ops', 'name')} FROM ops",
                10_000,
            )
            if None not in (source, op, name)
        }
        self._session = self._read_session()
        first, last, self._n_gpus = self._read_extent()
        self._start_ns, self._end_ns = first, last
        self._thinned_from_ns = self._find_thinning()
        self._stacks = read_stacks(file)
        self._names = self._read_names()

    def _read_session(self) -> dict[str, Any]:
        names = ("gpu_model", "gpu_driver", "cpu_model", "kernel", "os_release", "cuda_ver")
        more = ("ingero_ver", "flags", "pid_filter", "node")
        numbers = ("started_at", "stopped_at", "cpu_cores", "mem_total")
        table = "sessions"
        if table not in self._file.tables:
            return {}
        picked = [self._file.text(table, name) for name in names + more]
        picked += [self._file.integer(table, name) for name in numbers]
        rows = self._file.all_rows(f"SELECT {', '.join(picked)} FROM {table}", 2)
        if not rows:
            return {}
        if len(rows) > 1:
            self.problems.add("further recordings in one file described by the first's host")
        found = dict(zip(names + more + numbers, rows[0], strict=True))
        return {name: value for name, value in found.items() if value not in (None, "")}

    def _read_extent(self) -> tuple[int | None, int | None, int]:
        time = self._file.integer("events", "timestamp")
        gpu = self._file.integer("events", "gpu_id")
        row = self._file.all_rows(f"SELECT min({time}), max({time}), max({gpu}) FROM events", 1)[0]
        return row[0], row[1], 1 + max(0, min(row[2] or 0, 63))

    def _find_thinning(self) -> int | None:
        """Return the time from which rows are missing, or None."""
        began_ns = self._session.get("started_at", self._start_ns)
        if began_ns is None or self._end_ns is None:
            return None
        complete_until_ns: int = began_ns + _COMPLETE_NS
        n_discarded = 0
        if self._file.has("event_aggregates", "count", "stored"):
            n_discarded = (
                self._file.all_rows("SELECT sum(max(count - stored, 0)) FROM event_aggregates", 1)[
                    0
                ][0]
                or 0
            )
        is_whole = "record-all" in str(self._session.get("flags", ""))
        if n_discarded == 0 and (is_whole or self._end_ns <= complete_until_ns):
            return None
        return complete_until_ns

    def _read_names(self) -> dict[int, str]:
        table = "process_names"
        if not self._file.has(table, "pid", "name"):
            return {}
        picked = f"{self._file.integer(table, 'pid')}, {self._file.text(table, 'name')}"
        rows = self._file.all_rows(f"SELECT {picked} FROM {table}", 10_000)
        return {pid: name for pid, name in rows if pid is not None and name}

    def manifest_facts(self) -> dict[str, Any]:
        """Return what a session's manifest says of it; see ``Recording``."""
        session = self._session
        host = {
            "name": session.get("node"),
            "kernel": session.get("kernel"),
            "os": session.get("os_release"),
            "cpu": session.get("cpu_model"),
            "n_cpus": session.get("cpu_cores"),
            "driver": session.get("gpu_driver"),
            "cuda": session.get("cuda_ver"),
        }
        details: dict[str, Any] = {
            "is_thinned": self._thinned_from_ns is not None,
            "recorder_version": session.get("ingero_ver"),
            "time_base": "nanoseconds since the Unix epoch",
        }
        note = ""
        if self._thinned_from_ns is not None:
            details["thinned_from_ns"] = self._thinned_from_ns
            note = "after its first 10 s the recorder kept mostly outliers: later rows are biased"
        name = str(session.get("gpu_model", "unknown GPU"))
        model, _, memory = name.rpartition(", ")
        gpu: dict[str, Any] = {"name": model or name}
        if model and memory.endswith(" MiB") and memory[:-4].isdigit():
            gpu["memory_bytes"] = int(memory[:-4]) * 1024 * 1024
        return {
            "origin": self.format,
            "host": {key: value for key, value in host.items() if value is not None},
            "gpus": [{"index": index, **gpu} for index in range(self._n_gpus)],
            "targets": self._targets(),
            "sources": [
                {
                    "name": "ingero",
                    "state": "degraded" if note else "ok",
                    "tables": ["cuda_call", "offcpu", "event", "annotation", "host_sample", "loss"],
                    "note": note,
                    "details": details,
                }
            ],
            "start_ns": self._start_ns,
            "end_ns": self._end_ns,
            "start_realtime_ns": self._start_ns,
        }

    def _targets(self) -> list[dict[str, Any]]:
        pid = self._file.integer("events", "pid")
        found = self._file.all_rows(
            f"SELECT {pid}, max(source IN ({_RUNTIME}, {_DRIVER})) FROM events GROUP BY 1", 10_000
        )
        filtered = {
            int(part)
            for part in str(self._session.get("pid_filter", "")).split(",")
            if part.strip().isdigit()
        }
        return [
            {"pid": process, "name": self._names.get(process)}
            for process, has_calls in found
            if process is not None and 0 < process < 1 << 31 and (has_calls or process in filtered)
        ]

    def batches(self) -> Iterator[Batch]:
        """Yield the rows; see ``Recording``."""
        threads, starts = self._process_facts()
        assembler = CallAssembler(starts, self._thinned_from_ns)
        for rows in self._file.integers("events", _COLUMNS, "timestamp, duration DESC"):
            yield from self._convert(self._valid(rows), threads, assembler)
        yield from host_samples(self._file, self._session)
        yield from losses(self._file, self._ops, self._start_ns, self._end_ns)

    def _process_facts(self) -> tuple[set[int], dict[int, int]]:
        """Return the thread ids that are no processes, and when which process was seen to start."""
        file = self._file
        tid, pid = file.integer("events", "tid"), file.integer("events", "pid")
        threads = {
            row[0]
            for row in file.all_rows(
                f"SELECT DISTINCT {tid} FROM events WHERE {tid} <> {pid}", 100_000
            )
        }
        child, time = file.integer("events", "arg1"), file.integer("events", "timestamp")
        starts: dict[int, int] = {}
        for operation, process in ((_FORK, child), (_EXEC, pid)):
            query = (
                f"SELECT {process}, min({time}) FROM events "
                f"WHERE source = {_HOST} AND op = {operation} GROUP BY 1"
            )
            for key, time_ns in file.all_rows(query, 100_000):
                if key is not None and time_ns is not None and key not in threads:
                    starts[key] = min(time_ns, starts.get(key, time_ns))
        return threads, starts

    def _valid(self, rows: dict[str, Integers]) -> dict[str, Integers]:
        """Drop, and count, rows whose numbers cannot be true."""
        time, duration, pid, tid = (
            rows[name][0] for name in ("timestamp", "duration", "pid", "tid")
        )
        is_typed = ~np.logical_or.reduce(
            [rows[name][1] for name in ("timestamp", "duration", "pid", "source", "op")]
        )
        is_timed = (time > 0) & (time < _MAX_TIME_NS)
        is_long = (duration >= 0) & (duration < _MAX_DURATION_NS)
        is_task = (pid >= 0) & (pid < 1 << 31) & (tid >= 0) & (tid < 1 << 31)
        self.problems.add("event without time, process or kind", int((~is_typed).sum()))
        self.problems.add("event with an impossible time", int((is_typed & ~is_timed).sum()))
        self.problems.add("event with an impossible duration", int((is_typed & ~is_long).sum()))
        self.problems.add("event with an impossible pid or tid", int((is_typed & ~is_task).sum()))
        keep = is_typed & is_timed & is_long & is_task
        if keep.all():
            return rows
        return {name: (values[keep], is_null[keep]) for name, (values, is_null) in rows.items()}

    def _convert(
        self, rows: dict[str, Integers], threads: set[int], assembler: CallAssembler
    ) -> Iterator[Batch]:
        source, op = rows["source"][0], rows["op"][0]
        keys, codes = np.unique((source << 16) | (op & 0xFFFF), return_inverse=True)
        names = [self._ops.get((int(key) >> 16, int(key) & 0xFFFF)) for key in keys]
        is_named = np.array([name is not None for name in names], bool)[codes]
        self.problems.add("event of a kind that the file does not name", int((~is_named).sum()))
        words = [name or "" for name in names]
        is_call = ((source == _RUNTIME) | (source == _DRIVER)) & is_named
        is_switch = (source == _HOST) & (op == _SCHED_SWITCH)
        is_process = (source == _HOST) & np.isin(op, (*_PROCESS_OPS, *_INCIDENT_OPS))
        is_other = is_named & ~is_call & ~is_switch & ~is_process
        if is_call.any():
            yield self._calls(_pick(rows, is_call), codes[is_call], words, assembler)
            yield from self._call_stacks(_pick(rows, is_call))
        if is_switch.any():
            yield self._offcpu(_pick(rows, is_switch))
        if is_process.any():
            yield self._events(_pick(rows, is_process), codes[is_process], words, threads)
        if is_other.any():
            yield self._annotations(_pick(rows, is_other), texts(codes[is_other], words), "os")

    def _calls(
        self,
        rows: dict[str, Integers],
        codes: npt.NDArray[np.int64],
        names: list[str],
        assembler: CallAssembler,
    ) -> Batch:
        is_launch = np.array(["LaunchKernel" in name for name in names], bool)[codes]
        has_size = np.array([any(word in name for word in _TAKES_SIZE) for name in names])[codes]
        is_copy = np.array(["Memcpy" in name for name in names], bool)[codes]
        first, second = rows["arg0"][0], rows["arg1"][0]
        n_kinds = len(_COPY_KINDS)
        direction = np.where(is_copy & (second >= 0) & (second < n_kinds), second, n_kinds)
        device, has_no_device = rows["gpu_id"]
        code, has_no_code = rows["ret_code"]
        rank, has_no_rank = rows["rank"]
        return assembler.add(
            rows["timestamp"][0],
            rows["duration"][0],
            rows["pid"][0],
            rows["tid"][0],
            (codes, names),
            {
                "device": nullable(device, has_no_device | (device < 0) | (device >= self._n_gpus)),
                "size_bytes": nullable(first, ~has_size | (first < 0)),
                "copy_kind": texts(direction, (*_COPY_KINDS, None)),
                "return_code": nullable(code, has_no_code | ~_fits(code)),
                "rank": nullable(rank, has_no_rank | ~_fits(rank)),
            },
            (first.astype(np.uint64), ~is_launch | (first == 0)),
        )

    def _call_stacks(self, rows: dict[str, Integers]) -> Iterator[Batch]:
        """Yield the stack of each call that has one, as an annotation over the call."""
        keys, codes = np.unique(rows["stack_hash"][0], return_inverse=True)
        stacks = [self._stacks.get(int(key)) for key in keys]
        has_stack = np.array([stack is not None for stack in stacks], bool)[codes]
        if has_stack.any():
            names = texts(codes[has_stack], stacks)
            yield self._annotations(_pick(rows, has_stack), names, "stack", is_at_entry=True)

    def _offcpu(self, rows: dict[str, Integers]) -> Batch:
        return make_batch(
            OFFCPU,
            {
                "start_ns": rows["timestamp"][0] - rows["duration"][0],
                "duration_ns": rows["duration"][0],
                "pid": rows["pid"][0],
                "tid": rows["tid"][0],
            },
        )

    def _events(
        self,
        rows: dict[str, Integers],
        codes: npt.NDArray[np.int64],
        names: list[str],
        threads: set[int],
    ) -> Batch:
        op, pid, tid = rows["op"][0], rows["pid"][0], rows["tid"][0]
        child = rows["arg1"][0]
        known = np.fromiter(threads, np.int64, len(threads))
        is_fork = op == _FORK
        is_thread = (is_fork & np.isin(child, known)) | ((op == _EXIT) & (pid != tid))
        kinds = [_PROCESS_OPS.get(value, "other") for value in op.tolist()]
        words = [names[code] for code in codes.tolist()]
        process = np.where(is_fork, child, pid).tolist()
        for row, kind in enumerate(kinds):
            if kind != "other":
                words[row] = self._names.get(process[row], words[row])
        for row in np.flatnonzero(is_thread).tolist():
            kinds[row] = "other"
            words[row] = "thread_start" if is_fork[row] else "thread_exit"
        return make_batch(
            EVENT,
            {
                "time_ns": rows["timestamp"][0],
                "kind": kinds,
                "pid": np.where(is_fork & ~is_thread & (child > 0) & (child < 1 << 31), child, pid),
                "tid": np.where(is_fork & (child > 0) & (child < 1 << 31), child, tid),
                "parent_pid": nullable(pid, ~is_fork | is_thread),
                "name": words,
            },
        )

    def _annotations(
        self, rows: dict[str, Integers], names: Any, category: str, is_at_entry: bool = False
    ) -> Batch:
        time, duration = rows["timestamp"][0], rows["duration"][0]
        rank, has_no_rank = rows["rank"]
        return make_batch(
            ANNOTATION,
            {
                "start_ns": time if is_at_entry else time - duration,
                "duration_ns": duration,
                "pid": rows["pid"][0],
                "tid": rows["tid"][0],
                "category": [category] * len(time),
                "name": names,
                "rank": nullable(rank, has_no_rank | ~_fits(rank)),
            },
        )


def _pick(rows: dict[str, Integers], keep: _Bools) -> dict[str, Integers]:
    return {name: (values[keep], is_null[keep]) for name, (values, is_null) in rows.items()}


def _fits(values: npt.NDArray[np.int64]) -> _Bools:
    return (values >= -(1 << 31)) & (values < 1 << 31)
