"""Requests that take longer since the cache evicts, beside everything else that makes them so."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from analysis import attribute
from analysis.attribution import Attribution
from analysis.finding import Status
from tests.analysis.builder import S
from tests.analysis.scrapes import Scrapes, finding, gpu_rows

HALF = 1_200


def evicting(
    path: Path,
    seed: int,
    *,
    slower: float = 1.2,
    more_running: float = 1.0,
    evicted: tuple[float, float] = (0, 8_000),
    clock: float = 1.0,
    slower_from: float = 0.0,
) -> Attribution:
    """Twenty minutes with a cache that has room, then twenty in which it evicts."""
    rng = random.Random(seed)
    engine = Scrapes(period=10)
    running, took = rng.randint(8, 40), rng.uniform(1, 5)
    for index in range(2 * HALF // 10):
        is_late = index >= HALF // 10
        is_slow = index >= (HALF + slower_from) // 10
        batch = round(running * (more_running if is_late else 1.0))
        seconds = took * (slower if is_slow else 1.0) * rng.uniform(0.97, 1.03)
        engine.play(
            10,
            requests_running=batch,
            kv_evicted_tokens=evicted[is_late],
            preemptions=0,
            requests_finished__stop=batch / seconds,
            e2e_seconds=(seconds, batch / seconds),
        )
    rows = gpu_rows(engine.start, 2 * HALF, sm_clock_mhz=1_900)[::10]
    for row in rows:
        if row["time_ns"] > engine.start + HALF * S:
            row["sm_clock_mhz"] = round(1_900 * clock)
    return attribute(engine.builder(path / "session").add("gpu_sample", rows).write())


@pytest.mark.parametrize("seed", range(4))
def test_requests_that_take_longer_since_the_cache_evicts_are_suspected(
    tmp_path: Path, seed: int
) -> None:
    attribution = evicting(tmp_path, seed)
    answer = finding(attribution, "prefill.decay")
    assert answer.status is Status.UNDECIDED and answer.settled_by
    assert attribution.verdict.candidates[0] == "prefill.decay"
    # A sixth of the time of a request, in half of the recording.
    assert answer.lost_share == pytest.approx(1 / 12, rel=0.2)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "change",
    [
        {"slower": 1.0},
        {"more_running": 1.25},
        {"evicted": (8_000, 8_000)},
        {"evicted": (0, 0)},
        {"clock": 0.8},
        {"slower_from": -600},
    ],
    ids=["as fast", "more run", "it always did", "it never does", "clock", "long before"],
)
def test_what_else_explains_it_is_not(tmp_path: Path, seed: int, change: dict[str, float]) -> None:
    answer = finding(evicting(tmp_path, seed, **change), "prefill.decay")  # type: ignore[arg-type]
    assert answer.status is Status.NOT_FOUND
