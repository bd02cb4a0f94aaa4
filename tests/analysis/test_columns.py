"""Columns filled part by part, and what is asked of them in blocks, against doing it at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from analysis import columns
from analysis.columns import Columns, Vocabulary, filled, positions, tally


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BLOCK", 7)


@pytest.mark.parametrize("n", [0, 1, 7, 8, 50])
def test_blocks_say_what_the_whole_says(n: int) -> None:
    rng = np.random.default_rng(n)
    mask = rng.random(n) < 0.4
    codes = rng.integers(0, 5, n).astype(np.int8)
    assert positions(mask).tolist() == np.flatnonzero(mask).tolist()
    assert positions(mask).dtype == np.int32
    assert tally(codes, mask, 6).tolist() == np.bincount(codes[mask], minlength=6).tolist()
    assert tally(codes, None, 6).tolist() == np.bincount(codes, minlength=6).tolist()


def test_codes_stay_the_same_in_a_larger_type() -> None:
    vocabulary, rows = Vocabulary(), Columns(2)
    words = [[f"w{index % 300}", None] for index in range(0, 600, 2)]
    for number, pair in enumerate(words):
        codes = vocabulary.codes(pa.chunked_array([pa.array(pair, pa.string())]))
        rows.append(np.array([2 * number, 2 * number + 1]), codes)
    at, codes = rows.finish()
    assert at.tolist() == list(range(600))
    told = [None if code < 0 else vocabulary.values[code] for code in codes.tolist()]
    assert told == [word for pair in words for word in pair]
    assert codes.dtype == np.int16


def test_rows_out_of_order_are_sorted_with_all_their_columns() -> None:
    rows = Columns(0)
    rows.append(np.array([5, 9]), np.array([50, 90], dtype=np.int32))
    rows.append(np.array([1, 5]), np.array([10, 51], dtype=np.int32))
    first, second = rows.finish()
    assert first.tolist() == [1, 5, 5, 9]
    assert second.tolist() == [10, 50, 51, 90]
    assert Columns(0).finish() == []


def test_a_null_is_what_was_asked_for() -> None:
    assert filled(pa.array([3, None], pa.int32()), -1).tolist() == [3, -1]
