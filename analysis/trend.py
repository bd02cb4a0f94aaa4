"""Trends over hours: blocks of a recording, whether a level rises steadily, and by how much."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt

from analysis import intervals, quantiles

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: A recording must be so long for anything in it to be called a drift.
SHORTEST_NS = 1_800 * 1_000_000_000
#: Blocks that a recording is cut into, and fewest of them with data.
N_BLOCKS = 24
N_KNOWN = 8
#: Probability up to which a trend may be chance.
CHANCE = 1e-3


def blocks(start_ns: int, end_ns: int) -> Ints | None:
    """Return the edges of equal blocks in ns, None for a recording too short for a drift."""
    if end_ns - start_ns < SHORTEST_NS:
        return None
    width = -(-(end_ns - start_ns) // N_BLOCKS)
    return intervals.windows(start_ns, end_ns, width)


def chance_of_trend(values: Floats) -> float:
    """Return the two-sided probability that values in any order rise or fall as steadily
    (Mann-Kendall); 1 for fewer than :data:`N_KNOWN`.
    """
    known = values[np.isfinite(values)]
    n = len(known)
    if n < N_KNOWN:
        return 1.0
    signs = np.sign(known[None, :] - known[:, None])
    score = float(np.triu(signs, 1).sum())
    variance = n * (n - 1) * (2 * n + 5) / 18
    z = max(abs(score) - 1, 0.0) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


def ends(values: Floats) -> tuple[float, float] | None:
    """Return the medians of the first and of the last third of the known values."""
    known = values[np.isfinite(values)]
    if len(known) < N_KNOWN:
        return None
    third = len(known) // 3
    first, last = quantiles.median(known[:third]), quantiles.median(known[-third:])
    assert first is not None
    assert last is not None
    return first, last


def ratio(values: Floats) -> float | None:
    """Return the last third against the first, None where too little is known or it was 0."""
    both = ends(values)
    if both is None or both[0] <= 0:
        return None
    return both[1] / both[0]


def is_steady(values: Floats) -> bool:
    """Return whether values rise or fall beyond chance."""
    return chance_of_trend(values) < CHANCE


def rank_correlation(a: Floats, b: Floats) -> tuple[float, int] | None:
    """Return how alike two series are ordered (Spearman), and over how many pairs."""
    both = np.isfinite(a) & np.isfinite(b)
    n = int(both.sum())
    if n < N_KNOWN:
        return None
    x, y = (np.argsort(np.argsort(item[both])).astype(float) for item in (a, b))
    if x.std() == 0 or y.std() == 0:
        return None
    return float(np.corrcoef(x, y)[0, 1]), n


def level(time: Ints, value: Floats, edges: Ints) -> Floats:
    """Return the median of samples in each block, NaN without any."""
    result = np.full(len(edges) - 1, np.nan)
    at = np.searchsorted(time, edges)
    for index, (low, high) in enumerate(itertools.pairwise(at)):
        middle = quantiles.median(value[low:high])
        if middle is not None:
            result[index] = middle
    return result
