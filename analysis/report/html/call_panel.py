"""The panel of the CUDA calls: launches a second, their latency, and time inside syncs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis import intervals, quantiles
from analysis.calls import Calls
from analysis.facts import Facts
from analysis.long_series import launch_lengths
from analysis.report.html.panel import N_BUCKETS, Chart, Ints, Panel, Scale, how_to_record
from analysis.stuck import is_still_open
from analysis.timeline import Session

#: A window must hold some calls to have a percentile.
_SHORTEST_NS = 100_000_000
#: Kinds of launches and what they are called.
_LAUNCHES = (("launch", "kernels"), ("graph_launch", "graphs"))


def call_panel(facts: Facts, scale: Scale) -> Panel:
    """Return the panel of the calls of all processes."""
    panel = Panel(
        "calls",
        "Calls",
        "A long launch alone proves nothing: first uses and full queues are long in health.",
    )
    rate = Chart("Launches", "1/s", style="step")
    latency = Chart("Launch latency", "µs", style="step", note="by nearest rank")
    waiting = Chart("Threads inside a sync", "threads", style="step")
    opened = _open_syncs(facts)
    if facts.session.has("call_second"):
        _add_summaries(facts.session, opened, scale, rate, latency, waiting)
        panel.missing.append(
            "Single calls were kept for parts of this recording only; these are its exact counts."
        )
    elif facts.calls is not None:
        _add_calls(facts.calls, opened, scale, rate, latency, waiting)
    else:
        panel.missing.append(how_to_record(facts.session, "cuda_call", "cuda"))
        return panel
    panel.keep(rate, "No launch was recorded.")
    panel.keep(latency, "")
    panel.keep(waiting, "No sync was recorded.")
    return panel


def _open_syncs(facts: Facts) -> Ints:
    """When threads were inside syncs and blocking copies that did not return, as ``(n, 2)`` ns:
    until the end, or the last snapshot of a process that ended before.
    """
    rows = [
        (int(row["start_ns"]), facts.end_ns if is_still_open(facts, row) else int(row["time_ns"]))
        for row in facts.open_calls
        if not row["is_doubtful"]
        and (row["kind"] == "sync" or (row["kind"] == "copy" and "Async" not in row["function"]))
    ]
    return np.array(rows, dtype=np.int64).reshape(-1, 2)


def _add_calls(
    calls: Calls, opened: Ints, scale: Scale, rate: Chart, latency: Chart, waiting: Chart
) -> None:
    """Fill the charts from single calls, and syncs that did not return."""
    edges = scale.edges(N_BUCKETS, _SHORTEST_NS)
    width_ns = np.diff(edges)
    cuts = np.searchsorted(calls.start, edges)
    for kind, name in _LAUNCHES:
        count = np.diff(np.searchsorted(calls.start[calls.is_kind(kind)], edges))
        if count.any():
            rate.add_windows(scale, name, edges, 1e9 * count / width_ns)
    is_launch = calls.is_kind("launch", "graph_launch")
    for name, values in _latencies(calls, is_launch & calls.has_return, cuts).items():
        if np.isfinite(values).any():
            latency.add_windows(scale, name, edges, values)
    spans = np.concatenate((intervals.make(calls.start, calls.end)[calls.is_sync], opened))
    if len(spans):
        waiting.add_windows(scale, "waiting", edges, intervals.weight(spans, edges) / width_ns)


def _add_summaries(
    session: Session, opened: Ints, scale: Scale, rate: Chart, latency: Chart, waiting: Chart
) -> None:
    """Fill the charts from the counts of each second and the histograms of a long recording, and
    syncs that did not return.
    """
    edges = scale.edges(N_BUCKETS, 1_000_000_000)
    width_ns = np.diff(edges)
    kinds = ("launch", "graph_launch", "sync")
    totals = {kind: np.zeros(len(width_ns)) for kind in kinds}

    def start_over() -> None:
        for total in totals.values():
            total.fill(0)

    def add(part: pa.Table) -> None:
        for kind, total in totals.items():
            rows = part.filter(pc.and_(pc.equal(part["kind"], kind), pc.equal(part["depth"], 0)))
            column = rows["total_ns" if kind == "sync" else "n_calls"]
            value = pc.fill_null(column, 0).to_numpy().astype(float)
            at = np.searchsorted(edges, rows["start_ns"].to_numpy(), side="right") - 1
            np.add.at(total, np.clip(at, 0, len(total) - 1), value)

    columns = ("start_ns", "kind", "depth", "n_calls", "total_ns")
    session.collect("call_second", columns, add, start_over=start_over)
    for kind, name in _LAUNCHES:
        if totals[kind].any():
            rate.add_windows(scale, name, edges, 1e9 * totals[kind] / width_ns)
    inside = totals["sync"] + intervals.weight(opened, edges)
    if inside.any():
        waiting.add_windows(scale, "waiting", edges, inside / width_ns)
    spans = scale.edges(N_BUCKETS, 10_000_000_000)
    lengths = launch_lengths(session, spans)
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        found = [lengths.quantile(index, q) if lengths else None for index in range(len(spans) - 1)]
        values = np.array([np.nan if item is None else item[0] / 1e3 for item in found])
        if np.isfinite(values).any():
            latency.add_windows(scale, name, spans, values)


def _latencies(calls: Calls, mask: np.ndarray, cuts: np.ndarray) -> dict[str, np.ndarray]:
    """Median, 99th percentile and maximum in µs of the launches of each window, NaN without any."""
    n = len(cuts) - 1
    result = {name: np.full(n, np.nan) for name in ("p50", "p99", "max")}
    for index in range(n):
        part = slice(int(cuts[index]), int(cuts[index + 1]))
        own = calls.duration[part][mask[part]]
        if len(own) == 0:
            continue
        for name, q in (("p50", 0.5), ("p99", 0.99)):
            found = quantiles.quantile(own, q)
            if found is not None and not (name == "p99" and found.is_maximum):
                result[name][index] = found.value / 1e3
        result["max"][index] = own.max() / 1e3
    return result
