"""The panel of the CUDA calls: launches a second, their latency, and time inside syncs."""

from __future__ import annotations

import numpy as np

from analysis import intervals, quantiles
from analysis.calls import Calls
from analysis.facts import Facts
from analysis.report.html.panel import N_BUCKETS, Chart, Panel, Scale, how_to_record

#: A window must hold some calls to have a percentile.
_SHORTEST_NS = 100_000_000


def call_panel(facts: Facts, scale: Scale) -> Panel:
    """Return the panel of the calls of all processes."""
    panel = Panel(
        "calls",
        "Calls",
        "A long launch alone proves nothing: first uses and full queues are long in health.",
    )
    calls = facts.calls
    if calls is None:
        panel.missing.append(how_to_record(facts.session, "cuda_call", "cuda"))
        return panel
    edges = scale.edges(N_BUCKETS, _SHORTEST_NS)
    width_s = np.diff(edges) / 1e9
    cuts = np.searchsorted(calls.start, edges)
    is_launch = calls.is_kind("launch", "graph_launch")
    rate = Chart("Launches", "1/s", style="step")
    for kind, name in (("launch", "kernels"), ("graph_launch", "graphs")):
        own = calls.start[calls.is_kind(kind)]
        count = np.diff(np.searchsorted(own, edges))
        if count.any():
            rate.add_windows(scale, name, edges, count / width_s)
    panel.keep(rate, "No launch was recorded.")
    latency = Chart("Launch latency", "µs", style="step", note="logarithmic; by nearest rank")
    for name, values in _latencies(calls, is_launch & calls.has_return, cuts).items():
        if np.isfinite(values).any():
            latency.add_windows(scale, name, edges, values)
    panel.keep(latency, "")
    spans = intervals.make(calls.start, calls.end)[calls.is_sync]
    waiting = Chart("Threads inside a sync", "threads", style="step")
    if len(spans):
        waiting.add_windows(
            scale, "waiting", edges, intervals.weight(spans, edges) / (1e9 * width_s)
        )
    panel.keep(waiting, "No sync was recorded.")
    return panel


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
