"""Builds tiny synthetic sessions: Parquet tables from the schema, and a service that fills them.

``SessionBuilder`` writes rows of any table. ``Service`` plays an LLM service - a launching thread,
a device, an engine's metrics, NVML - on paper, in nanoseconds, with the faults that tests ask for.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from analysis import schema
from analysis.manifest import FILE_NAME, Gpu, Manifest, ProbedFunction, Source, Target
from analysis.timeline import Session, open_session

MS = 1_000_000
S = 1_000_000_000

#: Upper bounds of the time between tokens, s, as vLLM exposes them.
GAP_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, float("inf"))


class SessionBuilder:
    """A session on disk, written table by table; nullable columns that are not given are null."""

    def __init__(self, path: Path, **manifest: Any) -> None:
        self.path = path
        manifest.setdefault("tool_version", "test")
        manifest.setdefault("gpus", [Gpu(0, "Test GPU")])
        self.manifest = Manifest(**manifest)
        self._rows: dict[str, list[Mapping[str, Any]]] = {}

    def add(self, name: str, rows: Iterable[Mapping[str, Any]]) -> SessionBuilder:
        """Add rows of a table, each a mapping of column to value."""
        self._rows.setdefault(name, []).extend(rows)
        return self

    def write(self) -> Session:
        """Write everything and return the opened session."""
        self.path.mkdir(parents=True, exist_ok=True)
        for name, rows in self._rows.items():
            declared = schema.table(name)
            ordered = sorted(rows, key=lambda row: row[declared.order])
            used = {key for row in rows for key in row}
            unknown = used - set(declared.column_names)
            assert not unknown, f"table {name} has no column {unknown}"
            nothing = [None] * len(ordered)
            columns = {
                key: [row.get(key) for row in ordered] if key in used else nothing
                for key in declared.column_names
            }
            write_segment(self.path, pa.table(columns, schema=declared.arrow_schema()), name)
        (self.path / FILE_NAME).write_text(self.manifest.to_json())
        return open_session(self.path)


def write_segment(session: Path, rows: pa.Table, name: str, first: int = 0, last: int = 0) -> Path:
    """Write rows as one closed segment of a table and return its path."""
    folder = session / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{first:010d}-{last:010d}.parquet"
    pq.write_table(rows, path)
    return path


@dataclass
class Service:
    """An LLM service on one device, played step by step.

    Every step: the launching thread computes on the CPU, launches, and sleeps in a sync until the
    device is done. Times are ns; ``rng`` shakes them all by a tenth.

    Attributes:
        seed: Seed of all randomness.
        start: Begin of the recording.
        pid: Process of the engine; its launching thread has the same id.
        decode: Device time of a decode step (one graph).
        host: Time the host computes before each step.
        launch: Length of a launch call.
        has_engine: Whether engine metrics are recorded.
        has_nvml: Whether NVML samples are recorded.
        is_sleepy: Syncs sleep (else they spin).
        name: Name of the process.
    """

    seed: int = 0
    start: int = 1_000 * S
    pid: int = 4000
    decode: int = 8 * MS
    host: int = 700_000
    launch: int = 8_000
    has_engine: bool = True
    has_nvml: bool = True
    is_sleepy: bool = True
    name: str = "VLLM::EngineCor"
    running: int = 4
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.now = self.start
        self.call_id = 0
        self.busy: list[tuple[int, int]] = []
        self.generated = 0.0
        self.prompted = 0.0
        self.n_between, self.sum_between = 0, 0.0
        self.last_tokens = self.start
        self.history: list[tuple[int, float, float, int, float, int, int, tuple[int, ...]]] = []
        self.gap_counts = [0] * len(GAP_BOUNDS)
        self.waiting = 0
        self.seen: set[int] = set()
        self._note()

    def shake(self, value: float) -> int:
        """A length with a tenth of noise."""
        return max(int(value * self.rng.uniform(0.9, 1.1)), 1)

    def call(self, function: str, kind: str, duration: int, **more: Any) -> None:
        """One outermost call from now on; time moves to its return."""
        self.call_id += 1
        self.rows.setdefault("cuda_call", []).append(
            {
                "start_ns": self.now,
                "duration_ns": duration,
                "pid": self.pid,
                "tid": self.pid,
                "function": function,
                "layer": "runtime",
                "kind": kind,
                "call_id": self.call_id,
                "depth": 0,
                "device": 0,
                "stream": 7,
                **more,
            }
        )
        self.now += duration

    def absent(self, start: int, end: int, state: str, runnable: int, **more: Any) -> None:
        """One interval off the CPU."""
        self.rows.setdefault("offcpu", []).append(
            {
                "start_ns": start,
                "duration_ns": end - start,
                "pid": self.pid,
                "tid": self.pid,
                "runnable_ns": runnable,
                "state": state,
                "taker_pid": 0,
                "taker_tid": 0,
                "taker_name": "swapper",
                "occupant_pid": 0,
                "occupant_tid": 0,
                "occupant_name": "swapper",
                **more,
            }
        )

    def preempt(self, duration: int, pid: int = 99, name: str = "stress-ng") -> None:
        """The thread is pushed off the CPU by another task now; time moves on."""
        end = self.now + duration
        task = {"taker_pid": pid, "taker_tid": pid, "taker_name": name}
        held = {"occupant_pid": pid, "occupant_tid": pid, "occupant_name": name}
        self.absent(self.now, end, "running", duration, **task, **held)
        self.now = end

    def compute(self, duration: int) -> None:
        """The thread computes on the CPU."""
        self.now += duration

    def sleep(self, duration: int) -> None:
        """The thread sleeps outside of any call."""
        self.absent(self.now, self.now + duration, "sleeping", 3_000)
        self.now += duration

    def sync(self, device_end: int) -> None:
        """Wait until the device is done."""
        start = self.now
        end = max(device_end, start) + 12_000
        if self.is_sleepy and device_end > start + 20_000:
            self.absent(start + 4_000, end - 4_000, "sleeping", 6_000)
        self.call("cudaStreamSynchronize", "sync", end - start)

    def preempted_spin(self, device_end: int, extra: int, **task: Any) -> None:
        """Spin in a sync, be pushed off the CPU before the device is done, and return after."""
        start = self.now
        left = max(device_end - extra // 2, start + 1_000)
        back = max(device_end, left) + extra
        self.now = left
        self.preempt(back - left, **task)
        self.now = start
        self.call("cudaStreamSynchronize", "sync", back + 5_000 - start)

    def run_device(self, length: int) -> int:
        """Queue work on the device now and return when it ends."""
        begin = max(self.now, self.busy[-1][1] if self.busy else 0)
        self.busy.append((begin, begin + length))
        return begin + length

    def decode_step(self, slower: float = 1.0) -> None:
        """One decode of all running requests."""
        self.compute(self.shake(self.host))
        self.call("cudaMemcpyAsync", "copy", 3_000, copy_kind="h2d", size_bytes=64)
        end = self.run_device(self.shake(self.decode * slower))
        self.call("cudaGraphLaunch", "graph_launch", self.shake(self.launch), kernel=1)
        self.launch_kernel(2)
        self.sync(end)
        self.token(self.running)

    def launch_kernel(self, kernel: int, duration: int | None = None, **more: Any) -> None:
        """One plain launch, first use told as the recorder tells it."""
        is_first = kernel not in self.seen
        self.seen.add(kernel)
        more.setdefault("is_first_seen", is_first)
        self.call(
            "cudaLaunchKernel", "launch", duration or self.shake(self.launch), kernel=kernel, **more
        )

    def prefill_step(self, length: int, n_tokens: int, n_launches: int = 60) -> None:
        """One eager step over a chunk of prompt."""
        self.compute(self.shake(self.host))
        self.call("cudaMemcpyAsync", "copy", 3_000, copy_kind="h2d", size_bytes=4 * n_tokens)
        end = self.run_device(self.shake(length))
        for index in range(n_launches):
            self.launch_kernel(100 + index % 10)
        self.sync(end)
        self.prompted += n_tokens
        self._note()

    def token(self, n: int) -> None:
        """Tokens come out now."""
        self.generated += n
        self.n_between += n
        gap = (self.now - self.last_tokens) / 1e9
        self.sum_between += n * gap
        for index, bound in enumerate(GAP_BOUNDS):
            self.gap_counts[index] += n if gap <= bound else 0
        self.last_tokens = self.now
        self._note()

    def _note(self) -> None:
        self.history.append(
            (
                self.now,
                self.generated,
                self.prompted,
                self.n_between,
                self.sum_between,
                self.running,
                self.waiting,
                tuple(self.gap_counts),
            )
        )

    def decode_until(self, end: int, slower: float = 1.0) -> None:
        """Decode steps until a time."""
        while self.now < end:
            self.decode_step(slower)

    def session(self, path: Path, end: int | None = None, **manifest: Any) -> Session:
        """Write the session and open it."""
        return self.builder(path, end, **manifest).write()

    def builder(self, path: Path, end: int | None = None, **manifest: Any) -> SessionBuilder:
        """Return the session, not yet written; more rows may be added."""
        end = self.now if end is None else end
        manifest.setdefault("start_ns", self.start)
        manifest.setdefault("end_ns", end)
        manifest.setdefault("targets", [Target(self.pid, name=self.name)])
        manifest.setdefault(
            "functions", [ProbedFunction("cudaLaunchKernel", "runtime", "l", "0:1", 1)]
        )
        manifest.setdefault("sources", [Source("cuda", "ok")])
        builder = SessionBuilder(path, **manifest)
        for name, rows in self.rows.items():
            builder.add(name, rows)
        if self.has_nvml:
            builder.add("gpu_sample", self.nvml(end))
        if self.has_engine:
            builder.add("engine_sample", self.engine(end))
        return builder

    def nvml(self, end: int, busy: list[tuple[int, int]] | None = None) -> list[dict[str, Any]]:
        """Samples of utilisation, every half second over a window of half a second."""
        spans = self.busy if busy is None else busy
        rows = []
        width = S // 2
        for begin in range(self.start, end - width + 1, width):
            used = sum(
                max(min(stop, begin + width) - max(start, begin), 0) for start, stop in spans
            )
            rows.append(
                {
                    "time_ns": begin + width,
                    "device": 0,
                    "source": "nvml",
                    "sample_ns": begin + width,
                    "period_ns": width,
                    "util_pct": float(round(100 * used / width)),
                    "power_mw": 300_000,
                }
            )
        return rows

    def engine(self, end: int) -> list[dict[str, Any]]:
        """Scrapes once a second of the counters as they were then."""
        rows: list[dict[str, Any]] = []
        index = 0
        for time in range(self.start, end + 1, S):
            while index + 1 < len(self.history) and self.history[index + 1][0] <= time:
                index += 1
            _t, generated, prompted, n, total, running, waiting, counts = self.history[index]
            buckets = [
                ("inter_token_seconds", "bucket", count, bound)
                for bound, count in zip(GAP_BOUNDS, counts, strict=True)
            ]
            for metric, kind, value, *bound in (
                ("requests_running", "gauge", running),
                ("requests_waiting", "gauge", waiting),
                ("generation_tokens", "counter", generated),
                ("prompt_tokens", "counter", prompted),
                ("inter_token_seconds", "sum", total),
                ("inter_token_seconds", "count", n),
                ("preemptions", "counter", 0),
                *buckets,
            ):
                rows.append(
                    {
                        "time_ns": time,
                        "endpoint": "http://127.0.0.1:8000/metrics",
                        "engine": "vllm",
                        "metric": metric,
                        "raw_name": metric,
                        "kind": kind,
                        "upper_bound": bound[0] if bound else None,
                        "value": float(value),
                    }
                )
        return rows
