"""How often something rare happens, with the bound that the number of trials allows."""

from __future__ import annotations

import math
from collections.abc import Callable

LEVEL = 0.95


def bounds(n_seen: int, n_trials: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact (Clopper-Pearson) bounds of a rate in [0, 1].

    A rate of 0 or of all gets a one-sided bound, else both sides share the error.

    Raises:
        ValueError: the counts do not fit each other.
    """
    if n_trials < 1 or not 0 <= n_seen <= n_trials:
        raise ValueError(f"{n_seen} of {n_trials} is no rate")
    error = 1 - level
    if n_seen == 0:
        return 0.0, 1 - error ** (1 / n_trials)
    if n_seen == n_trials:
        return error ** (1 / n_trials), 1.0
    low = _solve(lambda p: 1 - _at_most(n_seen - 1, n_trials, p), error / 2)
    high = _solve(lambda p: 1 - _at_most(n_seen, n_trials, p), 1 - error / 2)
    return low, high


def describe(n_seen: int, n_trials: int, level: float = LEVEL) -> str:
    """Return a rate in words, e.g. ``0 in 330: below 0.9 % at 95 %``."""
    low, high = bounds(n_seen, n_trials, level)
    text = f"{n_seen} in {n_trials}"
    sure = f"at {100 * level:.0f} %"
    if n_seen == 0:
        return f"{text}: below {_percent(high)} {sure}"
    if n_seen == n_trials:
        return f"{text}: above {_percent(low)} {sure}"
    return f"{text}: {_percent(n_seen / n_trials)}, {_percent(low)} to {_percent(high)} {sure}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.0995 else f"{100 * share:.0f} %"


def _at_most(k: int, n: int, p: float) -> float:
    """Probability of at most k of n."""
    if p <= 0:
        return 1.0
    if p >= 1:
        return 1.0 if k >= n else 0.0
    logs = [
        math.lgamma(n + 1)
        - math.lgamma(i + 1)
        - math.lgamma(n - i + 1)
        + i * math.log(p)
        + (n - i) * math.log1p(-p)
        for i in range(k + 1)
    ]
    return min(sum(math.exp(item) for item in logs), 1.0)


def _solve(rises: Callable[[float], float], target: float) -> float:
    """The share at which a rising function meets a target."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if rises(middle) < target:
            low = middle
        else:
            high = middle
    return (low + high) / 2
