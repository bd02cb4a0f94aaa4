"""What a running recording looks like right now: rates and percentiles over the last seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from analysis.manifest import Source
from analysis.quantiles import quantile
from analysis.report.words import duration_text
from probes.probe import Batch
from tracer.coded_text import which_are

#: Rates and percentiles are over this much time.
WINDOW_NS = 5_000_000_000
#: A gauge older than this is not shown.
STALE_NS = 15_000_000_000
_LAUNCHES = frozenset({"launch", "graph_launch"})
_TOKENS = frozenset({"generation_tokens"})
_COLUMNS = {
    "cuda_call": ["kind", "duration_ns"],
    "engine_sample": ["metric", "endpoint", "time_ns", "value"],
}


@dataclass(frozen=True)
class Status:
    """One look at a running recording; None is unknown.

    Attributes:
        elapsed_ns: Time since its start.
        calls_per_s: CUDA calls per second.
        n_launches: Launches in the window that the percentiles are of.
        launch_p50_ns: Median length of a launch call, nearest rank.
        launch_p99_ns: 99th percentile of it, nearest rank.
        device_util_pct: Utilisation of each device, by index, in [0, 100].
        tokens_per_s: Tokens generated per second, as the engine counts.
        n_lost: Records and rows lost so far.
        n_rows: Rows taken so far.
        sources: State of each source.
        problem: One sentence about what is wrong with the session; empty when nothing is.
    """

    elapsed_ns: int
    calls_per_s: float | None
    n_launches: int
    launch_p50_ns: int | None
    launch_p99_ns: int | None
    device_util_pct: dict[int, float]
    tokens_per_s: float | None
    n_lost: int
    n_rows: int
    sources: Sequence[Source]
    problem: str = ""


class StatusMeter:
    """Keeps what the status needs of the batches of the last seconds.

    Calls and engines' metrics are looked at when the status is asked for: where nobody does, they
    cost nothing.
    """

    def __init__(self, window_ns: int = WINDOW_NS) -> None:
        self._window_ns = window_ns
        self._calls: deque[tuple[int, int]] = deque()
        self._launches: deque[tuple[int, NDArray[np.int64]]] = deque()
        #: By endpoint: times of scrapes, and the tokens generated until then.
        self._tokens: dict[str, deque[tuple[int, float]]] = {}
        self._util: dict[int, tuple[int, float]] = {}
        self._has_calls = False
        #: Rows of the window that were not looked at yet, and when they arrived.
        self._waiting: deque[tuple[int, str, pa.RecordBatch]] = deque()
        self.n_rows = 0

    def observe(self, batch: Batch, now_ns: int) -> None:
        """Take note of a batch that arrived at ``now_ns`` (CLOCK_MONOTONIC)."""
        self.n_rows += batch.rows.num_rows
        self._forget(now_ns)
        if batch.table.name == "cuda_call":
            self._has_calls = True
            self._calls.append((now_ns, batch.rows.num_rows))
            self._wait(batch, now_ns)
        elif batch.table.name == "gpu_sample":
            for device, util in zip(
                batch.rows.column("device").to_pylist(),
                batch.rows.column("util_pct").to_pylist(),
                strict=True,
            ):
                if util is not None:
                    self._util[device] = (now_ns, util)
        elif batch.table.name == "engine_sample":
            self._wait(batch, now_ns)

    def _wait(self, batch: Batch, now_ns: int) -> None:
        """Keep only the columns that are looked at: those of calls are large."""
        rows = batch.rows.select(_COLUMNS[batch.table.name])
        self._waiting.append((now_ns, batch.table.name, rows))

    def _look_at_waiting(self) -> None:
        while self._waiting:
            arrived_ns, table, rows = self._waiting.popleft()
            if table == "engine_sample":
                self._take_tokens(rows)
                continue
            is_launch = which_are(rows.column("kind"), _LAUNCHES)
            durations = rows.column("duration_ns").filter(pa.array(is_launch)).drop_null()
            self._launches.append((arrived_ns, durations.to_numpy(zero_copy_only=False)))

    def _take_tokens(self, rows: pa.RecordBatch) -> None:
        """Keep the tokens generated so far, summed over each engine's series, per scrape."""
        places = np.flatnonzero(which_are(rows.column("metric"), _TOKENS))
        if not len(places):
            return
        picked = rows.select(["endpoint", "time_ns", "value"]).take(pa.array(places))
        totals: dict[tuple[str, int], float] = {}
        for endpoint, time_ns, value in zip(
            *(column.to_pylist() for column in picked), strict=True
        ):
            former = totals.get((endpoint, time_ns), 0.0)
            totals[endpoint, time_ns] = former + (value or 0.0)
        for (endpoint, time_ns), total in totals.items():
            self._tokens.setdefault(endpoint, deque()).append((time_ns, total))

    def snapshot(
        self, now_ns: int, start_ns: int, sources: Sequence[Source], problem: str = ""
    ) -> Status:
        """Return the status at ``now_ns`` over the last window (less at the beginning)."""
        self._look_at_waiting()
        self._forget(now_ns)
        covered_s = max(min(self._window_ns, now_ns - start_ns), 1) / 1e9
        n_calls = sum(count for _, count in self._calls)
        durations = (
            np.concatenate([part for _, part in self._launches])
            if self._launches
            else np.empty(0, dtype=np.int64)
        )
        median, high = quantile(durations, 0.5), quantile(durations, 0.99)
        return Status(
            elapsed_ns=now_ns - start_ns,
            calls_per_s=n_calls / covered_s if self._has_calls else None,
            n_launches=len(durations),
            launch_p50_ns=None if median is None else int(median.value),
            launch_p99_ns=None if high is None else int(high.value),
            device_util_pct={
                device: util
                for device, (time_ns, util) in sorted(self._util.items())
                if now_ns - time_ns < STALE_NS
            },
            tokens_per_s=self._token_rate(),
            n_lost=sum(source.n_lost for source in sources),
            n_rows=self.n_rows,
            sources=sources,
            problem=problem,
        )

    def _forget(self, now_ns: int) -> None:
        """Drop what is older than the window, whether or not anybody asks for the status."""
        oldest_ns = now_ns - self._window_ns
        while self._waiting and self._waiting[0][0] < oldest_ns:
            self._waiting.popleft()
        queues: list[deque[Any]] = [self._calls, self._launches, *self._tokens.values()]
        for kept in queues:
            while kept and kept[0][0] < oldest_ns:
                kept.popleft()

    def _token_rate(self) -> float | None:
        """Tokens per second of all engines, each between its first and last scrape kept; a restart
        counts from 0.
        """
        rates = [rate for kept in self._tokens.values() if (rate := _rate(kept)) is not None]
        return sum(rates) if rates else None


