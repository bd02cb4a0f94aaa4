"""Rates of tokens from scrape to scrape, as the analysis of prompts reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import engine as words
from analysis.engine import EngineSeries, gauge_at

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

#: Windows in which at least this share of the usual tokens comes tell what undisturbed decodes do.
GOOD = 0.75
#: Windows that a reference level needs.
N_WINDOWS = 3
#: Scrapes closer than this are taken together, ns.
_WINDOW_NS = 900_000_000


@dataclass(frozen=True)
class Tokens:
    """Rates per window from the engine: tokens/s, requests, seconds."""

    edges: Ints
    prompt: Floats
    generated: Floats
    running: Floats
    gap_seconds: Floats | None
    n_gaps: Floats
    preempted: Floats

    @property
    def seconds(self) -> Floats:
        """Length of each window in s."""
        return np.diff(self.edges) / 1e9

    @property
    def speed(self) -> Floats:
        """Tokens/s of one request in each window."""
        result: Floats = self.generated / np.maximum(self.running, 1.0)
        return result

    def between(self, windows: Flags) -> tuple[float, int] | None:
        """Mean time between tokens over some windows in s, and their tokens."""
        if self.gap_seconds is None:
            return None
        known = windows & np.isfinite(self.gap_seconds) & np.isfinite(self.n_gaps)
        n = float(self.n_gaps[known].sum())
        return (float(self.gap_seconds[known].sum()) / n, int(n)) if n > 0 else None


def load_tokens(engine: EngineSeries) -> Tokens | None:
    """Return the rates from scrape to scrape, None where the engine does not tell them in time."""
    prompt = engine.counter(words.PROMPT_TOKENS)
    generated = engine.counter(words.GENERATION_TOKENS)
    running = engine.gauge(words.RUNNING)
    if prompt is None or generated is None or running is None or generated.is_lagging:
        return None
    if len(engine.time) < N_WINDOWS + 2:
        return None
    # Counters are exact at the scrapes: windows run from scrape to scrape.
    index = (engine.time - engine.time[0]) // _WINDOW_NS
    edges = engine.time[np.flatnonzero(np.diff(index, prepend=-1) > 0)]
    if len(edges) < N_WINDOWS + 1:
        return None
    seconds = np.diff(edges) / 1e9
    preempted = engine.counter(words.PREEMPTIONS)
    gaps = engine.series(words.INTER_TOKEN, "sum")
    n_gaps = engine.series(words.INTER_TOKEN, "count")
    return Tokens(
        edges,
        prompt.between(edges) / seconds,
        generated.between(edges) / seconds,
        np.maximum(gauge_at(running, edges[1:]), gauge_at(running, edges[:-1])),
        None if gaps is None or n_gaps is None else gaps.between(edges),
        np.zeros(len(seconds)) if n_gaps is None else n_gaps.between(edges),
        np.zeros(len(seconds)) if preempted is None else preempted.between(edges),
    )


def after(windows: Flags) -> Flags:
    """Return the windows that follow one of those."""
    return np.append(False, windows[:-1])


def before(windows: Flags) -> Flags:
    """Return the windows before one of those."""
    return np.append(windows[1:], False)
