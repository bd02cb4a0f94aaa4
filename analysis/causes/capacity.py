"""Whether a queue grew because more work came, or because the engine serves less than before."""

from __future__ import annotations

import math

import numpy as np

from analysis import quantiles
from analysis.causes.engine_load import Flags, Floats, Load
from analysis.finding import Evidence

#: Windows that a level before the queue needs, and that its onset is.
N_BEFORE = 3
N_ONSET = 5
#: Percentile of the windows before the queue that counts as what the engine served.
GOOD = 0.75
#: Fewer tokens than this share of that are a capacity that fell.
SERVED_AS_BEFORE = 0.9
#: With fewer arrivals than so many times those before, no more work came.
NO_MORE = 1.1
#: Prompt tokens count as more from this many times those before on.
MORE_PROMPTS = 1.25


def before_queue(load: Load, is_queued: Flags) -> Flags:
    """Return the windows with requests before the first with a queue, whose onset may lie in the
    last one.
    """
    first = int(np.argmax(is_queued))
    before: Flags = np.zeros(len(is_queued), dtype=bool)
    before[: max(first - 1, 0)] = load.running[: max(first - 1, 0)] > 0
    return before


def _growing(load: Load, is_queued: Flags) -> slice:
    """Windows from the onset of a queue to its longest."""
    first = max(int(np.argmax(is_queued)) - 1, 0)
    longest = int(np.argmax(np.where(is_queued, load.waiting, -1.0)))
    return slice(first, max(longest, first + N_ONSET) + 1)


def rate(load: Load, values: Floats, part: Flags | slice) -> float:
    """Return the sum of what was counted over the seconds in which it was."""
    value, seconds = values[part], load.length_ns[part] / 1e9
    known = np.isfinite(value)
    return float(value[known].sum() / max(seconds[known].sum(), 1e-9))


def arrivals_rise(load: Load, is_queued: Flags) -> tuple[float, int] | None:
    """Return how many times as many requests came as before the queue, and in how many windows:
    at its onset or until it was longest, whichever is less, and less a standard error, since by
    chance requests come more often too. None where arrivals or the time before are not known.
    """
    before = before_queue(load, is_queued)
    if load.arrived is None or before.sum() < N_BEFORE:
        return None
    growing = _growing(load, is_queued)
    onset = slice(growing.start, growing.start + N_ONSET + 1)
    usual = max(rate(load, load.arrived, before), 1e-9)
    more = min(rate(load, load.arrived, part) for part in (onset, growing))
    seconds = [float(load.length_ns[part].sum()) / 1e9 for part in (before, growing)]
    error = math.sqrt(usual / seconds[0] + more / seconds[1])
    return max(more - error, 0.0) / usual, growing.stop - growing.start


def less_capacity(load: Load, is_queued: Flags, evidence: list[Evidence]) -> str:
    """Return why the capacity may have fallen instead of the work having grown, a clause: fewer
    tokens are served than before the queue, or no more requests came and tokens took longer. Empty
    where neither is so.

    Args:
        load: Of the engine.
        is_queued: Windows with a queue.
        evidence: The numbers are added to it.
    """
    before = before_queue(load, is_queued)
    if before.sum() < N_BEFORE:
        return ""
    growing = _growing(load, is_queued)
    served = load.generated / (load.length_ns / 1e9)
    good = quantiles.quantile(served[before & np.isfinite(served)], GOOD)
    arrivals = arrivals_rise(load, is_queued)
    if good is not None and good.value > 0:
        now = rate(load, load.generated, growing)
        evidence.append(
            Evidence("tokens_against_before", round(now / good.value, 2), "ratio", good.n)
        )
        prompts, later = (rate(load, load.prompts, part) for part in (before, growing))
        is_more_told = arrivals is not None and arrivals[0] >= NO_MORE
        # More prompts leave less time for tokens.
        if now < SERVED_AS_BEFORE * good.value and not (
            is_more_told and later > MORE_PROMPTS * prompts
        ):
            return f"{now:.0f} tokens/s were served instead of the {good.value:.0f} before"
    usual, late = load.token_gap(before), load.token_gap(is_queued)
    if arrivals is None or usual is None or late is None or usual[0] <= 0:
        return ""
    rise = late[0] / usual[0]
    if arrivals[0] < NO_MORE < rise:
        return (
            f"{arrivals[0]:.2f} times as many requests came as before and tokens took {rise:.2f} "
            "times as long"
        )
    return ""
