"""Metrics of an inference engine as series over time: rates, gauges, means; resets handled.

Series of several engines or endpoints are added up (gauges and counters), on the scrapes of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analysis import intervals
from analysis.timeline import Session

if TYPE_CHECKING:
    import pandas as pd

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Words of the common vocabulary (``engine_sample.metric``) that are read here.
RUNNING = "requests_running"
WAITING = "requests_waiting"
PROMPT_TOKENS = "prompt_tokens"
GENERATION_TOKENS = "generation_tokens"
INTER_TOKEN = "inter_token_seconds"
ITERATION_TOKENS = "iteration_tokens"
PREEMPTIONS = "preemptions"
KV_USAGE = "kv_usage"
KV_POOL = "kv_pool_tokens"
KV_EVICTED = "kv_evicted_tokens"
FINISHED = "requests_finished"
FAILED = "requests_failed"
RECEIVED = "requests_received"
LIMIT = "requests_max"
QUEUE = "queue_seconds"
TTFT = "ttft_seconds"
E2E = "e2e_seconds"
PREFILL_SECONDS = "prefill_seconds"
PREFILL_TOKENS = "prefill_computed_tokens"
REQUEST_PROMPT = "request_prompt_tokens"
REQUEST_ANSWER = "request_generation_tokens"
REQUEST_MOST = "request_max_tokens"
REQUEST_N = "request_n"
WAITING_BY_REASON = "requests_waiting_by_reason"
DRAFTED = "drafted_tokens"
ACCEPTED = "accepted_tokens"
ADAPTERS_RUNNING = "adapters_running"
ADAPTERS_WAITING = "adapters_waiting"

#: Age of a scrape at which a gauge of one of several engines counts no more: it may have ended.
STALE_NS = 10_000_000_000

#: Histograms whose buckets are read, so that a percentile of some windows can be told.
WITH_BUCKETS = (INTER_TOKEN, TTFT, E2E)


@dataclass(frozen=True)
class Series:
    """One metric at each scrape: ``time`` in ns, ``value``; ``is_lagging`` moves at finish only."""

    time: Ints
    value: Floats
    is_lagging: bool = False

    def increase(self) -> Floats:
        """Return how much a cumulative value grew up to each scrape since the one before it; 0 at
        the first and where it fell (a restart).
        """
        step = np.diff(self.value, prepend=self.value[:1])
        result: Floats = np.where(step > 0, step, 0.0)
        return result

    def between(self, edges: Ints) -> Floats:
        """Return the increase within each window, a scrape's spread evenly since the one before.

        NaN for windows that no two scrapes enclose.
        """
        total = np.cumsum(self.increase())
        at = np.interp(edges, self.time, total)
        is_known = (edges >= self.time[0]) & (edges <= self.time[-1])
        result: Floats = np.where(is_known[1:] & is_known[:-1], np.diff(at), np.nan)
        return result


@dataclass(frozen=True)
class Buckets:
    """Samples of a histogram: ``counts[window, bucket]``, between ``bounds[bucket]`` and the next.

    Bounds are in the metric's unit, from 0 to infinity.
    """

    bounds: Floats
    counts: Floats

    def median_bound(self, chosen: Mask) -> tuple[float, int] | None:
        """Return what half of the samples in the chosen windows did not exceed, and how many they
        were; None without samples or where the upper half has no bound.
        """
        total = np.cumsum(self.counts[chosen].sum(axis=0))
        if len(total) == 0 or total[-1] < 1:
            return None
        bound = float(self.bounds[1 + np.searchsorted(total, total[-1] / 2)])
        return (bound, int(total[-1])) if np.isfinite(bound) else None

    def quantile(self, q: float, n_least: int) -> Floats:
        """Return a percentile of each window, interpolated within its bucket, NaN with fewer than
        ``n_least`` samples; the lower bound where the bucket has no upper one.
        """
        result = np.full(len(self.counts), np.nan)
        for index, counts in enumerate(self.counts):
            total = np.cumsum(counts)
            if len(total) == 0 or total[-1] < max(n_least, 1):
                continue
            wanted = q * total[-1]
            at = int(np.searchsorted(total, wanted))
            low, high = self.bounds[at], self.bounds[at + 1]
            before = total[at - 1] if at else 0.0
            part = (wanted - before) / max(counts[at], 1e-9)
            result[index] = low if not np.isfinite(high) else low + part * (high - low)
        return result


class EngineSeries:
    """All series of a session's engine.

    Attributes:
        time: Scrape times in ns, ascending.
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        self._frame = frame
        self.time: Ints = np.unique(frame["time_ns"].to_numpy(dtype=np.int64))
        known = frame[["metric", "kind"]].drop_duplicates()
        self._known = set(zip(known["metric"], known["kind"], strict=True))
        self._series: dict[tuple[str, str], Series] = {}

    def has(self, metric: str, kind: str | None = None) -> bool:
        """Return whether the engine exposes a metric (of that kind)."""
        if kind is None:
            return any(name == metric for name, _kind in self._known)
        return (metric, kind) in self._known

    def series(self, metric: str, kind: str) -> Series | None:
        """Return one metric added up over engines, None where it is not exposed."""
        if not self.has(metric, kind):
            return None
        if (metric, kind) not in self._series:
            self._series[metric, kind] = self._added_up(metric, kind)
        return self._series[metric, kind]

    def _added_up(self, metric: str, kind: str) -> Series:
        rows = self._frame[(self._frame["metric"] == metric) & (self._frame["kind"] == kind)]
        merge = "max" if metric == KV_USAGE else "sum"
        parts = [
            (group["time_ns"].to_numpy(dtype=np.int64), group["value"].to_numpy(dtype=float))
            for _key, group in rows.groupby(["endpoint", "labels"], dropna=False)
        ]
        lag = rows["is_lagging"].fillna(False).to_numpy(dtype=bool)
        is_lagging = bool(lag.any())
        if len(parts) == 1:
            return Series(parts[0][0], parts[0][1], is_lagging)
        # Each part at every scrape of any: its latest value; nothing of what is told no more.
        time = np.unique(np.concatenate([part[0] for part in parts]))
        stack = np.stack([_latest(part[0], part[1], time) for part in parts])
        if kind == "gauge":
            for row, (told, _value) in zip(stack, parts, strict=True):
                row[_is_stale(told, time)] = 0.0
        value = stack.max(axis=0) if merge == "max" else stack.sum(axis=0)
        return Series(time, value, is_lagging)

    def gauge(self, metric: str) -> Series | None:
        """Return a gauge, None where it is not exposed."""
        return self.series(metric, "gauge")

    def counter(self, metric: str) -> Series | None:
        """Return a counter, None where it is not exposed."""
        return self.series(metric, "counter")

    def labelled(self, metric: str, kind: str) -> list[tuple[str, Series]]:
        """Return one metric by its labels (JSON as recorded), added up over endpoints."""
        rows = self._frame[(self._frame["metric"] == metric) & (self._frame["kind"] == kind)]
        result = []
        for labels, own in rows.groupby(rows["labels"].fillna("")):
            part = EngineSeries(own).series(metric, kind)
            if part is not None:
                result.append((str(labels), part))
        return result

    def separate(self, metric: str, kind: str) -> dict[str, Series]:
        """Return one metric by engine: its endpoint, with its labels where one has several."""
        rows = self._frame[(self._frame["metric"] == metric) & (self._frame["kind"] == kind)]
        result = {}
        for endpoint, own in rows.groupby("endpoint"):
            several = own["labels"].nunique(dropna=False) > 1
            for labels, part in own.groupby(own["labels"].fillna("")):
                name = f"{endpoint} {labels}" if several else str(endpoint)
                result[name] = Series(
                    part["time_ns"].to_numpy(dtype=np.int64), part["value"].to_numpy(dtype=float)
                )
        return result

    @cached_property
    def demand(self) -> Ints | None:
        """Disjoint intervals in which a request ran or waited; None where neither is exposed.

        A gauge holds from half-way since the scrape before it to half-way to the next; tokens
        that came tell of a request too.
        """
        total: Floats | None = None
        time = self.time
        for metric in (RUNNING, WAITING):
            gauge = self.gauge(metric)
            if gauge is not None:
                values = _latest(gauge.time, gauge.value, time)
                total = values if total is None else total + values
        if total is None or len(time) == 0:
            return None
        middle = (time[1:] + time[:-1]) // 2
        begin = np.concatenate((time[:1], middle))
        end = np.concatenate((middle, time[-1:] + 1))
        parts = [intervals.make(begin[total > 0], end[total > 0])]
        # A request that began and ended between two scrapes shows in the tokens only.
        for metric in (PROMPT_TOKENS, GENERATION_TOKENS):
            tokens = self.counter(metric)
            if tokens is not None and len(tokens.time) > 1:
                grew = tokens.increase()[1:] > 0
                parts.append(intervals.make(tokens.time[:-1][grew], tokens.time[1:][grew]))
        return intervals.union(np.concatenate(parts))

    @cached_property
    def certain_demand(self) -> Ints | None:
        """Disjoint intervals between scrapes at both of which a request ran or waited; None where
        neither is exposed.
        """
        gauges = [item for word in (RUNNING, WAITING) if (item := self.gauge(word)) is not None]
        if not gauges or len(self.time) == 0:
            return None
        total = np.sum([_latest(item.time, item.value, self.time) for item in gauges], axis=0)
        both = (total[1:] > 0) & (total[:-1] > 0)
        return intervals.union(intervals.make(self.time[:-1][both], self.time[1:][both]))

    def buckets(self, metric: str, edges: Ints) -> Buckets | None:
        """Return the samples of a histogram by window and bucket, None where its buckets are not
        in :data:`WITH_BUCKETS` or were not recorded.
        """
        rows = self._frame[(self._frame["metric"] == metric) & (self._frame["kind"] == "bucket")]
        rows = rows[rows["upper_bound"].notna()]
        bounds: Floats = np.unique(rows["upper_bound"].to_numpy(dtype=float))
        if len(bounds) == 0:
            return None
        below = np.zeros((len(bounds), len(edges) - 1))
        for _key, part in rows.groupby(["endpoint", "labels", "upper_bound"], dropna=False):
            series = Series(
                part["time_ns"].to_numpy(dtype=np.int64), part["value"].to_numpy(dtype=float)
            )
            at = np.searchsorted(bounds, part["upper_bound"].iloc[0])
            below[at] += np.nan_to_num(series.between(edges))
        counts = np.maximum(np.diff(below, axis=0, prepend=0.0), 0.0)
        return Buckets(np.concatenate(([0.0], bounds)), counts.T)

    def mean(self, metric: str, edges: Ints) -> Floats | None:
        """Return the mean of a histogram's samples in each window, NaN without samples."""
        total, count = self.series(metric, "sum"), self.series(metric, "count")
        if total is None or count is None:
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            n = count.between(edges)
            result: Floats = np.where(n > 0, total.between(edges) / n, np.nan)
        return result


def _latest(time: Ints, value: Floats, points: Ints) -> Floats:
    at = np.searchsorted(time, points, side="right") - 1
    result: Floats = np.where(at >= 0, value[np.maximum(at, 0)], 0.0)
    return result


def _is_stale(time: Ints, points: Ints) -> Mask:
    """Where the last scrape is so old that nothing is known of the gauge any more."""
    usual = int(np.median(np.diff(time))) if len(time) > 1 else 0
    at = np.searchsorted(time, points, side="right") - 1
    result: Mask = points - time[np.maximum(at, 0)] > max(STALE_NS, 5 * usual)
    return result


def gauge_at(series: Series, points: Ints) -> Floats:
    """Return the latest value of a gauge at each point, 0 before its first scrape."""
    return _latest(series.time, series.value, points)


def load_engine(session: Session) -> EngineSeries | None:
    """Return the engine's series of a session, None where no engine was scraped."""
    if not session.has("engine_sample"):
        return None
    columns = (
        *("time_ns", "endpoint", "metric", "labels", "kind", "upper_bound", "value"),
        "is_lagging",
    )
    rows = session.table("engine_sample", columns=columns)
    wanted = (
        RUNNING,
        WAITING,
        PROMPT_TOKENS,
        GENERATION_TOKENS,
        INTER_TOKEN,
        ITERATION_TOKENS,
        PREEMPTIONS,
        KV_USAGE,
        KV_POOL,
        KV_EVICTED,
        FINISHED,
        FAILED,
        RECEIVED,
        LIMIT,
        QUEUE,
        TTFT,
        E2E,
        PREFILL_SECONDS,
        PREFILL_TOKENS,
        REQUEST_PROMPT,
        REQUEST_ANSWER,
        REQUEST_MOST,
        REQUEST_N,
        WAITING_BY_REASON,
        DRAFTED,
        ACCEPTED,
        ADAPTERS_RUNNING,
        ADAPTERS_WAITING,
    )
    mask = pc.is_in(rows["metric"], value_set=pa.array(wanted))
    mask = pc.and_(mask, pc.is_valid(rows["value"]))
    is_bucket = pc.and_(
        pc.equal(rows["kind"], "bucket"),
        pc.invert(pc.is_in(rows["metric"], pa.array(WITH_BUCKETS))),
    )
    mask = pc.and_(mask, pc.invert(is_bucket))
    frame = rows.filter(mask).to_pandas()
    if frame.empty:
        return None
    frame = frame[np.isfinite(frame["value"].to_numpy(dtype=float))]
    return EngineSeries(frame) if len(frame) else None
