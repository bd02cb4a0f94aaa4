"""A tail of first tokens: one request in a hundred waits many times as long as nine in ten."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis import engine as words
from analysis.engine import EngineSeries

#: The 99th percentile of the time to first token against the 90th from which it is a tail: requests
#: of one service differ less in length.
TAIL = 5.0
#: Samples that a 99th percentile needs to be more than a few of the largest.
N_P99 = 300


@dataclass(frozen=True)
class FirstTail:
    """Percentiles of the time to first token, s, and of how many requests."""

    p90: float
    p99: float
    n: int


def late_first_tokens(engine: EngineSeries) -> FirstTail | None:
    """Return the tail of the times to first token of a recording, None where there is none or too
    few requests tell.
    """
    whole = np.array([engine.time[0], engine.time[-1]], dtype=np.int64)
    told = engine.buckets(words.TTFT, whole)
    if told is None:
        return None
    p90, p99 = (float(told.quantile(q, N_P99)[0]) for q in (0.9, 0.99))
    if not p90 > 0 or not p99 >= TAIL * p90:
        return None
    return FirstTail(p90, p99, round(float(told.counts.sum())))
