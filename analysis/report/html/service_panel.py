"""The panel of the service: requests, tokens, latencies and the KV cache, as the engine tells."""

from __future__ import annotations

import numpy as np

from analysis import engine as words
from analysis.engine import EngineSeries
from analysis.facts import Facts
from analysis.report.html.panel import N_BUCKETS, Chart, Panel, Scale, how_to_record

_SECOND = 1_000_000_000


def service_panel(facts: Facts, scale: Scale) -> Panel:
    """Return the panel of the inference engine and of the canary's requests."""
    panel = Panel(
        "service", "Service", "What the engine says of itself, at the times it was asked."
    )
    engine = facts.engine
    if engine is None:
        missing = how_to_record(facts.session, "engine_sample", "engine")
        panel.missing.append(f"{missing} --engine http://HOST:PORT/metrics")
    else:
        _add_engine(panel, engine, scale)
    _add_requests(panel, facts, scale)
    return panel


def _add_engine(panel: Panel, engine: EngineSeries, scale: Scale) -> None:
    requests = Chart("Requests", "requests", style="step")
    for metric, name in ((words.RUNNING, "running"), (words.WAITING, "waiting")):
        gauge = engine.gauge(metric)
        if gauge is not None:
            requests.add(scale, name, gauge.time, gauge.value)
    panel.keep(requests, "The engine exposes no number of requests.")
    edges = scale.edges(N_BUCKETS, _SECOND)
    width_s = np.diff(edges) / 1e9
    tokens = Chart("Tokens", "tokens/s", style="step")
    for metric, name in ((words.GENERATION_TOKENS, "generated"), (words.PROMPT_TOKENS, "prompt")):
        counter = engine.counter(metric)
        if counter is not None and len(counter.time) > 1:
            tokens.add_windows(scale, name, edges, counter.between(edges) / width_s)
    panel.keep(tokens, "The engine exposes no counters of tokens.")
    latency = Chart("Latency, mean", "ms", style="step")
    names = ((words.TTFT, "first token"), (words.INTER_TOKEN, "between tokens"))
    for metric, name in (*names, (words.QUEUE, "in the queue")):
        mean = engine.mean(metric, edges)
        if mean is not None and np.isfinite(mean).any():
            latency.add_windows(scale, name, edges, 1e3 * mean)
    panel.keep(latency, "The engine exposes no latencies (TTFT, time between tokens).")
    cache = Chart("KV cache in use", "%", top=100.0)
    usage = engine.gauge(words.KV_USAGE)
    if usage is not None:
        cache.add(scale, "in use", usage.time, 100 * usage.value)
    panel.keep(cache, "The engine exposes no use of its KV cache.")
    evicted = engine.counter(words.PREEMPTIONS)
    if evicted is not None and len(evicted.time) > 1 and evicted.increase().any():
        chart = Chart("Preemptions", "1/s", style="step")
        chart.add_windows(scale, "preempted", edges, evicted.between(edges) / width_s)
        panel.charts.append(chart)


def _add_requests(panel: Panel, facts: Facts, scale: Scale) -> None:
    """Time to first token of each canary or logged request."""
    if not facts.session.has("request"):
        return
    rows = facts.session.table("request", columns=["start_ns", "ttft_ns", "source"]).to_pandas()
    rows = rows[rows["ttft_ns"].notna()]
    chart = Chart("Time to first token, request by request", "ms", style="points")
    for source, own in rows.groupby("source"):
        time = own["start_ns"].to_numpy(dtype=np.int64)
        chart.add(scale, str(source), time, own["ttft_ns"].to_numpy(dtype=float) / 1e6)
    panel.keep(chart, "")
