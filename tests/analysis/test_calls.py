"""Questions about all calls, answered in blocks, against answers from the definition."""

from __future__ import annotations

import numpy as np
import pytest

from analysis import calls as calls_module
from analysis import intervals, quantiles, threads
from analysis.calls import Calls
from analysis.threads import Launcher


def some_calls(seed: int, n: int = 120) -> Calls:
    """Calls of two threads of one process and one of another; some overlap, some take long."""
    rng = np.random.default_rng(seed)
    n_codes = np.zeros(n, dtype=np.int8)
    return Calls(
        start=np.sort(rng.integers(0, 2_000, n)),
        duration=rng.integers(1, 40, n),
        thread=rng.integers(0, 3, n).astype(np.int8),
        kind=n_codes,
        function=n_codes,
        device=n_codes,
        stream=n_codes,
        first=n_codes,
        traits=n_codes.astype(np.uint8),
        threads=[(1, 1), (1, 2), (2, 2)],
        functions=["cudaLaunchKernel"],
        streams=[0],
    )


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "BLOCK", 11)
    monkeypatch.setattr(threads, "_CHUNK", 5)


@pytest.mark.parametrize("seed", range(8))
def test_pauses_are_the_gaps_of_a_process(seed: int) -> None:
    calls = some_calls(seed)
    own = np.isin(calls.thread, (0, 1))
    spans = intervals.make(calls.start[own], calls.end[own])
    gaps = intervals.gaps(spans, int(spans[0, 0]), int(spans[:, 1].max()))
    length = gaps[:, 1] - gaps[:, 0]
    found, median = calls.pauses(1, 20)
    assert found.tolist() == gaps[length > 20].tolist()
    assert median == quantiles.median(length)
    assert calls.pauses(2, 10**9)[0].tolist() == []


@pytest.mark.parametrize("seed", range(8))
def test_time_inside_calls_is_that_of_their_union(seed: int) -> None:
    calls, rng = some_calls(seed), np.random.default_rng(seed)
    thread = Launcher(calls, 0, None, 0, 2_100)
    mask = rng.random(len(calls)) < 0.6
    begin = rng.integers(-50, 2_100, 30)
    spans = intervals.make(begin, begin + rng.integers(0, 90, 30))
    edges = np.array([-100, 0, 7, 500, 501, 1_400, 2_100, 2_500])
    for chosen in (None, mask):
        rows = np.flatnonzero((calls.thread == 0) & (mask if chosen is not None else True))
        own = intervals.make(calls.start[rows], calls.end[rows])
        expected = intervals.coverage(intervals.intersect(own, spans), edges)
        assert thread.inside(chosen, spans, edges).tolist() == expected.tolist()
    assert thread.inside(None, intervals.EMPTY, edges).tolist() == [0] * 7


@pytest.mark.parametrize(("longest", "size"), [(39, 4), (2**32 - 1, 4), (2**32, 8), (-1, 8)])
def test_lengths_are_exact_in_whichever_size(longest: int, size: int) -> None:
    calls = some_calls(0)
    calls.duration[37] = longest
    rows = np.arange(20, 60)
    lengths = calls.lengths(rows)
    assert lengths.tolist() == calls.duration[rows].tolist()
    assert lengths.itemsize == size
