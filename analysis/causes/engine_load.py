"""What scrapes tell of an engine's load between each two: batch, queue, cache, tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import engine as words
from analysis import intervals
from analysis.engine import EngineSeries, Series, gauge_at

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

#: Scrapes closer than this are taken together, ns.
_WINDOW_NS = 900_000_000
#: The cache counts as full from this share on: what is left does not hold a further request.
KV_FULL = 0.9


@dataclass(frozen=True)
class Load:
    """Windows from scrape to scrape; arrays have one value a window, NaN where unknown.

    Attributes:
        edges: Begins of the windows and the end of the last, ns.
        running: Requests in the batch, the larger of both ends.
        waiting: Requests that wait, the smaller of both ends: they waited all the window; 0 where
            that is not exposed.
        generated: Tokens generated.
        prompts: Prompt tokens, counted when a request's first token comes.
        preempted: Requests preempted.
        kv_usage: Share of the cache in use, the larger of both ends; None where not exposed.
        finished: Requests that finished; None where not exposed.
        arrived: Requests that came; None where nothing tells.
        token_seconds: Sum of the times between tokens, s; None where not exposed.
        n_token_gaps: How many of those.
    """

    edges: Ints
    running: Floats
    waiting: Floats
    generated: Floats
    prompts: Floats
    preempted: Floats
    kv_usage: Floats | None
    finished: Floats | None
    arrived: Floats | None
    token_seconds: Floats | None
    n_token_gaps: Floats

    @property
    def length_ns(self) -> Ints:
        """Length of each window, ns."""
        return np.diff(self.edges)

    def spans(self, windows: Flags) -> Ints:
        """Return some windows as disjoint intervals, ns."""
        return intervals.union(intervals.make(self.edges[:-1][windows], self.edges[1:][windows]))

    @property
    def token_gaps(self) -> Floats:
        """Mean time between tokens in each window in s, NaN where none came."""
        if self.token_seconds is None:
            spent, n = self.running * self.length_ns / 1e9, self.generated
        else:
            spent, n = self.token_seconds, self.n_token_gaps
        with np.errstate(divide="ignore", invalid="ignore"):
            gaps: Floats = np.where(n > 0, spent / n, np.nan)
        return gaps

    def token_gap(self, windows: Flags) -> tuple[float, int] | None:
        """Return the mean time between tokens in some windows in s, and how many tokens: as the
        engine tells it, else by the tokens that a running request got.
        """
        if self.token_seconds is None:
            known = windows & np.isfinite(self.generated) & (self.running > 0)
            n = float(self.generated[known].sum())
            spent = float((self.running * self.length_ns / 1e9)[known].sum())
            return (spent / max(n, 1.0), int(n)) if spent > 0 else None
        known = windows & np.isfinite(self.token_seconds) & np.isfinite(self.n_token_gaps)
        n = float(self.n_token_gaps[known].sum())
        return (float(self.token_seconds[known].sum()) / n, int(n)) if n > 0 else None


def load_windows(engine: EngineSeries, n_min: int) -> Load | None:
    """Return the load of an engine, None with fewer than ``n_min`` windows or without a gauge of
    running requests.
    """
    running, waiting = engine.gauge(words.RUNNING), engine.gauge(words.WAITING)
    if running is None or len(engine.time) < n_min + 1:
        return None
    index = (engine.time - engine.time[0]) // _WINDOW_NS
    edges = engine.time[np.flatnonzero(np.diff(index, prepend=-1) > 0)]
    if len(edges) < n_min + 1:
        return None
    unknown = np.full(len(edges) - 1, np.nan)
    kv_usage = engine.gauge(words.KV_USAGE)
    received, finished = engine.counter(words.RECEIVED), engine.counter(words.FINISHED)
    done = None if finished is None else finished.between(edges)
    arrived = None
    if received is not None:
        arrived = received.between(edges)
    elif done is not None and waiting is not None:
        inside = gauge_at(running, edges) + gauge_at(waiting, edges)
        arrived = np.maximum(done + np.diff(inside), 0.0)
    gaps = engine.series(words.INTER_TOKEN, "sum")
    n_gaps = engine.series(words.INTER_TOKEN, "count")
    has_gaps = gaps is not None and n_gaps is not None
    return Load(
        edges=edges,
        running=_ends(running, edges, np.maximum),
        waiting=np.zeros(len(edges) - 1) if waiting is None else _ends(waiting, edges, np.minimum),
        generated=_between(engine.counter(words.GENERATION_TOKENS), edges, unknown),
        prompts=_between(engine.counter(words.PROMPT_TOKENS), edges, unknown),
        preempted=_between(engine.counter(words.PREEMPTIONS), edges, unknown),
        kv_usage=None if kv_usage is None else _ends(kv_usage, edges, np.maximum),
        finished=done,
        arrived=arrived,
        token_seconds=_between(gaps, edges, unknown) if has_gaps else None,
        n_token_gaps=_between(n_gaps, edges, unknown),
    )


def _ends(gauge: Series, edges: Ints, choose: np.ufunc) -> Floats:
    value = gauge_at(gauge, edges)
    result: Floats = choose(value[1:], value[:-1])
    return result


def _between(series: Series | None, edges: Ints, unknown: Floats) -> Floats:
    return unknown if series is None else series.between(edges)
