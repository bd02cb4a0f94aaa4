"""What triggers compare: the newest values of a running recording, of bounded memory."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from analysis import quantiles
from probes.probe import Batch
from tracer.coded_text import which_are
from tracer.status import STALE_NS, Status

SECOND_NS = 1_000_000_000
#: Percentiles of an engine's histogram are over this much time.
HISTOGRAM_NS = 60 * SECOND_NS
#: The slope of memory is over this much time, from the least on, of one reading in so long.
SLOPE_NS = 1800 * SECOND_NS
SLOPE_LEAST_NS = 600 * SECOND_NS
SLOPE_STEP_NS = 10 * SECOND_NS
_HISTOGRAMS = ("ttft_seconds", "inter_token_seconds")
_GAUGES = ("requests_running", "requests_waiting", "kv_usage")
_COUNTERS = ("generation_tokens", "prompt_tokens", "requests_finished")
_ENGINE_METRICS = frozenset((*_HISTOGRAMS, *_GAUGES, *_COUNTERS))
_ENGINE_COLUMNS = ["endpoint", "time_ns", "metric", "kind", "upper_bound", "value"]
#: A percentile needs so many samples that it is not the largest of them.
_LEAST = {0.5: 1, 0.95: 20, 0.99: 100}


class _Engine:
    """The newest page of one engine: its gauges and counters, and pages of its histograms."""

    def __init__(self) -> None:
        self.gauges: dict[str, tuple[int, float]] = {}
        self._counters: dict[str, float] = {}
        self._histograms: dict[str, deque[tuple[int, dict[float, float]]]] = {}

    def take(self, page: Mapping[tuple[str, str, float | None], float], now_ns: int) -> bool:
        """Take over a page (by metric, kind and bound); tell whether a counter has grown."""
        has_grown = False
        buckets: dict[str, dict[float, float]] = {}
        for (name, kind, bound), value in page.items():
            if kind == "gauge":
                self.gauges[name] = (now_ns, value)
            elif kind == "counter":
                has_grown = has_grown or value > self._counters.get(name, value)
                self._counters[name] = value
            elif kind == "bucket" and bound is not None:
                buckets.setdefault(name, {})[bound] = value
        for name, counts in buckets.items():
            kept = self._histograms.setdefault(name, deque())
            kept.append((now_ns, counts))
            while len(kept) > 2 and kept[1][0] <= now_ns - HISTOGRAM_NS:
                kept.popleft()
        return has_grown

    def percentile(self, name: str, q: float) -> float | None:
        """Upper bound of the bucket with that share of the samples of the last minute, s."""
        kept = self._histograms.get(name)
        if not kept or len(kept) < 2:
            return None
        before, after = kept[0][1], kept[-1][1]
        bounds = sorted(after)
        counts = [after[bound] - before.get(bound, 0.0) for bound in bounds]
        n = counts[-1]
        if n < _LEAST[q] or min(counts) < 0:
            return None
        rank = quantiles.rank(int(n), q) + 1
        bound = next(bound for bound, count in zip(bounds, counts, strict=True) if count >= rank)
        finite = [item for item in bounds if math.isfinite(item)]
        return bound if math.isfinite(bound) else (finite[-1] if finite else None)


class Readings:
    """Keeps the newest values of what was recorded."""

    def __init__(self) -> None:
        #: By endpoint.
        self._engines: dict[str, _Engine] = {}
        self._power: dict[int, tuple[int, float]] = {}
        self._rss: dict[int, tuple[int, float]] = {}
        self._memory: deque[tuple[int, float]] = deque()
        #: When work was last seen to go on: a launch, a token, a finished request; ns, or None.
        self.progress_ns: int | None = None
        self._open_ns: int | None = None

    def observe(self, batch: Batch, now_ns: int) -> None:
        """Take note of rows that arrived at ``now_ns``."""
        take = {
            "engine_sample": self._take_engine,
            "gpu_sample": self._take_gpu,
            "process_sample": self._take_processes,
            "open_call": self._take_open,
        }.get(batch.table.name)
        if take is not None and batch.rows.num_rows:
            take(batch.rows, now_ns)

    def note_progress(self, time_ns: int) -> None:
        """Take note that work went on at a time, ns."""
        self.progress_ns = max(self.progress_ns or 0, time_ns)

    def _take_open(self, rows: pa.RecordBatch, now_ns: int) -> None:
        self._open_ns = now_ns

    def _take_engine(self, rows: pa.RecordBatch, now_ns: int) -> None:
        wanted = pa.array(which_are(rows.column("metric"), _ENGINE_METRICS))
        rows = rows.select(_ENGINE_COLUMNS).filter(wanted)
        pages: dict[str, tuple[int, dict[tuple[str, str, float | None], float]]] = {}
        for endpoint, time_ns, name, kind, bound, value in zip(
            *(column.to_pylist() for column in rows), strict=True
        ):
            page_ns, page = pages.get(endpoint, (0, {}))
            if time_ns > page_ns:  # a batch may hold several pages: the newest is looked at
                page = {}
                pages[endpoint] = (time_ns, page)
            if time_ns >= page_ns and value is not None and math.isfinite(value):
                key = (name, kind, bound)
                former = page.get(key, 0.0)
                page[key] = max(former, value) if name == "kv_usage" else former + value
        for endpoint, (_, page) in pages.items():
            if self._engines.setdefault(endpoint, _Engine()).take(page, now_ns):
                self.note_progress(now_ns)

    def _take_gpu(self, rows: pa.RecordBatch, now_ns: int) -> None:
        for device, power in zip(
            rows.column("device").to_pylist(), rows.column("power_mw").to_pylist(), strict=True
        ):
            if power is not None:
                self._power[device] = (now_ns, power / 1e3)

    def _take_processes(self, rows: pa.RecordBatch, now_ns: int) -> None:
        for pid, rss in zip(
            rows.column("pid").to_pylist(), rows.column("rss_bytes").to_pylist(), strict=True
        ):
            if rss is not None:
                self._rss[pid] = (now_ns, float(rss))
        self._rss = {pid: item for pid, item in self._rss.items() if now_ns - item[0] < STALE_NS}
        if not self._memory or now_ns - self._memory[-1][0] >= SLOPE_STEP_NS:
            self._memory.append((now_ns, sum(rss for _, rss in self._rss.values())))
            while self._memory[0][0] < now_ns - SLOPE_NS:
                self._memory.popleft()

    def has_demand(self, now_ns: int, status: Status) -> bool:
        """Return whether work is asked for, as the engine tells; without an engine, as a call
        that did not return or a device in use tells.
        """
        told = [self._gauge(name, now_ns) for name in ("requests_running", "requests_waiting")]
        known = [value for value in told if value is not None]
        if known:
            return sum(known) > 0
        if self._open_ns is not None and now_ns - self._open_ns < 2 * SECOND_NS:
            return True
        return max(status.device_util_pct.values(), default=0.0) > 50.0

    def stalled_ns(self, now_ns: int, status: Status) -> int | None:
        """Return for how long nothing has progressed although work is asked for, ns; None where
        it progresses, none is asked for, or no progress was ever seen.
        """
        if self.progress_ns is None or not self.has_demand(now_ns, status):
            return None
        return now_ns - self.progress_ns

    def value(self, quantity: str, now_ns: int, status: Status) -> float | None:
        """Return a quantity of ``trigger_grammar.QUANTITIES`` in its unit, None where unknown."""
        return _READERS[quantity](self, now_ns, status)

    def _gauge(self, name: str, now_ns: int) -> float | None:
        """Sum over the engines that told it lately; of the share of the cache, the largest."""
        told = [engine.gauges.get(name, (0, 0.0)) for engine in self._engines.values()]
        fresh = [value for time_ns, value in told if time_ns and now_ns - time_ns < STALE_NS]
        if not fresh:
            return None
        return max(fresh) if name == "kv_usage" else sum(fresh)

    def _percentile(self, name: str, q: float) -> float | None:
        """Percentile of the last minute of the engine where it is largest, s."""
        told = [engine.percentile(name, q) for engine in self._engines.values()]
        return max((value for value in told if value is not None), default=None)

    def _slope(self) -> float | None:
        """Growth of resident memory in bytes per hour, by least squares."""
        if len(self._memory) < 3 or self._memory[-1][0] - self._memory[0][0] < SLOPE_LEAST_NS:
            return None
        time = np.array([time_ns for time_ns, _ in self._memory], dtype=float) / 3600e9
        value = np.array([rss for _, rss in self._memory])
        time -= time.mean()
        return float((time * (value - value.mean())).sum() / (time * time).sum())


def _newest(values: dict[int, tuple[int, float]], now_ns: int) -> list[float]:
    return [value for time_ns, value in values.values() if now_ns - time_ns < STALE_NS]


def _seconds(value_ns: int | None, n: int, least: int) -> float | None:
    return value_ns / 1e9 if value_ns is not None and n >= least else None


def _kv_usage(readings: Readings, now_ns: int, _: Status) -> float | None:
    value = readings._gauge("kv_usage", now_ns)
    return None if value is None else 100.0 * value


_READERS: dict[str, Callable[[Readings, int, Status], float | None]] = {
    "launch p50": lambda _, __, status: _seconds(status.launch_p50_ns, status.n_launches, 1),
    "launch p99": lambda _, __, status: _seconds(status.launch_p99_ns, status.n_launches, 100),
    "calls/s": lambda _, __, status: status.calls_per_s,
    "tokens/s": lambda _, __, status: status.tokens_per_s,
    "ttft p50": lambda readings, _, __: readings._percentile("ttft_seconds", 0.5),
    "ttft p95": lambda readings, _, __: readings._percentile("ttft_seconds", 0.95),
    "inter-token p50": lambda readings, _, __: readings._percentile("inter_token_seconds", 0.5),
    "inter-token p99": lambda readings, _, __: readings._percentile("inter_token_seconds", 0.99),
    "requests running": lambda readings, now, _: readings._gauge("requests_running", now),
    "requests waiting": lambda readings, now, _: readings._gauge("requests_waiting", now),
    "kv usage": _kv_usage,
    "gpu util": lambda _, __, status: max(status.device_util_pct.values(), default=None),
    "gpu power": lambda readings, now, _: max(_newest(readings._power, now), default=None),
    "rss": lambda readings, now, _: sum(_newest(readings._rss, now)) or None,
    "rss slope": lambda readings, _, __: readings._slope(),
}
