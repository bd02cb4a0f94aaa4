"""The figures by which two recordings are compared, each from sums over blocks of one recording."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from analysis import engine as words
from analysis import intervals
from analysis.budget import Budget
from analysis.calls import Calls
from analysis.engine import EngineSeries, Series
from analysis.facts import Facts
from analysis.resampling import Figure, percentile, ratio

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Samples without which a median or a high percentile is not compared.
LEAST_SAMPLES = {0.5: 30, 0.95: 100, 0.99: 300}
#: Functions whose latency is compared, the most called first.
MOST_FUNCTIONS = 8
#: Width of the bins of a latency histogram: a hundredth.
_BIN = np.log(1.01)
#: Columns of gpu_sample, what they are called, their unit, its divisor, whether a change is told
#: relative to the value, and what is better.
_DEVICE_COLUMNS = (
    ("util_pct", "utilisation", "%", 1, False, ""),
    ("power_mw", "power", "W", 1000, True, ""),
    ("sm_clock_mhz", "SM clock", "MHz", 1, True, "higher"),
    ("sm_active_pct", "SM active", "%", 1, False, ""),
    ("dram_active_pct", "DRAM active", "%", 1, False, ""),
)
#: States of the launching thread that are compared, and what they are called.
_THREAD_STATES = {
    "ready": "waiting for a CPU",
    "asleep": "asleep outside of syncs",
    "blocked": "in uninterruptible sleep",
}


@dataclass(frozen=True)
class Measure:
    """What a figure is.

    Attributes:
        group: load, service, launches, scheduling, device, process or budget.
        name: What is measured.
        unit: Its unit; empty for counts.
        better: ``higher`` or ``lower``; empty where neither is.
        is_relative: Differences are told relative to the value, else in its unit.
        device: GPU index, None where it is about no device.
        state: State and reason of the budget, empty elsewhere.
    """

    group: str
    name: str
    unit: str = ""
    better: str = ""
    is_relative: bool = True
    device: int | None = None
    state: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Measured:
    """One figure of one recording, and the samples behind it."""

    figure: Figure
    n: int


Figures = dict[Measure, Measured]


def figures(facts: Facts, edges: Ints) -> Figures:
    """Return every figure that a recording has, but for the budget.

    Args:
        facts: The recording.
        edges: Edges of its blocks, ns.
    """
    found: Figures = {}
    for part in (_engine, _requests, _latencies, _scheduling, _devices, _processes):
        found.update(part(facts, edges))
    return found


def budget_figures(budgets: list[Budget], keys: dict[int | None, set[tuple[str, str]]]) -> Figures:
    """Return the shares of the budget of each device, in %, by (state, reason) in ``keys``."""
    found: Figures = {}
    for budget in budgets:
        lengths = np.diff(budget.edges).astype(float)
        nothing = np.zeros(len(lengths), dtype=np.int64)
        for state, reason in sorted(keys.get(budget.device, set())):
            spent = 100.0 * budget.spent.get((state, reason), nothing).astype(np.float64)
            measure = Measure(
                *("budget", f"{state}: {reason}", "%"),
                is_relative=False,
                device=budget.device,
                state=(state, reason),
            )
            found[measure] = Measured(ratio(spent, lengths), len(lengths))
    return found


def _engine(facts: Facts, edges: Ints) -> Iterator[tuple[Measure, Measured]]:
    engine = facts.engine
    if engine is None:
        return
    rates = {
        "tokens generated": (words.GENERATION_TOKENS, "service", "higher", "1/s"),
        "prompt tokens": (words.PROMPT_TOKENS, "service", "", "1/s"),
        "requests finished": (words.FINISHED, "service", "higher", "1/s"),
        "requests received": (words.RECEIVED, "load", "", "1/s"),
        "preemptions": (words.PREEMPTIONS, "service", "lower", "1/s"),
    }
    grown: dict[str, Floats] = {}
    for name, (metric, group, better, unit) in rates.items():
        counter = engine.counter(metric)
        if counter is None or len(counter.time) < 2:
            continue
        increase = counter.between(edges)
        grown[metric] = np.nan_to_num(increase)
        seconds = np.where(np.isfinite(increase), np.diff(edges) / 1e9, 0.0)
        is_relative = metric != words.PREEMPTIONS
        measure = Measure(group, name, unit, better, is_relative)
        yield measure, Measured(ratio(grown[metric], seconds), len(counter.time))
    finished = grown.get(words.FINISHED)
    for metric, name in (
        (words.PROMPT_TOKENS, "prompt tokens per request"),
        (words.GENERATION_TOKENS, "tokens generated per request"),
    ):
        if finished is not None and metric in grown and finished.sum() >= 10:
            measured = Measured(ratio(grown[metric], finished), int(finished.sum()))
            yield Measure("load", name, "tokens"), measured
    if not engine.has(words.RECEIVED, "counter"):
        yield from _arrivals(engine, grown.get(words.FINISHED), edges)
    yield from _gauges(engine, edges)
    yield from _histograms(facts, engine, edges)


def _arrivals(
    engine: EngineSeries, finished: Floats | None, edges: Ints
) -> Iterator[tuple[Measure, Measured]]:
    """Requests received, where the engine does not count them: those that finished, and by how
    much the number in the system grew.
    """
    running, waiting = engine.gauge(words.RUNNING), engine.gauge(words.WAITING)
    if finished is None or running is None or waiting is None:
        return
    inside = words.gauge_at(running, edges) + words.gauge_at(waiting, edges)
    came = finished + np.diff(inside)
    came[edges[:-1] < engine.time[0]] = 0.0
    seconds = np.where(edges[:-1] >= engine.time[0], np.diff(edges) / 1e9, 0.0)
    measured = Measured(ratio(came, seconds), len(engine.time))
    yield Measure("load", "requests received", "1/s"), measured


def _gauges(engine: EngineSeries, edges: Ints) -> Iterator[tuple[Measure, Measured]]:
    running, waiting = engine.gauge(words.RUNNING), engine.gauge(words.WAITING)
    if running is not None and waiting is not None:
        total = Series(
            engine.time,
            words.gauge_at(running, engine.time) + words.gauge_at(waiting, engine.time),
        )
        yield Measure("load", "requests in the system"), _mean(total.time, total.value, edges)
    if waiting is not None:
        measure = Measure("service", "requests waiting", "", "lower", is_relative=False)
        yield measure, _mean(waiting.time, waiting.value, edges)
    usage = engine.gauge(words.KV_USAGE)
    if usage is not None:
        measure = Measure("service", "KV cache in use", "%", is_relative=False)
        yield measure, _mean(usage.time, 100 * usage.value, edges)


def _histograms(
    facts: Facts, engine: EngineSeries, edges: Ints
) -> Iterator[tuple[Measure, Measured]]:
    buckets = _buckets(facts)
    for metric, name in (
        (words.TTFT, "time to first token"),
        (words.INTER_TOKEN, "time between tokens"),
        (words.QUEUE, "time in the queue"),
    ):
        total, count = engine.series(metric, "sum"), engine.series(metric, "count")
        is_relative = metric != words.QUEUE
        if total is not None and count is not None and len(count.time) > 1:
            n = np.nan_to_num(count.between(edges))
            if n.sum() >= LEAST_SAMPLES[0.5]:
                measure = Measure("service", f"{name}, mean", "s", "lower", is_relative)
                figure = ratio(np.nan_to_num(total.between(edges)), n)
                yield measure, Measured(figure, int(n.sum()))
        rows = buckets[buckets["metric"] == metric]
        counts, bounds = _bucket_counts(rows, edges)
        if counts.sum() >= LEAST_SAMPLES[0.95]:
            measure = Measure("service", f"{name}, p95", "s", "lower", is_relative)
            yield measure, Measured(percentile(counts, bounds, 0.95), int(counts.sum()))


def _buckets(facts: Facts) -> pd.DataFrame:
    """Rows of the histograms that are compared."""
    columns = ("time_ns", "endpoint", "metric", "labels", "kind", "upper_bound", "value")
    rows = facts.session.table("engine_sample", columns=columns)
    wanted = pa.array([words.TTFT, words.INTER_TOKEN, words.QUEUE])
    mask = pc.and_(pc.equal(rows["kind"], "bucket"), pc.is_in(rows["metric"], value_set=wanted))
    mask = pc.and_(mask, pc.and_(pc.is_valid(rows["value"]), pc.is_valid(rows["upper_bound"])))
    frame: pd.DataFrame = rows.filter(mask).to_pandas()
    return frame


def _bucket_counts(rows: pd.DataFrame, edges: Ints) -> tuple[Floats, Floats]:
    """Samples by block and bucket, and the limits of the buckets; empty without any."""
    bounds, total = [0.0], [np.zeros(len(edges) - 1)]
    for bound, group in rows.groupby("upper_bound", sort=True):
        below = np.zeros(len(edges) - 1)
        for _key, part in group.groupby(["endpoint", "labels"], dropna=False):
            series = Series(
                part["time_ns"].to_numpy(dtype=np.int64), part["value"].to_numpy(dtype=float)
            )
            below += np.nan_to_num(series.between(edges))
        bounds.append(float(str(bound)))
        total.append(np.maximum(below, total[-1]))
    if len(bounds) == 1:
        return np.zeros((len(edges) - 1, 1)), np.array([0.0, 0.0])
    return np.diff(np.stack(total, axis=1), axis=1), np.array(bounds)


def _requests(facts: Facts, edges: Ints) -> Iterator[tuple[Measure, Measured]]:
    """Requests as their client saw them, without those of the endpoint that is compared with."""
    if not facts.session.has("request"):
        return
    columns = ("start_ns", "source", "ttft_ns", "duration_ns")
    rows = facts.session.table("request", columns=columns)
    rows = rows.filter(pc.not_equal(rows["source"], "canary_control"))
    for column, name in (("ttft_ns", "first token at the client"), ("duration_ns", "request")):
        own = rows.filter(pc.is_valid(rows[column]))
        start, value = own["start_ns"].to_numpy(), own[column].to_numpy()
        yield from _percentiles(("service", name, "lower"), start, value, edges, (0.5, 0.95))


def _latencies(facts: Facts, edges: Ints) -> Iterator[tuple[Measure, Measured]]:
    calls = facts.calls
    if calls is None:
        return
    seconds: Floats = np.diff(edges) / 1e9
    is_wanted = calls.is_kind("launch", "graph_launch", "sync") & calls.has_return
    code, is_sync = calls.function[is_wanted], calls.is_kind("sync")[is_wanted]
    n_each = np.bincount(code, minlength=len(calls.functions))
    launches = _launches(calls, edges)
    measured = Measured(ratio(launches, seconds), int(launches.sum()))
    yield Measure("launches", "launches", "1/s"), measured
    tokens = facts.engine.counter(words.GENERATION_TOKENS) if facts.engine is not None else None
    if tokens is not None and len(tokens.time) > 1:
        came = tokens.between(edges)
        figure = ratio(np.where(np.isfinite(came), launches, 0.0), np.nan_to_num(came))
        yield Measure("launches", "launches per token generated"), Measured(figure, len(edges) - 1)
    start, duration = calls.start[is_wanted], calls.duration[is_wanted]
    for index in np.argsort(-n_each, kind="stable")[:MOST_FUNCTIONS].tolist():
        own = code == index
        # A long sync is the device at work, and no cost by itself.
        better = "" if is_sync[own].any() else "lower"
        name = calls.functions[index]
        yield from _percentiles(
            ("launches", name, better), start[own], duration[own], edges, (0.5, 0.99)
        )


def _launches(calls: Calls, edges: Ints) -> Floats:
    """Launches in each block."""
    start = calls.start[calls.is_kind("launch", "graph_launch") & ~calls.is_capture]
    return np.diff(np.searchsorted(start, edges)).astype(float)


def _scheduling(facts: Facts, edges: Ints) -> Iterator[tuple[Measure, Measured]]:
    lengths = np.diff(edges).astype(float)
    for device in facts.devices:
        launcher = facts.main_launcher(device)
        if launcher is None or launcher.absences is None or not launcher.has_states:
            continue
        for state, name in _THREAD_STATES.items():
            spent = 100.0 * intervals.coverage(launcher.states[state], edges).astype(np.float64)
            better = "lower" if state == "ready" else ""
            measure = Measure("scheduling", name, "%", better, False, device)
            yield measure, Measured(ratio(spent, lengths), len(launcher.absences))


def _devices(facts: Facts, edges: Ints) -> Iterator[tuple[Measure, Measured]]:
    if facts.gpu is None:
        return
    for device in facts.gpu.devices:
        for column, name, unit, divisor, is_relative, better in _DEVICE_COLUMNS:
            samples = facts.gpu.quantity(device, column)
            if samples is None or len(samples) < LEAST_SAMPLES[0.5]:
                continue
            measure = Measure("device", name, unit, better, is_relative, device)
            yield measure, _mean(samples.end, samples.value / divisor, edges)


def _processes(facts: Facts, edges: Ints) -> Iterator[tuple[Measure, Measured]]:
    if not facts.session.has("process_sample"):
        return
    columns = ["time_ns", "pid", "rss_anon_bytes"]
    rows = facts.session.frame("process_sample", columns=columns).dropna()
    middle = (edges[1:] + edges[:-1]) // 2
    total: Floats = np.zeros(len(middle))
    for _pid, own in rows.groupby("pid"):
        time = own["time_ns"].to_numpy(dtype=np.int64)
        value = own["rss_anon_bytes"].to_numpy(dtype=float)
        total += np.interp(middle, time, value, left=0.0, right=0.0)
    if total.any():
        measure = Measure("process", "memory of the targets", "bytes", "lower")
        yield measure, Measured(ratio(total, np.ones(len(total))), len(rows))


def _mean(time: Ints, value: Floats, edges: Ints) -> Measured:
    """The mean of samples in time."""
    block = np.searchsorted(edges, time, side="right") - 1
    is_in = (block >= 0) & (block < len(edges) - 1)
    block, value = block[is_in], value[is_in]
    total: Floats = np.zeros(len(edges) - 1)
    np.add.at(total, block, value)
    n = np.bincount(block, minlength=len(edges) - 1).astype(float)
    return Measured(ratio(total, n), int(n.sum()))


def _percentiles(
    of: tuple[str, str, str], start: Ints, value: Ints, edges: Ints, shares: tuple[float, ...]
) -> Iterator[tuple[Measure, Measured]]:
    """Percentiles of lengths in ns by when they began; ``of`` is group, name and what is better."""
    group, name, better = of
    block = np.searchsorted(edges, start, side="right") - 1
    is_in = (block >= 0) & (block < len(edges) - 1)
    block, value = block[is_in], value[is_in]
    if len(value) < min(LEAST_SAMPLES.values()):
        return
    place = np.floor(np.log(np.maximum(value, 1)) / _BIN).astype(np.int64)
    first = int(place.min())
    n_bins = int(place.max()) - first + 1
    flat = np.bincount(block * n_bins + place - first, minlength=(len(edges) - 1) * n_bins)
    counts = flat.reshape(len(edges) - 1, n_bins).astype(float)
    limits = np.exp(_BIN * np.arange(first, first + n_bins + 1))
    for share in shares:
        if len(value) >= LEAST_SAMPLES[share]:
            measure = Measure(group, f"{name}, p{100 * share:g}", "ns", better)
            yield measure, Measured(percentile(counts, limits, share), len(value))
