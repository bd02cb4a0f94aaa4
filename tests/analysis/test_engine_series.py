"""Series of several engines added up."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.engine import GENERATION_TOKENS, KV_USAGE, RUNNING, STALE_NS, EngineSeries

S = 1_000_000_000


def rows_of(endpoint: str, seconds: range, metric: str, kind: str, value: float) -> list[dict]:
    return [
        {
            "time_ns": second * S,
            "endpoint": endpoint,
            "metric": metric,
            "labels": None,
            "kind": kind,
            "upper_bound": None,
            "value": value * (second if kind == "counter" else 1),
            "is_lagging": False,
        }
        for second in seconds
    ]


def test_a_gauge_of_an_engine_that_is_told_no_more_counts_no_more() -> None:
    """The first one ended in the middle with ten requests, the other goes on with one."""
    rows = []
    for metric, kind, first, second in (
        (RUNNING, "gauge", 10, 1),
        (KV_USAGE, "gauge", 0.9, 0.1),
        (GENERATION_TOKENS, "counter", 100, 5),
    ):
        rows += rows_of("a", range(50), metric, kind, first)
        rows += rows_of("b", range(100), metric, kind, second)
    engine = EngineSeries(pd.DataFrame(rows))
    running, usage = engine.gauge(RUNNING), engine.gauge(KV_USAGE)
    tokens = engine.counter(GENERATION_TOKENS)
    assert running is not None and usage is not None and tokens is not None
    last = 49 + STALE_NS // S
    assert running.value[: last + 1].tolist() == [11.0] * (last + 1)
    assert running.value[last + 1 :].tolist() == [1.0] * (99 - last)
    assert usage.value[-1] == 0.1
    assert tokens.value[-1] == 49 * 100 + 99 * 5
    assert np.all(tokens.increase()[51:] == 5)


def test_engines_that_are_seldom_scraped_are_not_stale_in_between() -> None:
    rows = rows_of("a", range(0, 300, 30), RUNNING, "gauge", 2)
    rows += rows_of("b", range(300), RUNNING, "gauge", 1)
    running = EngineSeries(pd.DataFrame(rows)).gauge(RUNNING)
    assert running is not None
    assert set(running.value.tolist()) == {3.0}
