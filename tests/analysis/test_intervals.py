from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import intervals

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(-3, 15)), max_size=12).map(
    lambda rows: np.array([(a, a + n) for a, n in rows], dtype=np.int64).reshape(-1, 2)
)


def points(rows: np.ndarray) -> set[int]:
    return {point for start, end in rows.tolist() for point in range(start, end)}


def is_disjoint(rows: np.ndarray) -> bool:
    return bool(np.all(rows[:, 1] > rows[:, 0]) and np.all(rows[1:, 0] > rows[:-1, 1]))


@given(spans)
def test_union_covers_the_same_points_disjointly(rows: np.ndarray) -> None:
    united = intervals.union(rows)
    assert points(united) == points(rows)
    assert is_disjoint(united)
    assert intervals.total(rows) == len(points(rows))


@given(spans, spans)
def test_set_algebra_equals_brute_force(left: np.ndarray, right: np.ndarray) -> None:
    both, rest = intervals.intersect(left, right), intervals.subtract(left, right)
    assert points(both) == points(left) & points(right)
    assert points(rest) == points(left) - points(right)
    assert is_disjoint(both)
    assert is_disjoint(rest)
    assert intervals.overlap(left, right) == len(points(left) & points(right))


@given(spans, st.integers(0, 40), st.integers(0, 40))
def test_gaps_and_clip(rows: np.ndarray, start: int, length: int) -> None:
    window = set(range(start, start + length))
    assert points(intervals.gaps(rows, start, start + length)) == window - points(rows)
    assert points(intervals.clip(rows, start, start + length)) == window & points(rows)


@given(spans, spans)
def test_overlap_each_counts_per_row(rows: np.ndarray, other: np.ndarray) -> None:
    expected = [len(set(range(a, b)) & points(other)) for a, b in rows.tolist()]
    assert intervals.overlap_each(rows, other).tolist() == expected


@given(spans, st.lists(st.integers(-5, 90), min_size=2, max_size=8, unique=True).map(sorted))
def test_coverage_and_weight_per_window(rows: np.ndarray, cuts: list[int]) -> None:
    edges = np.array(cuts, dtype=np.int64)
    windows = [set(range(a, b)) for a, b in itertools.pairwise(cuts)]
    assert intervals.coverage(rows, edges).tolist() == [len(w & points(rows)) for w in windows]
    assert intervals.weight(rows, edges).tolist() == [
        sum(len(w & set(range(a, b))) for a, b in rows.tolist()) for w in windows
    ]


@given(spans, st.lists(st.integers(-5, 90), max_size=10))
def test_depth_and_assign(rows: np.ndarray, at: list[int]) -> None:
    where = np.array(at, dtype=np.int64)
    assert intervals.depth(rows, where).tolist() == [
        sum(a <= p < b for a, b in rows.tolist()) for p in at
    ]
    united = intervals.union(rows)
    assert intervals.assign(where, united).tolist() == [
        next((i for i, (a, b) in enumerate(united.tolist()) if a <= p < b), -1) for p in at
    ]


def test_windows_end_with_the_range() -> None:
    assert intervals.windows(0, 25, 10).tolist() == [0, 10, 20, 25]
    assert intervals.windows(5, 5, 10).tolist() == [5]
    with pytest.raises(ValueError, match="longer than 0"):
        intervals.windows(0, 10, 0)
