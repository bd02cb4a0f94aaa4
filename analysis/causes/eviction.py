"""Requests take longer since the cache is full: the suspicion of ``prefill.decay`` that remains
where the engine does not expose how long it computes prompts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis import engine as words
from analysis import quantiles, trend
from analysis.engine import EngineSeries
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

DECAY = "prefill.decay"

#: Blocks with requests that each side of the onset needs.
N_SIDE = 5
#: Share of the blocks after the onset in which the cache must go on to evict.
GOES_ON = 0.8
#: Rise of the time of a request that is worth stating.
SLOWER = 1.1
#: Share of the blocks of each side that must lie beyond those of the other.
APART = 0.9
#: What the time of a request depends on is alike within this, as a ratio of after to before.
ALIKE = (0.85, 1.15)
#: A clock that falls below this explains as much.
FLAT_CLOCK = 0.95
N_PREEMPTED = 3


def suspect_eviction(facts: Facts, engine: EngineSeries, edges: Ints) -> Finding | None:
    """Return whether requests take longer since the cache evicts, at like load.

    Never more than suspected: what takes the time is not told. None where the engine exposes no
    evictions or times of requests.
    """
    evicted = engine.counter(words.KV_EVICTED)
    held: Ints = np.clip(edges, int(engine.time[0]), int(engine.time[-1]))
    took = engine.mean(words.E2E, held)
    if evicted is None or took is None or engine.gauge(words.RUNNING) is None:
        return None
    finding = Finding(DECAY, Status.NOT_FOUND, confidence=0.7)
    onset = _onset(evicted.between(held))
    sides = None if onset is None else _sides(took, onset)
    if onset is None or sides is None:
        finding.excluded.append(
            Exclusion(DECAY, "the cache did not begin to evict within the recording and go on")
        )
        return finding
    before, after = took[sides[0]], took[sides[1]]
    usual, late = quantiles.median(before), quantiles.median(after)
    assert usual is not None
    assert late is not None
    rise = late / max(usual, 1e-9)
    finding.start_ns, finding.end_ns = int(held[onset]), facts.end_ns
    finding.evidence = [
        Evidence("request_before_eviction", round(usual, 3), "s", len(before), "engine_sample"),
        Evidence("request_since", round(late, 3), "s", len(after), "engine_sample"),
    ]
    low, high = quantiles.quantile(after, 1 - APART), quantiles.quantile(before, APART)
    assert low is not None
    assert high is not None
    other = _what_else(facts, engine, held, sides)
    if rise < SLOWER or low.value <= high.value or other:
        finding.excluded.append(
            Exclusion(
                DECAY,
                f"since the cache evicts, requests take {rise:.2f} times as long"
                + (f", but {other}" if other else ""),
            )
        )
        return finding
    finding.lost_ns = int((1 - 1 / rise) * (facts.end_ns - int(held[onset])))
    finding.lost_share = min(finding.lost_ns / facts.demand_ns, 1.0)
    finding.status, finding.confidence = Status.UNDECIDED, 0.5
    minute = (int(held[onset]) - facts.start_ns) / 6e10
    finding.undecided_because = (
        f"since the cache is full and evicts (minute {minute:.0f}), requests take {late:.2f} "
        f"instead of {usual:.2f} s at like load, but whether prompts are computed more slowly, or "
        "the scheduler's thread is busy evicting, is not told"
    )
    finding.settled_by = (
        "the time of prefill of the engine, and CUDA calls with the threads of the process "
        "(tracer record --pid PID as root), before and after the cache is full"
    )
    return finding


def _onset(evicted: Floats) -> int | None:
    """The first block with evictions, None where there were some from the begin, or they stop."""
    hit: Flags = np.nan_to_num(evicted) > 0
    if not hit.any():
        return None
    first = int(np.argmax(hit))
    return first if hit[first:].mean() >= GOES_ON else None


def _sides(took: Floats, onset: int) -> tuple[Flags, Flags] | None:
    """The blocks with requests before and since the onset, without the one that it lies in."""
    index, known = np.arange(len(took)), np.isfinite(took)
    before: Flags = known & (index < onset)
    after: Flags = known & (index > onset)
    return (before, after) if min(before.sum(), after.sum()) >= N_SIDE else None


def _what_else(facts: Facts, engine: EngineSeries, edges: Ints, sides: tuple[Flags, Flags]) -> str:
    """What changed as well and may take the time; empty for nothing."""
    running, waiting = engine.gauge(words.RUNNING), engine.gauge(words.WAITING)
    levels = {
        "running requests": None
        if running is None
        else trend.level(running.time, running.value, edges),
        "prompts": engine.mean(words.REQUEST_PROMPT, edges),
        "answers": engine.mean(words.REQUEST_ANSWER, edges),
    }
    for name, values in levels.items():
        change = None if values is None else _change(values, sides)
        if change is not None and not ALIKE[0] <= change <= ALIKE[1]:
            return f"{name} changed {change:.2f} times"
    if waiting is not None:
        # Time at the door belongs to a request, and is no slower service.
        queue = trend.level(waiting.time, waiting.value, edges)
        if (quantiles.median(queue[sides[1]][np.isfinite(queue[sides[1]])]) or 0.0) >= 1:
            return "requests wait for a place"
    preempted = engine.counter(words.PREEMPTIONS)
    if preempted is not None and float(preempted.increase().sum()) >= N_PREEMPTED:
        return "requests were preempted"
    for device in facts.gpu.devices if facts.gpu is not None else ():
        clock = facts.gpu.quantity(device, "sm_clock_mhz") if facts.gpu is not None else None
        change = (
            None if clock is None else _change(trend.level(clock.end, clock.value, edges), sides)
        )
        if change is not None and change < FLAT_CLOCK:
            return f"the clock of device {device} fell to {change:.2f} times"
    return ""


def _change(values: Floats, sides: tuple[Flags, Flags]) -> float | None:
    """The median since the onset against that before; None where one is not known or 0."""
    before, after = (quantiles.median(values[side & np.isfinite(values)]) for side in sides)
    return None if before is None or after is None or before <= 0 else after / before