def _rate(scrapes: Sequence[tuple[int, float]]) -> float | None:
    """Tokens per second of one engine; None where fewer than two scrapes are kept."""
    if len(scrapes) < 2 or scrapes[-1][0] <= scrapes[0][0]:
        return None
    totals = [total for _, total in scrapes]
    n_tokens = sum(max(after - before, 0.0) for before, after in pairwise(totals))
    return n_tokens * 1e9 / (scrapes[-1][0] - scrapes[0][0])


def status_line(status: Status) -> str:
    """Return the status as one line of text, in human units."""
    parts = [_clock(status.elapsed_ns)]
    if status.calls_per_s is not None:
        parts.append(f"{_count(status.calls_per_s)} calls/s")
    if status.launch_p50_ns is not None and status.launch_p99_ns is not None:
        parts.append(
            f"launch p50 {duration_text(status.launch_p50_ns)} "
            f"p99 {duration_text(status.launch_p99_ns)} (n={_count(status.n_launches)})"
        )
    if status.device_util_pct:
        utils = " ".join(f"{util:.0f}%" for util in status.device_util_pct.values())
        parts.append(f"GPU {utils}")
    if status.tokens_per_s is not None:
        parts.append(f"{_count(status.tokens_per_s)} tokens/s")
    parts.append(f"lost {_count(status.n_lost)}")
    missing = [item.name for item in status.sources if item.state in ("unavailable", "lost")]
    if missing:
        parts.append("without " + ", ".join(missing))
    if status.problem:
        parts.append(status.problem)
    return " | ".join(parts)


def _clock(elapsed_ns: int) -> str:
    minutes, seconds = divmod(elapsed_ns // 1_000_000_000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes:02d}:{seconds:02d}"


def _count(value: float) -> str:
    for limit, divisor, unit in ((1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= limit:
            return f"{value / divisor:.1f}{unit}"
    return f"{value:.0f}"
