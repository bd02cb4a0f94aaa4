"""How sure a difference between two recordings is, from how each varies within itself.

A recording is cut into blocks of equal length. What is compared is computed from sums over blocks,
so a recording that could as well have been is made by drawing blocks anew. Neighbouring blocks
resemble each other, therefore runs of them are drawn (circular moving-block bootstrap). From the
spread over the draws comes an interval with Student's quantile, whose degrees of freedom are the
independent runs of the shorter recording.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from analysis import intervals

Floats = npt.NDArray[np.float64]
#: Weights of the blocks, ``(draws, blocks)``, to the figure of each draw, ``(draws,)``.
Figure = Callable[[Floats], Floats]

#: Draws of each recording; the spread of so many is itself known to 3 %.
N_DRAWS = 500
#: Blocks of a recording: more add nothing but time, with fewer nothing can be told.
MOST_BLOCKS = 30
LEAST_BLOCKS = 10
#: Shortest block, ns: engines are scraped once a second.
SHORTEST_BLOCK_NS = 1_000_000_000


@dataclass(frozen=True)
class Interval:
    """A difference and how far noise may have moved it, in the figure's unit (or its logarithm).

    Attributes:
        value: After less before.
        error: Its standard error.
        freedom: Degrees of freedom of that error.
    """

    value: float
    error: float
    freedom: int

    def limits(self, confidence: float) -> tuple[float, float]:
        """Return the two-sided interval of this confidence, in (0, 1)."""
        reach = student_quantile(0.5 + confidence / 2, self.freedom) * self.error
        return self.value - reach, self.value + reach


def block_edges(start_ns: int, end_ns: int) -> npt.NDArray[np.int64] | None:
    """Return the ``(n + 1,)`` edges of the blocks of a recording in ns, None if it is too short."""
    n = min((end_ns - start_ns) // SHORTEST_BLOCK_NS, MOST_BLOCKS)
    if n < LEAST_BLOCKS:
        return None
    width = -(-(end_ns - start_ns) // n)
    return intervals.windows(start_ns, end_ns, width)


def run_length(n_blocks: int) -> int:
    """Return how many neighbouring blocks are drawn together: the square root of their number.

    Of 30 blocks whose neighbours correlate by a half, intervals of 95 % then hold in 95 % of cases;
    shorter runs, which other uses prefer, hold in 89 %.
    """
    return max(round(math.sqrt(n_blocks)), 1)


def n_runs(n_blocks: int) -> int:
    """Return the runs of neighbours in a recording, which count as independent."""
    return max(math.ceil(n_blocks / run_length(n_blocks)), 2)


def draws(n_blocks: int, seed: int) -> Floats:
    """Return how often each block is in each draw, as ``(N_DRAWS, n_blocks)``; each row sums to
    whole runs.
    """
    rng = np.random.default_rng(seed)
    length = run_length(n_blocks)
    starts = rng.integers(0, n_blocks, size=(N_DRAWS, n_runs(n_blocks)))
    taken = (starts[:, :, None] + np.arange(length)) % n_blocks
    weights = np.zeros((N_DRAWS, n_blocks))
    np.add.at(weights, (np.arange(N_DRAWS)[:, None], taken.reshape(N_DRAWS, -1)), 1.0)
    return weights


def ratio(numerator: Floats, denominator: Floats) -> Figure:
    """Return the figure "sum of one quantity over the sum of another", both by block."""

    def figure(weights: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            result: Floats = (weights @ numerator) / (weights @ denominator)
        return result

    return figure


def percentile(counts: Floats, edges: Floats, q: float) -> Figure:
    """Return the figure "percentile of a histogram", samples spread evenly within each bin.

    Args:
        counts: Samples by block and bin, ``(blocks, bins)``.
        edges: Limits of the bins, ``(bins + 1,)``.
        q: Share of the samples below, in (0, 1).
    """

    def figure(weights: Floats) -> Floats:
        total = np.cumsum(weights @ counts, axis=1)
        rank = q * total[:, -1:]
        at = np.minimum((total < rank).sum(axis=1), counts.shape[1] - 1)
        rows = np.arange(len(weights))
        below = np.where(at > 0, total[rows, np.maximum(at - 1, 0)], 0.0)
        inside = total[rows, at] - below
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(inside > 0, (rank[:, 0] - below) / inside, np.nan)
            result: Floats = edges[at] + share * (edges[at + 1] - edges[at])
        return result

    return figure


def value_of(figure: Figure, n_blocks: int) -> float:
    """Return the figure of the recording as it is, NaN where it has no samples."""
    return float(figure(np.ones((1, n_blocks)))[0])


def difference(
    before: Figure, after: Figure, n_before: int, n_after: int, *, is_relative: bool
) -> Interval | None:
    """Return how a figure differs, with its error; None where it cannot be told.

    Args:
        before: The figure of the first recording.
        after: The same of the second.
        n_before: Blocks of the first.
        n_after: Blocks of the second.
        is_relative: Compare logarithms (positive figures), rather than the figures.
    """
    values, errors = [], []
    for seed, (figure, n_blocks) in enumerate(((before, n_before), (after, n_after))):
        found = np.concatenate((figure(np.ones((1, n_blocks))), figure(draws(n_blocks, seed))))
        if is_relative:
            with np.errstate(divide="ignore", invalid="ignore"):
                found = np.log(found)
        spread = found[1:][np.isfinite(found[1:])]
        if not np.isfinite(found[0]) or len(spread) < 0.9 * N_DRAWS:
            return None
        values.append(float(found[0]))
        # Draws vary less than recordings do, by one of their runs.
        n = n_runs(n_blocks)
        errors.append(float(spread.std(ddof=1)) * math.sqrt(n / (n - 1)))
    freedom = n_runs(min(n_before, n_after)) - 1
    return Interval(values[1] - values[0], math.hypot(*errors), freedom)


def student_quantile(p: float, freedom: int) -> float:
    """Return the quantile of Student's distribution for ``p`` in (0.5, 1), by the expansion of
    Cornish and Fisher: within 1 % for three or more degrees of freedom and p up to 0.9995.
    """
    z = NormalDist().inv_cdf(p)
    n = freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )
