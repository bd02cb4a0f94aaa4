"""Intervals from resampling: they cover what they promise, and say so with few false alarms."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from analysis.resampling import (
    block_edges,
    difference,
    draws,
    percentile,
    ratio,
    run_length,
    student_quantile,
    value_of,
)


@pytest.mark.parametrize(
    ("p", "freedom", "expected"),
    # From a printed table of Student's distribution.
    [(0.975, 9, 2.262), (0.975, 3, 3.182), (0.9995, 9, 4.781), (0.995, 5, 4.032)],
)
def test_quantiles_of_students_distribution(p: float, freedom: int, expected: float):
    assert student_quantile(p, freedom) == pytest.approx(expected, rel=0.03)
    assert student_quantile(p, 10_000) == pytest.approx(NormalDist().inv_cdf(p), rel=1e-3)


def test_blocks_fill_the_recording_and_short_ones_have_none():
    edges = block_edges(7, 7 + 61_000_000_001)
    assert edges is not None and len(edges) == 31
    assert (edges[0], edges[-1]) == (7, 7 + 61_000_000_001)
    assert block_edges(0, 9_999_999_999) is None


def test_draws_take_runs_of_neighbours():
    weights = draws(30, seed=0)
    assert weights.shape[1] == 30 and run_length(30) == 5
    assert (weights.sum(axis=1) == 30).all()
    assert (weights == draws(30, seed=0)).all()


def test_a_percentile_of_blocks_is_that_of_all_samples():
    rng = np.random.default_rng(1)
    limits = np.exp(np.linspace(0, 10, 1001))
    samples = [rng.lognormal(5, 0.5, size=1000) for _ in range(12)]
    counts = np.stack([np.histogram(part, limits)[0] for part in samples]).astype(float)
    figure = percentile(counts, limits, 0.95)
    expected = np.quantile(np.concatenate(samples), 0.95)
    assert value_of(figure, 12) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_no_difference_is_rarely_called_one(correlation: float):
    """Of 300 pairs that do not differ, the 95 % interval misses zero in about fifteen."""
    rng = np.random.default_rng(7)
    n_missed = 0
    for _ in range(300):
        sides = []
        for _side in range(2):
            noise = rng.normal(size=30)
            for index in range(1, 30):
                noise[index] += correlation * noise[index - 1]
            sides.append(ratio(100 + 10 * noise, np.ones(30)))
        found = difference(*sides, 30, 30, is_relative=True)
        assert found is not None
        low, high = found.limits(0.95)
        n_missed += low > 0 or high < 0
    assert n_missed <= 25


def test_a_difference_is_seen_and_measured():
    rng = np.random.default_rng(3)
    before = ratio(100 + rng.normal(size=30), np.ones(30))
    after = ratio(82 + rng.normal(size=30), np.ones(30))
    found = difference(before, after, 30, 30, is_relative=True)
    assert found is not None
    low, high = found.limits(0.999)
    assert low < np.log(0.82) < high < -0.15


def test_without_samples_there_is_no_difference():
    nothing = ratio(np.zeros(30), np.zeros(30))
    some = ratio(np.ones(30), np.ones(30))
    assert difference(nothing, some, 30, 30, is_relative=True) is None
    assert difference(some, ratio(np.zeros(30), np.ones(30)), 30, 30, is_relative=True) is None
