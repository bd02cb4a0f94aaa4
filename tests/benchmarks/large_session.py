"""Writes a large session that looks like a recorded one, as fast as NumPy makes it.

An LLM engine with a launching thread (decode steps: copies, a graph, launches, a sync that sleeps)
and a helper thread that copies, and a smaller second process. Part of the time another task takes
the CPU, and every minute kernels are used for the first time. Beside it lie samples of the device,
processes, host, threads and engine. The length follows from the number of calls: ten million are
an hour.

``python -m tests.benchmarks.large_session DIR N_CALLS [--outermost]`` writes one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis import schema
from analysis.manifest import FILE_NAME, Gpu, Manifest, ProbedFunction, Source, Target
from tests.scenarios.seen_devices import GPU_LEVEL
from tests.scenarios.seen_host import HOST_LEVEL, PROCESS_LEVEL
from tracer.compaction import MERGED_ROWS
from tracer.encoding import write_rows

Ints = npt.NDArray[np.int64]

MS, S = 1_000_000, 1_000_000_000
START = 1_000 * S
ENGINE, HELPER, NEIGHBOUR = 4000, 4001, 4200
#: Played at a time, ns.
BLOCK_NS = 60 * S
#: Calls of an hour, all threads and layers together.
CALLS_PER_S = 10_000_000 / 3600
#: Ten minutes of every hour in which another task takes the CPU before each third step.
_DISTURBED_S = (1200, 1800)
#: Metrics that an engine exposes beside the histograms: name, kind, growth per second or level.
_METRICS = (
    ("requests_running", "gauge", 8.0),
    ("requests_waiting", "gauge", 0.0),
    ("kv_usage", "gauge", 0.4),
    ("generation_tokens", "counter", 400.0),
    ("prompt_tokens", "counter", 600.0),
    ("requests_finished", "counter", 2.0),
    ("preemptions", "counter", 0.0),
)
_HISTOGRAMS = (
    ("ttft_seconds", 0.09, 2.0),
    ("inter_token_seconds", 0.02, 400.0),
    ("queue_seconds", 0.004, 2.0),
    ("iteration_tokens", 20.0, 50.0),
)
_BOUNDS = (0.002, 0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.2, 0.4, 1.0, 5.0, 20.0, 100.0, float("inf"))


@dataclass(frozen=True)
class _Call:
    """One call of a step: its function, the driver's inside it, its kind, and times in ns."""

    function: str
    inner: str
    kind: str
    length: int
    pause: int = 2_000
    copy_kind: str | None = None
    size: int | None = None


_LAUNCH = _Call("cudaLaunchKernel", "cuLaunchKernel", "launch", 6_000)
_SYNC = _Call("cudaStreamSynchronize", "cuStreamSynchronize", "sync", 16 * MS)
#: A thread without work until its next step sleeps for it from here on, ns.
_SLEEP_NS = 8 * MS


@dataclass(frozen=True)
class _Thread:
    """A thread that repeats a step of ``calls`` about every ``period`` ns."""

    pid: int
    tid: int
    device: int
    stream: int
    period: int
    calls: tuple[_Call, ...]


def _threads(*, has_driver: bool) -> tuple[_Thread, ...]:
    """The threads; as many calls per second with the driver's calls inside as without."""
    n = 1 if has_driver else 2
    copy = ("cudaMemcpyAsync", "cuMemcpyHtoDAsync_v2", "copy", 4_000, 700_000)
    back = ("cudaMemcpyAsync", "cuMemcpyDtoHAsync_v2", "copy", 4_000, 2_000)
    engine = (
        _Call(*copy, "h2d", 4_096),
        _Call("cudaGraphLaunch", "cuGraphLaunch", "graph_launch", 9_000),
        *[_LAUNCH] * (21 * n + 4 * (n - 1)),
        _Call(*back, "d2h", 64),
        _SYNC,
    )
    helper = (
        _Call(*copy, "h2d", 262_144),
        _Call("cudaEventRecord", "cuEventRecord", "event", 2_000),
        _Call("cudaEventSynchronize", "cuEventSynchronize", "sync", 90_000),
    )
    neighbour = (_LAUNCH, _LAUNCH, _SYNC)
    return (
        _Thread(ENGINE, ENGINE, 0, 7, 20 * MS, engine),
        _Thread(ENGINE, HELPER, 0, 8, 30 * MS // n, helper),
        _Thread(NEIGHBOUR, NEIGHBOUR, 1, 7, 77 * MS // n, neighbour),
    )


@dataclass
class _Writer:
    """Segments of each table, as large as those that the recorder merges."""

    folder: Path
    n_rows: dict[str, int] = field(default_factory=dict)
    _left: dict[str, list[pa.Table]] = field(default_factory=dict)
    _sequence: dict[str, int] = field(default_factory=dict)

    def add(self, table: schema.Table, columns: dict[str, Any]) -> None:
        """Add rows, in order of time; columns that are not given are null."""
        arrow = table.arrow_schema()
        n = len(columns[table.order])
        arrays = [
            _array(columns[item.name], item.type)
            if item.name in columns
            else pa.nulls(n, item.type)
            for item in arrow
        ]
        self.n_rows[table.name] = self.n_rows.get(table.name, 0) + n
        parts = self._left.setdefault(table.name, [])
        parts.append(pa.table(arrays, schema=arrow))
        while sum(part.num_rows for part in parts) >= MERGED_ROWS:
            rows = pa.concat_tables(parts)
            self._write(table, rows.slice(0, MERGED_ROWS))
            parts[:] = [rows.slice(MERGED_ROWS)]

    def finish(self) -> None:
        """Write what is left."""
        for name, parts in self._left.items():
            self._write(schema.table(name), pa.concat_tables(parts))

    def _write(self, table: schema.Table, rows: pa.Table) -> None:
        at = self._sequence[table.name] = self._sequence.get(table.name, -1) + 1
        folder = self.folder / table.name
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{at:010d}-{at:010d}.parquet").open("wb") as file:
            write_rows(file, table, rows.combine_chunks(), {})


def _array(values: Any, type: pa.DataType) -> pa.Array:
    if isinstance(values, tuple):
        codes, words = values
        return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), words).cast(type)
    return pa.array(values, type, from_pandas=isinstance(values, np.ndarray) or None)


