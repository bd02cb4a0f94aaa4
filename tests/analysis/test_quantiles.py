from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import quantiles


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=300), st.integers(1, 100))
def test_nearest_rank_is_the_definition(values: list[int], percent: int) -> None:
    result = quantiles.quantile(np.array(values), percent / 100)
    assert result is not None
    assert result.value == sorted(values)[math.ceil(percent * len(values) / 100) - 1]
    assert result.n == len(values)


def test_a_small_sample_says_that_its_p99_is_the_maximum() -> None:
    small, large = np.arange(16), np.arange(357)
    assert quantiles.quantile(small, 0.99).label == "max"
    assert quantiles.quantile(large, 0.99).label == "p99"
    assert quantiles.quantile(np.empty(0), 0.5) is None
    assert quantiles.median(np.array([3, 1, 2])) == 2


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        quantiles.rank(0, 0.5)
    with pytest.raises(ValueError, match="lies in"):
        quantiles.rank(3, 1.5)
