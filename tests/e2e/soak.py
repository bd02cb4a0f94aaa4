"""A soak in compressed time: ``python -m tests.e2e.soak [--hours 72] [--calls-per-s 2000]``.

The rows of a service over days go through the session writer as fast as the disk takes them, on a
clock of their own, with the flight recorder's retention. Printed are the writer's memory, the
session's size, and the time of ``tracer analyze``; and whether it found what was put in: one hang
in thirty rounds, a drift of 18 %, a leak of 50 MB/h. Exits with 1 when something was not met.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from analysis.manifest import Gpu, Manifest, ProbedFunction, Source, Target
from analysis.schema import (
    CUDA_CALL,
    ENGINE_SAMPLE,
    EVENT,
    GPU_SAMPLE,
    OFFCPU,
    OPEN_CALL,
    PROCESS_SAMPLE,
    THREAD_SECOND,
    Table,
)
from probes.probe import Batch, make_batch
from tracer.retention import Retention
from tracer.session import SessionWriter

S = 1_000_000_000
HOUR = 3600 * S
STEP_S = 60
PID, TID = 4000, 4000
N_ROUNDS = 30
HUNG_ROUND = 17
HANG_S = 2 * STEP_S
DRIFT = 0.18
LEAK_BYTES_PER_H = 50e6
#: Requests that the service answers in an hour, at first.
REQUESTS_PER_H = 0.95 * 4 * 3600
MOST_RSS = 300 << 20
MOST_ANALYZE_S = 10.0

_PATTERN = (
    ("cudaLaunchKernel", "launch", 6_000),
    ("cudaLaunchKernel", "launch", 5_000),
    ("cudaMemcpyAsync", "copy", 3_000),
    ("cudaGraphLaunch", "graph_launch", 9_000),
    ("cudaEventRecord", "event", 1_500),
    ("cudaStreamSynchronize", "sync", 2_000_000),
)
_BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, float("inf"))


class Days:
    """A service over days: each call gives the rows of the next minute."""

    def __init__(self, hours: float, calls_per_s: int, seed: int) -> None:
        self.length_ns = int(hours * HOUR)
        self._rng = np.random.default_rng(seed)
        self._n = calls_per_s * STEP_S
        self._n_calls = 0
        self._tokens = self._between = 0.0
        self.round_ns = self.length_ns // N_ROUNDS
        self.hang_ns = (HUNG_ROUND - 1) * self.round_ns + self.round_ns // 2
        kinds = [_PATTERN[index % len(_PATTERN)] for index in range(self._n)]
        self._functions = (
            pa.array([item[0] for item in kinds]).dictionary_encode().cast(pa.string())
        )
        self._kinds = pa.array([item[1] for item in kinds])
        self._layer = pa.array(["runtime"] * self._n)
        self._lengths = np.array([item[2] for item in kinds], dtype=float)
        self._offsets = np.arange(self._n) * (STEP_S * S // self._n)
        self._same = {
            "pid": np.full(self._n, PID, np.int32),
            "tid": np.full(self._n, TID, np.int32),
            "depth": np.zeros(self._n, np.int16),
            "device": np.zeros(self._n, np.int32),
            "stream": np.full(self._n, 7, np.uint64),
            "kernel": np.arange(self._n, dtype=np.uint64) % 40,
        }

    def slower(self, now_ns: int) -> float:
        """Factor of the drift: from the first third of the time on, evenly to 18 %."""
        share = now_ns / self.length_ns
        return 1 + DRIFT * max(0.0, (share - 1 / 3) * 1.5)

    def is_hung(self, now_ns: int) -> bool:
        return self.hang_ns <= now_ns < self.hang_ns + HANG_S * S

    def rows(self, now_ns: int) -> Iterator[Batch]:
        """Rows of the minute from a time on."""
        is_hung = self.is_hung(now_ns)
        slower = self.slower(now_ns)
        if not is_hung:
            noise = self._rng.uniform(0.8, 1.25, self._n)
            yield make_batch(
                CUDA_CALL,
                {
                    **self._same,
                    "start_ns": now_ns + self._offsets,
                    "duration_ns": (self._lengths * noise * slower).astype(np.int64),
                    "function": self._functions,
                    "layer": self._layer,
                    "kind": self._kinds,
                    "call_id": np.arange(self._n_calls, self._n_calls + self._n),
                },
            )
            self._n_calls += self._n
            yield self._absences(now_ns)
        yield from self._samples(now_ns, is_hung, slower)

    def _absences(self, now_ns: int) -> Batch:
        n = 30 * STEP_S
        start = now_ns + np.arange(n) * (STEP_S * S // n)
        return make_batch(
            OFFCPU,
            {
                "start_ns": start,
                "duration_ns": self._rng.integers(20_000, 900_000, n),
                "pid": np.full(n, PID),
                "tid": np.full(n, TID),
                "runnable_ns": self._rng.integers(1_000, 15_000, n),
                "state": ["sleeping"] * n,
            },
        )

    def _samples(self, now_ns: int, is_hung: bool, slower: float) -> Iterator[Batch]:
        """A row of each source and series every second."""
        times = now_ns + np.arange(STEP_S) * S
        # The users of a round come a little after its mark, and ask again once they are answered.
        running = np.where(times % self.round_ns < self.round_ns // 20, 0.0, 8.0)
        tokens = np.where(running > 0, 0.0 if is_hung else 800 / slower, 0.0)
        total = self._tokens + np.cumsum(tokens)
        between = self._between + np.cumsum(tokens * 0.01 * slower)
        self._tokens, self._between = float(total[-1]), float(between[-1])
        n = STEP_S
        yield make_batch(
            GPU_SAMPLE,
            {
                "time_ns": times,
                "device": np.zeros(n),
                "source": ["nvml"] * n,
                "period_ns": np.full(n, S),
                "util_pct": np.full(n, 99.0) if is_hung else 8.0 * running,
                "power_mw": np.full(n, 300_000),
            },
        )
        finished = total / 200
        memory = (4e9 + LEAK_BYTES_PER_H * finished / REQUESTS_PER_H).astype(np.int64)
        yield make_batch(
            PROCESS_SAMPLE,
            {
                "time_ns": times,
                "pid": np.full(n, PID),
                "name": ["VLLM::EngineCor"] * n,
                "rss_bytes": memory,
                "rss_anon_bytes": memory,
            },
        )
        n_threads = 12
        starts = np.repeat(times, n_threads)
        yield make_batch(
            THREAD_SECOND,
            {
                "start_ns": starts,
                "duration_ns": np.full(len(starts), S),
                "pid": np.full(len(starts), PID),
                "tid": PID + np.tile(np.arange(n_threads), n),
                "name": ["t"] * len(starts),
                "running_ns": np.full(len(starts), S // 4),
                "waiting_ns": np.full(len(starts), S // 100),
                "sleeping_ns": np.full(len(starts), S - S // 4 - S // 100),
            },
        )
        shares = np.array([0.05, 0.6, 0.97, 0.99, 1, 1, 1, 1, 1])
        series = [
            ("requests_running", "gauge", None, running),
            ("requests_waiting", "gauge", None, np.zeros(n)),
            ("generation_tokens", "counter", None, total),
            ("prompt_tokens", "counter", None, 2 * total),
            ("requests_finished", "counter", None, finished),
            ("inter_token_seconds", "sum", None, between),
            ("inter_token_seconds", "count", None, total),
            *(
                (metric, "bucket", bound, total * share)
                for metric in ("inter_token_seconds", "ttft_seconds")
                for bound, share in zip(_BOUNDS, shares.tolist(), strict=True)
            ),
        ]
        names = [item[0] for item in series] * n
        yield make_batch(
            ENGINE_SAMPLE,
            {
                "time_ns": np.repeat(times, len(series)),
                "endpoint": ["http://127.0.0.1:8000/metrics"] * len(names),
                "engine": ["vllm"] * len(names),
                "metric": names,
                "raw_name": names,
                "kind": [item[1] for item in series] * n,
                "upper_bound": pa.array([item[2] for item in series] * n, pa.float64()),
                "value": np.stack([item[3] for item in series], axis=1).reshape(-1),
            },
        )
        if is_hung:
            yield make_batch(
                OPEN_CALL,
                {
                    "time_ns": times,
                    "start_ns": np.full(n, self.hang_ns),
                    "pid": np.full(n, PID),
                    "tid": np.full(n, TID),
                    "function": ["cudaStreamSynchronize"] * n,
                    "layer": ["runtime"] * n,
                    "kind": ["sync"] * n,
                    "call_id": np.full(n, self._n_calls),
                    "depth": np.zeros(n),
                    "is_doubtful": [False] * n,
                },
            )


def event(now_ns: int, kind: str, name: str) -> Batch:
    return make_batch(EVENT, {"time_ns": [now_ns], "kind": [kind], "name": [name]})


def resident() -> int:
    """Resident memory of this process in bytes."""
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def size_of(path: Path, tables: tuple[Table, ...] = ()) -> int:
    return sum(file.stat().st_size for file in path.rglob("*.parquet") if file.exists())


def record(path: Path, days: Days, retention: Retention) -> tuple[int, int, list[int]]:
    """Play the days into a session; return the most memory, the largest size, and the memory at
    each twelfth.
    """
    manifest = Manifest(
        tool_version="soak",
        start_ns=0,
        end_ns=None,
        start_realtime_ns=1_700_000_000 * S,
        gpus=[Gpu(0, "Simulated")],
        targets=[Target(PID, name="VLLM::EngineCor")],
        functions=[ProbedFunction("cudaLaunchKernel", "runtime", "l", "0:1", 1)],
        sources=[Source("cuda", "ok")],
        is_simulated=True,
    )
    now = [0]
    writer = SessionWriter(path, manifest, clock=lambda: now[0], retention=retention)
    most_memory = most_bytes = 0
    memory: list[int] = []
    next_round, pinned = 0, False
    for step, now_ns in enumerate(range(0, days.length_ns, STEP_S * S)):
        now[0] = now_ns
        if now_ns >= next_round * days.round_ns and next_round < N_ROUNDS:
            next_round += 1
            writer.append(event(now_ns, "mark", f"round {next_round}"))
        if not pinned and now_ns >= days.hang_ns + 20 * S:
            # As the recorder's own watch over open calls does.
            pinned = True
            writer.append(event(now_ns, "trigger", "hang.kernel"))
            writer.pin(now_ns - 120 * S, now_ns + 20 * S)
        for batch in days.rows(now_ns):
            writer.append(batch)
        now[0] = now_ns + STEP_S * S
        writer.flush(force=True)
        if step % 20 == 0:
            most_memory = max(most_memory, resident())
            most_bytes = max(most_bytes, size_of(path))
        if now_ns * 12 // days.length_ns >= len(memory):
            memory.append(resident())
    manifest.end_ns, manifest.end_reason = days.length_ns, "duration"
    if not writer.close():
        raise SystemExit("the session could not be written in full")
    return most_memory, max(most_bytes, size_of(path)), memory


def analyze(path: Path, *options: str) -> tuple[str, float, int]:
    """Run ``tracer analyze``; return its output, the time it took in s and its memory in bytes."""
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "tracer", "analyze", str(path), *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return output, time.monotonic() - begin, usage.ru_maxrss * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hours", type=float, default=72.0)
    parser.add_argument("--calls-per-s", type=int, default=2000)
    parser.add_argument("--keep-s", type=int, default=900)
    parser.add_argument("--max-size", type=int, default=2 * 10**9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="keep the session here")
    arguments = parser.parse_args()
    days = Days(arguments.hours, arguments.calls_per_s, arguments.seed)
    # In memory where possible: days of a disk's waits for its platter are not what is tested.
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="tracer-soak-", dir=shared if shared.is_dir() else None))
    path = arguments.output or folder / "s.tracer"
    results: list[tuple[str, str, bool]] = []
    try:
        begin = time.monotonic()
        retention = Retention(arguments.keep_s * S, arguments.max_size)
        memory, n_bytes, course = record(path, days, retention)
        took = time.monotonic() - begin
        n_calls = arguments.hours * 3600 * arguments.calls_per_s
        print(f"played {arguments.hours:g} h, {n_calls / 1e6:.0f} M calls, in {took:.0f} s")
        flat = ", ".join(f"{item / 2**20:.0f}" for item in course)
        results.append(
            ("memory of the writer", f"{memory / 2**20:.0f} MiB ({flat})", memory < MOST_RSS)
        )
        within = n_bytes <= arguments.max_size * 1.02
        results.append(("size of the session", f"{n_bytes / 1e6:.0f} MB", within))
        text, seconds, used = analyze(path)
        print(text)
        fast = seconds <= MOST_ANALYZE_S
        results.append(("tracer analyze", f"{seconds:.1f} s, {used / 2**20:.0f} MiB", fast))
        results.append(("the hang", "told", "hang.kernel" in text))
        results.append(("the stall, dated", "told", "Stall: nothing was handed" in text))
        results.append(("the drift", "told", "Drift: the time between tokens" in text))
        results.append(("the leak", "told", "memory.host_leak" in text))
        rounds, seconds, _ = analyze(path, "--by-mark", "--json")
        told = json.loads(rounds)
        hung = [item["name"] for item in told["rounds"] if "stall" in item["findings"]]
        results.append(("rounds with a stall", ", ".join(hung), hung == [f"round {HUNG_ROUND}"]))
        print(told["rates"]["stall"])
        results.append(("analyze --by-mark", f"{seconds:.1f} s", True))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, value, is_met in results:
        print(f"{'ok ' if is_met else 'BAD'} {name}: {value}")
    return 0 if all(is_met for _, _, is_met in results) else 1


if __name__ == "__main__":
    sys.exit(main())