class _Player:
    """Plays one thread block by block."""

    def __init__(self, thread: _Thread, rng: np.random.Generator, *, has_driver: bool) -> None:
        self._thread, self._rng, self._has_driver = thread, rng, has_driver
        self._is_disturbed = thread.tid == ENGINE
        self._n_steps = 0

    def play(self, begin: int, end: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return columns of outermost calls and of intervals off the CPU within a block."""
        calls, period = self._thread.calls, self._thread.period
        n = (end - begin) // period
        shape = (n, len(calls))
        length = np.array([call.length for call in calls]) * self._rng.uniform(0.8, 1.2, shape)
        pause = np.array([call.pause for call in calls]) * self._rng.uniform(0.8, 1.2, shape)
        at = begin + np.arange(n) * period
        is_pushed = np.zeros(n, dtype=bool)
        if self._is_disturbed:
            second = (at - START) // S % 3600
            is_pushed = (second >= _DISTURBED_S[0]) & (second < _DISTURBED_S[1])
            is_pushed &= np.arange(n) % 3 == 0
        push = np.where(is_pushed, self._rng.uniform(2 * MS, 4 * MS, n), 0).astype(np.int64)
        pause[:, 0] += push
        launches = np.flatnonzero([call.kind == "launch" for call in calls])
        is_first = np.zeros(shape, dtype=bool)
        if len(launches):
            is_first[:1, launches[:6]] = True
            length[:1, launches[:6]] = 3 * MS
        moved = np.cumsum(length + pause, axis=1) - length
        start = at[:, None] + moved.astype(np.int64)
        whole: Ints = length.astype(np.int64)
        absent = self._absences(start, whole, at, push, is_pushed)
        step = self._n_steps + np.arange(n)
        self._n_steps += n
        first_kernel = np.where(is_first, 1000 + 10 * (begin // BLOCK_NS % 4096), 100)
        columns = {
            "start_ns": start.reshape(-1),
            "duration_ns": whole.reshape(-1),
            "which": np.tile(np.arange(len(calls)), n),
            "step": np.repeat(step, len(calls)),
            "kernel": (first_kernel + np.arange(len(calls))[None, :]).reshape(-1),
            "is_first": is_first.reshape(-1),
        }
        return columns, absent

    def _absences(
        self, start: Ints, length: Ints, at: Ints, push: Ints, is_pushed: npt.NDArray[np.bool_]
    ) -> dict[str, Any]:
        """A sleep in every sync, and what pushed the thread off the CPU."""
        calls = self._thread.calls
        syncs = [index for index, call in enumerate(calls) if call.kind == "sync"]
        slept = start[:, syncs].reshape(-1) + 4_000
        until = (start + length)[:, syncs].reshape(-1) - 6_000
        done = (start + length)[:, -1] + 50_000
        rests = done[:-1] + _SLEEP_NS < at[1:]
        begin = np.concatenate((slept, done[:-1][rests], at[is_pushed] + 10_000))
        pushed_until = at[is_pushed] + 10_000 + push[is_pushed]
        end = np.concatenate((until, at[1:][rests] - 10_000, pushed_until))
        is_push = np.arange(len(begin)) >= len(begin) - len(pushed_until)
        return {
            "start_ns": begin,
            "duration_ns": end - begin,
            "runnable_ns": np.where(is_push, end - begin, 5_000),
            "is_push": is_push,
        }

    def table(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Return the columns of ``cuda_call`` without ids, the driver's calls among them."""
        thread, calls = self._thread, self._thread.calls
        which = columns["which"]
        kinds = [call.kind for call in calls]
        has_kernel = np.isin(
            which, np.flatnonzero([k in ("launch", "graph_launch") for k in kinds])
        )
        is_launch = np.isin(which, np.flatnonzero([k == "launch" for k in kinds]))
        sizes = np.array([call.size or -1 for call in calls])[which]
        n = len(which)
        outer = {
            "start_ns": columns["start_ns"],
            "duration_ns": columns["duration_ns"],
            "which": which,
            "depth": np.zeros(n, dtype=np.int16),
            "kernel": np.where(has_kernel, columns["kernel"], -1),
            "size_bytes": sizes,
            "first": np.where(is_launch, columns["is_first"].astype(np.int8), -1),
        }
        if self._has_driver:
            inner = {
                **outer,
                "start_ns": outer["start_ns"] + 400,
                "duration_ns": outer["duration_ns"] - 900,
                "depth": np.ones(n, dtype=np.int16),
            }
            # Each call is followed by the one inside it.
            outer = {key: np.stack((outer[key], inner[key]), axis=1).reshape(-1) for key in outer}
        n = len(outer["which"])
        outer["pid"] = np.full(n, thread.pid)
        outer["tid"] = np.full(n, thread.tid)
        outer["device"] = np.full(n, thread.device)
        outer["stream"] = np.full(n, thread.stream)
        return outer


def _cuda_calls(parts: list[tuple[_Thread, dict[str, Any]]], first_id: int) -> dict[str, Any]:
    """Columns of ``cuda_call`` of a block, all threads together, in order of time."""
    functions: list[str] = []
    kinds: list[str] = []
    copies: list[str] = []
    coded = []
    for thread, part in parts:
        calls = thread.calls
        names = [(call.function, call.inner) for call in calls]
        code = np.array([[_code(functions, name) for name in pair] for pair in names])
        kind = np.array([_code(kinds, call.kind) for call in calls])
        copy = np.array([_code(copies, c.copy_kind) if c.copy_kind else -1 for c in calls])
        which = part["which"]
        coded.append(
            {
                **part,
                "function": code[which, part["depth"]],
                "kind": kind[which],
                "copy_kind": copy[which],
            }
        )
    columns = {key: np.concatenate([part[key] for part in coded]) for key in coded[0]}
    order = np.argsort(columns["start_ns"], kind="stable")
    columns = {key: values[order] for key, values in columns.items()}
    n = len(order)
    call_id = first_id + np.arange(n)
    depth = columns["depth"]
    is_told = columns["first"] >= 0
    return {
        "start_ns": columns["start_ns"],
        "duration_ns": columns["duration_ns"],
        "pid": columns["pid"],
        "tid": columns["tid"],
        "function": (columns["function"], functions),
        "layer": (depth.astype(np.int32), ["runtime", "driver"]),
        "kind": (columns["kind"], kinds),
        "call_id": call_id,
        "parent_call_id": _masked(call_id - 1, depth > 0),
        "depth": depth,
        "device": columns["device"],
        "stream": columns["stream"],
        "kernel": _masked(columns["kernel"], columns["kernel"] >= 0),
        "grid_x": _masked(np.full(n, 128), is_told),
        "grid_y": _masked(np.ones(n, dtype=np.int64), is_told),
        "grid_z": _masked(np.ones(n, dtype=np.int64), is_told),
        "block_x": _masked(np.full(n, 256), is_told),
        "block_y": _masked(np.ones(n, dtype=np.int64), is_told),
        "block_z": _masked(np.ones(n, dtype=np.int64), is_told),
        "shared_memory_bytes": _masked(np.zeros(n, dtype=np.int64), is_told),
        "size_bytes": _masked(columns["size_bytes"], columns["size_bytes"] >= 0),
        "copy_kind": _text_or_null(columns["copy_kind"], copies),
        "return_code": np.zeros(n, dtype=np.int64),
        "is_first_use": _masked(columns["first"] > 0, is_told),
        "is_first_seen": _masked(columns["first"] > 0, is_told),
        "is_capture": np.zeros(n, dtype=bool),
    }


def _code(words: list[str], word: str) -> int:
    if word not in words:
        words.append(word)
    return words.index(word)


def _masked(values: npt.NDArray[Any], is_valid: npt.NDArray[np.bool_]) -> pa.Array:
    return pa.array(values, mask=~is_valid)


def _text_or_null(codes: npt.NDArray[Any], words: list[str]) -> pa.Array:
    index = pa.array(codes, pa.int32(), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(index, pa.array(words, pa.string())).cast(pa.string())


def _offcpu(parts: list[tuple[_Thread, dict[str, Any]]]) -> dict[str, Any]:
    columns = {key: np.concatenate([part[key] for _thread, part in parts]) for key in parts[0][1]}
    for name in ("pid", "tid"):
        columns[name] = np.concatenate(
            [np.full(len(part["start_ns"]), getattr(thread, name)) for thread, part in parts]
        )
    order = np.argsort(columns["start_ns"], kind="stable")
    columns = {key: values[order] for key, values in columns.items()}
    is_push = columns.pop("is_push")
    taker = np.where(is_push, 9100, 0)
    names = (is_push.astype(np.int32), ["swapper/0", "stress-ng"])
    return {
        **columns,
        "state": (is_push.astype(np.int32), ["sleeping", "running"]),
        "cpu_from": np.ones(len(order), dtype=np.int64),
        "cpu_to": np.ones(len(order), dtype=np.int64),
        **{f"{who}_{what}": taker for who in ("taker", "occupant") for what in ("pid", "tid")},
        "taker_name": names,
        "occupant_name": names,
    }


def _samples(begin: int, end: int, rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
    """Tables of samples of a block and their columns."""
    fast = np.arange(begin, end, S // 10)
    slow = np.arange(begin, end, S)
    n = len(fast)
    util = rng.uniform(76, 84, n)
    gpu = {name: np.full(n, value) for name, value in GPU_LEVEL.items()}
    yield (
        schema.GPU_SAMPLE,
        {
            **gpu,
            "time_ns": fast,
            "device": np.zeros(n, dtype=np.int64),
            "source": ["nvml"] * n,
            "sample_ns": fast,
            "period_ns": np.full(n, S // 2),
            "is_repeated": np.zeros(n, dtype=bool),
            "util_pct": np.round(util),
            "power_mw": (300_000 + 1000 * util).astype(np.int64),
        },
    )
    seconds = (slow - START) / S
    yield (
        schema.GPU_PROCESS,
        _repeated(slow, (ENGINE, NEIGHBOUR), "pid")
        | {
            "device": np.tile([0, 1], len(slow)),
            "type": ["C"] * (2 * len(slow)),
            "name": ["VLLM::EngineCor", "embedder"] * len(slow),
            "sm_util_pct": np.tile([60.0, 3.0], len(slow)),
            "is_target": np.ones(2 * len(slow), dtype=bool),
        },
    )
    yield (
        schema.PROCESS_SAMPLE,
        _levels(schema.PROCESS_SAMPLE, PROCESS_LEVEL, np.repeat(seconds, 2))
        | _repeated(slow, (ENGINE, NEIGHBOUR), "pid")
        | {"name": ["VLLM::EngineCor", "embedder"] * len(slow)},
    )
    yield (
        schema.HOST_SAMPLE,
        _levels(schema.HOST_SAMPLE, HOST_LEVEL, seconds)
        | {
            "time_ns": slow,
            "scope": ["host"] * len(slow),
        },
    )
    yield schema.THREAD_SECOND, _thread_seconds(slow)
    yield schema.ENGINE_SAMPLE, _engine(slow, seconds, rng)


def _repeated(times: Ints, values: tuple[int, ...], name: str) -> dict[str, Any]:
    return {"time_ns": np.repeat(times, len(values)), name: np.tile(values, len(times))}


def _levels(
    table: schema.Table, levels: dict[str, Any], seconds: npt.NDArray[np.float64]
) -> dict[str, Any]:
    """Constant columns, and what accumulates: CPU time of a process or the host."""
    result: dict[str, Any] = {}
    for name, level in levels.items():
        if isinstance(level, str):
            result[name] = [level] * len(seconds)
            continue
        values = np.full(len(seconds), float(level))
        if name.endswith("_ns"):
            values = level * S * (seconds + 1000)
        result[name] = values.astype(float if table.column(name).type == "f64" else np.int64)
    return result


def _thread_seconds(times: Ints) -> dict[str, Any]:
    tids = (ENGINE, HELPER, NEIGHBOUR, *range(4002, 4010))
    running = np.array([0.4, 0.1, 0.05, *[0.01] * 8]) * S
    n = len(times)
    is_launcher = np.array([1, 1, 1, *[0] * 8], dtype=bool)
    return {
        "start_ns": np.repeat(times, len(tids)),
        "duration_ns": np.full(n * len(tids), S),
        "pid": np.tile([NEIGHBOUR if tid == NEIGHBOUR else ENGINE for tid in tids], n),
        "tid": np.tile(tids, n),
        "name": [f"thread-{tid}" for tid in tids] * n,
        "running_ns": np.tile(running.astype(np.int64), n),
        "waiting_ns": np.full(n * len(tids), 1_000_000),
        "sleeping_ns": np.tile((S - running - 1_000_000).astype(np.int64), n),
        "is_launcher": np.tile(is_launcher, n),
        "state": ["S"] * (n * len(tids)),
    }


def _engine(
    times: Ints, seconds: npt.NDArray[np.float64], rng: np.random.Generator
) -> dict[str, Any]:
    """A scrape a second: gauges, counters, and histograms with their buckets."""
    series: list[tuple[str, str, float | None, npt.NDArray[np.float64]]] = []
    for name, kind, level in _METRICS:
        values = level * (seconds + 60) if kind == "counter" else np.full(len(times), level)
        if name == "requests_running":
            values = values + rng.integers(-2, 3, len(times))
        series.append((name, kind, None, np.round(values) if kind == "counter" else values))
    for name, mean, per_s in _HISTOGRAMS:
        count = np.round(per_s * (seconds + 60))
        series += [(name, "sum", None, mean * count), (name, "count", None, count)]
        for bound in _BOUNDS:
            share = 1.0 if np.isinf(bound) else 1 / (1 + (mean / bound) ** 4)
            series.append((name, "bucket", bound, np.floor(share * count)))
    n, n_series = len(times), len(series)
    return {
        "time_ns": np.repeat(times, n_series),
        "endpoint": ["http://127.0.0.1:8000/metrics"] * (n * n_series),
        "engine": ["vllm"] * (n * n_series),
        "metric": [item[0] for item in series] * n,
        "raw_name": [f"vllm:{item[0]}" for item in series] * n,
        "kind": [item[1] for item in series] * n,
        "upper_bound": [item[2] for item in series] * n,
        "value": np.stack([item[3] for item in series], axis=1).reshape(-1),
        "is_lagging": np.zeros(n * n_series, dtype=bool),
    }


def write(folder: Path, n_calls: int, *, has_driver: bool = True) -> int:
    """Write a session of about ``n_calls`` calls and return how many rows its call table has.

    Args:
        folder: Directory to make.
        n_calls: Calls of all threads and layers together.
        has_driver: Every call of the runtime has one of the driver inside; else all are outermost.
    """
    end = START + int(n_calls / CALLS_PER_S * S)
    writer, rng = _Writer(folder), np.random.default_rng(7)
    players = [
        (thread, _Player(thread, rng, has_driver=has_driver))
        for thread in _threads(has_driver=has_driver)
    ]
    n_written = 0
    for begin in range(START, end, BLOCK_NS):
        until = min(begin + BLOCK_NS, end)
        calls, absences = [], []
        for thread, player in players:
            outer, away = player.play(begin, until)
            calls.append((thread, player.table(outer)))
            absences.append((thread, away))
        rows = _cuda_calls(calls, n_written + 1)
        writer.add(schema.CUDA_CALL, rows)
        n_written += len(rows["start_ns"])
        writer.add(schema.OFFCPU, _offcpu(absences))
        for table, columns in _samples(begin, until, rng):
            writer.add(table, columns)
    marks = np.arange(START + S, end, max((end - START) // 6, 1))
    writer.add(
        schema.EVENT,
        {
            "time_ns": marks,
            "kind": ["mark"] * len(marks),
            "name": [f"round {index}" for index in range(len(marks))],
        },
    )
    writer.finish()
    tables = {"cuda": ("cuda_call",), "scheduler": ("offcpu",), "nvml": ("gpu_sample",)}
    manifest = Manifest(
        tool_version="benchmark",
        start_ns=START,
        end_ns=end,
        gpus=[Gpu(0, "Test GPU"), Gpu(1, "Test GPU")],
        targets=[Target(ENGINE, name="VLLM::EngineCor"), Target(NEIGHBOUR, name="embedder")],
        functions=[ProbedFunction("cudaLaunchKernel", "runtime", "l", "0:1", n_written)],
        sources=[
            Source(name, "ok", tables=list(names), n_rows=writer.n_rows[names[0]])
            for name, names in tables.items()
        ],
    )
    (folder / FILE_NAME).write_text(manifest.to_json())
    return n_written


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("n_calls", type=int)
    parser.add_argument("--outermost", action="store_true", help="no call inside another")
    options = parser.parse_args()
    print(write(options.folder, options.n_calls, has_driver=not options.outermost))


if __name__ == "__main__":
    main()
