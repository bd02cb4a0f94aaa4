"""Thinning keeps every bucket's extremes, and gaps."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from analysis.report.html.panel import Chart, Scale
from analysis.report.thinning import break_gaps, thin
from tests.analysis.builder import S


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(1, 20))
def test_extremes_survive(values: list[float], n_buckets: int) -> None:
    value = np.array(values)
    time = np.arange(len(value), dtype=np.int64) * 10
    kept_time, kept = thin(time, value, 0, len(value) * 10, n_buckets)
    assert len(kept) <= max(2 * n_buckets, 1)
    assert kept.max() == value.max() and kept.min() == value.min()
    assert (np.diff(kept_time) > 0).all()
    bucket = np.arange(len(value)) * 10 * n_buckets // (len(value) * 10)
    for index in np.unique(bucket):
        own = value[bucket == index]
        assert own.max() in kept and own.min() in kept


def test_no_sample_is_no_point() -> None:
    time, value = thin(np.array([1, 2]), np.array([np.nan, 3.0]), 0, 10, 5)
    assert time.tolist() == [2] and value.tolist() == [3.0]


def test_a_long_pause_breaks_the_line() -> None:
    time, value = break_gaps(np.array([0, 10, 20, 200]), np.ones(4), 10)
    assert time.tolist() == [0, 10, 20, 110, 200]
    assert np.isnan(value[3]) and np.isfinite(np.delete(value, 3)).all()


def test_a_step_before_a_gap_reaches_its_end() -> None:
    chart = Chart("t", "1/s", style="step")
    value = np.array([1.0, 2.0, np.nan, 3.0])
    chart.add_windows(Scale(0, 4 * S), "n", np.arange(5) * S, value)
    assert chart.lines[0]["x"] == [0.0, 1.0, 2.0, 2.0, 3.0, 4.0]
    assert chart.lines[0]["y"] == [1.0, 2.0, 2.0, None, 3.0, 3.0]
