"""From one moment on, the same load is served slower: something changed within the recording."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import engine as words
from analysis.causes.declaration import Cause, Needs
from analysis.engine import EngineSeries
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

REGRESSION = "regression"

#: Windows that the recording is cut into at most, their least width, and what each side needs.
N_WINDOWS = 120
WINDOW_NS = 2_000_000_000
N_SIDE = 10
#: Speed after against speed before from which it is a change.
SLOWER = 0.8
#: What the speed depends on is alike within this, as a ratio; the cache as a share of its size.
ALIKE = (0.8, 1.25)
ALIKE_KV = 0.15
#: Share of the windows of each side that must lie beyond those of the other.
APART = 0.9


@dataclass(frozen=True)
class _Step:
    """A change of speed: after window ``at``, in tokens per second and running request."""

    at: int
    before: float
    after: float


def find_regression(facts: Facts) -> Finding:
    """Return whether the speed of generation fell at one moment while the load stayed.

    Never more than suspected: what changed is not in the recording.
    """
    finding = Finding(REGRESSION, Status.NOT_FOUND, confidence=0.7)
    engine = facts.engine
    edges = None if engine is None else _edges(engine)
    speed = None if engine is None or edges is None else _speed(engine, edges)
    if engine is None or edges is None or speed is None:
        finding.status = Status.NOT_APPLICABLE
        finding.undecided_because = (
            "the engine's tokens and running requests over some minutes are not in the recording; "
            "compare two recordings with tracer diff"
        )
        return finding
    step = _step(speed)
    if step is None:
        finding.excluded.append(
            Exclusion(REGRESSION, "tokens per running request did not fall at any one moment")
        )
        return finding
    moment = int(edges[step.at])
    share = (1 - step.after / step.before) * (facts.end_ns - moment)
    finding.evidence = [
        Evidence("speed_before", round(step.before, 2), "tokens/s per request", step.at),
        Evidence("speed_after", round(step.after, 2), "tokens/s per request", len(speed) - step.at),
    ]
    other = _what_else_changed(engine, edges, step.at)
    if other:
        finding.excluded.append(Exclusion(REGRESSION, f"{other} as well: the load is another"))
        return finding
    finding.status, finding.confidence = Status.UNDECIDED, 0.5
    finding.start_ns, finding.end_ns = moment, facts.end_ns
    finding.lost_ns = int(min(share, facts.demand_ns))
    finding.lost_share = finding.lost_ns / facts.demand_ns
    second = round((moment - facts.start_ns) / 1e9)
    finding.undecided_because = (
        f"from second {second} on each running request got {step.after:.1f} instead of "
        f"{step.before:.1f} tokens/s at like load; what changed then was not recorded"
    )
    finding.settled_by = f"tracer diff SESSION@0..{second}s SESSION@{second}s..; what was deployed"
    return finding


def _edges(engine: EngineSeries) -> Ints | None:
    """Scrapes that enclose the windows, None for too few of them."""
    if len(engine.time) < 2:
        return None
    width = max(WINDOW_NS, int(engine.time[-1] - engine.time[0]) // N_WINDOWS)
    index = (engine.time - engine.time[0]) // width
    edges: Ints = engine.time[np.flatnonzero(np.diff(index, prepend=-1) > 0)]
    return edges if len(edges) > 2 * N_SIDE else None


def _speed(engine: EngineSeries, edges: Ints) -> Floats | None:
    """Tokens per second and running request in each window; NaN where hardly one ran."""
    tokens, running = engine.counter(words.GENERATION_TOKENS), engine.gauge(words.RUNNING)
    if tokens is None or running is None or tokens.is_lagging:
        return None
    level = _level(running.time, running.value, edges)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate: Floats = tokens.between(edges) / (np.diff(edges) / 1e9)
        return np.where(level >= 1, rate / level, np.nan)


def _level(time: Ints, value: Floats, edges: Ints) -> Floats:
    """Mean of a gauge's scrapes in each window, NaN without any."""
    at = np.searchsorted(edges, time, side="right") - 1
    inside = (at >= 0) & (at < len(edges) - 1)
    n = np.bincount(at[inside], minlength=len(edges) - 1)
    total = np.bincount(at[inside], weights=value[inside], minlength=len(edges) - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        result: Floats = np.where(n > 0, total / n, np.nan)
    return result


def _step(speed: Floats) -> _Step | None:
    """The moment that parts the windows best, None where the sides overlap or hardly differ."""
    known = np.flatnonzero(np.isfinite(speed))
    values = speed[known]
    best: tuple[float, int] | None = None
    for at in range(N_SIDE, len(values) - N_SIDE + 1):
        first, second = values[:at], values[at:]
        spread = np.abs(first - np.median(first)).sum() + np.abs(second - np.median(second)).sum()
        if best is None or spread < best[0]:
            best = (float(spread), at)
    if best is None:
        return None
    first, second = values[: best[1]], values[best[1] :]
    before, after = float(np.median(first)), float(np.median(second))
    is_apart = np.quantile(second, APART) < np.quantile(first, 1 - APART)
    if after > SLOWER * before or not is_apart:
        return None
    return _Step(int(known[best[1]]), before, after)


def _what_else_changed(engine: EngineSeries, edges: Ints, at: int) -> str:
    """What the speed depends on and changed with it; empty for nothing."""
    sides = edges[[0, at, len(edges) - 1]]
    for metric, text in (
        (words.RUNNING, "running requests"),
        (words.WAITING, "waiting requests"),
        (words.KV_USAGE, "used cache"),
    ):
        gauge = engine.gauge(metric)
        if gauge is None:
            continue
        before, after = _level(gauge.time, gauge.value, sides)
        if metric == words.KV_USAGE:
            is_alike = abs(after - before) <= ALIKE_KV
        elif metric == words.WAITING:
            # A queue behind a slower service is its consequence; one before it is load.
            is_alike = before < 1 or after >= before / ALIKE[1]
        else:
            is_alike = ALIKE[0] <= after / max(before, 1e-9) <= ALIKE[1]
        if not is_alike:
            return f"{text} changed from {before:.2f} to {after:.2f}"
    seconds = np.diff(sides) / 1e9
    for metric, most, text in (
        (words.PROMPT_TOKENS, ALIKE[1], "tokens of prompts per second"),
        (words.PREEMPTIONS, 1.0, "preemptions per second"),
    ):
        counter = engine.counter(metric)
        if counter is None:
            continue
        # A counter that a first event creates begins late.
        held = np.clip(sides, counter.time[0], counter.time[-1])
        before, after = counter.between(held) / seconds
        if after > most * before + 0.01:
            return f"{text} rose from {before:.2f} to {after:.2f}"
    return ""


CAUSES = (
    Cause(
        REGRESSION,
        "the same load is slower than before",
        "Something changed between two recordings, or within one.",
        "Differences beyond noise at like load, of two recordings (tracer diff BEFORE AFTER); one "
        "recording in which the speed falls at one moment makes it no more than suspected.",
        "More load, longer contexts, more prompts, preemption.",
        "Record the same load before and after: tracer diff BEFORE AFTER.",
        "Bisect what changed.",
        Needs(("engine_sample",)),
        find_regression,
    ),
)
