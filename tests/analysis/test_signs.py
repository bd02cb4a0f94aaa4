"""Signs that withhold "healthy": a device hardly used while requests run, late first tokens."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from analysis import attribute
from analysis.attribution import Attribution
from analysis.manifest import Source
from tests.analysis.builder import S, SessionBuilder
from tests.analysis.scrapes import Scrapes, gpu_rows

SECONDS = 80


def little_used(path: Path, seed: int, *, present: float, util: float) -> Attribution:
    """Short requests: at a share of the scrapes one runs, and tokens come in every second."""
    rng = random.Random(seed)
    engine = Scrapes()
    here = [index < present * SECONDS for index in range(SECONDS)]
    rng.shuffle(here)
    for is_here in here:
        engine.play(
            1,
            requests_running=int(is_here),
            requests_waiting=0,
            generation_tokens=rng.randint(150, 250),
            requests_finished__stop=6,
        )
    rows = gpu_rows(engine.start, SECONDS, util_pct=util)
    return attribute(engine.builder(path / "session").add("gpu_sample", rows).write())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("present", "util"), [(0.25, 23.0), (0.5, 46.0)])
def test_a_device_that_is_used_while_requests_run_is_well(
    tmp_path: Path, seed: int, present: float, util: float
) -> None:
    attribution = little_used(tmp_path, seed, present=present, util=util)
    assert attribution.verdict.cause == "healthy"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("present", "util"), [(1.0, 23.0), (0.5, 15.0)])
def test_a_device_that_is_idle_while_requests_run_is_not(
    tmp_path: Path, seed: int, present: float, util: float
) -> None:
    attribution = little_used(tmp_path, seed, present=present, util=util)
    assert attribution.verdict.cause == "unknown"
    assert "utilised while requests were running" in attribution.verdict.text


def first_tokens(path: Path, seed: int, *, slow_share: float, slow_s: float) -> Attribution:
    """Two minutes in which a share of the first tokens takes long."""
    rng = random.Random(seed)
    engine = Scrapes()
    for _ in range(120):
        is_slow = rng.random() < slow_share
        engine.play(
            1,
            requests_running=20,
            requests_waiting=0,
            generation_tokens=900,
            ttft_seconds=(slow_s if is_slow else 0.4, 4),
        )
    return engine.attribution(path)


@pytest.mark.parametrize("seed", range(3))
def test_a_long_tail_of_first_tokens_is_not_well(tmp_path: Path, seed: int) -> None:
    attribution = first_tokens(tmp_path, seed, slow_share=0.05, slow_s=7.0)
    assert attribution.verdict.cause == "unknown"
    assert "one first token in a hundred took" in attribution.verdict.text


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("share", "slow_s"), [(0.0, 7.0), (0.05, 0.9)], ids=["none", "short"])
def test_a_short_tail_is(tmp_path: Path, seed: int, share: float, slow_s: float) -> None:
    attribution = first_tokens(tmp_path, seed, slow_share=share, slow_s=slow_s)
    assert attribution.verdict.cause == "healthy"


@pytest.mark.parametrize(
    ("sources", "most", "said"),
    [([Source("cuda", "ok")], 0.8, "no CUDA call came"), ([], 0.6, "calls were not recorded")],
    ids=["recorded", "not recorded"],
)
def test_an_unused_device_tells_less_of_demand_without_calls(
    tmp_path: Path, sources: list[Source], most: float, said: str
) -> None:
    limits = {"start_ns": 0, "end_ns": SECONDS * S}
    builder = SessionBuilder(tmp_path / "session", sources=sources, **limits)
    verdict = attribute(
        builder.add("gpu_sample", gpu_rows(0, SECONDS, util_pct=1.0)).write()
    ).verdict
    assert verdict.cause == "no_demand" and verdict.confidence == pytest.approx(most)
    assert said in verdict.text
