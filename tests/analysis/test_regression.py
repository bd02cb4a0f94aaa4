"""A fall of the speed in one recording: suspected at like load, not where the load explains it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from analysis import attribute
from analysis.attribution import Attribution
from analysis.finding import Status
from tests.analysis.scrapes import Scrapes, finding

LOAD = {"requests_running": 24, "requests_waiting": 0, "prompt_tokens": 900, "kv_usage": 0.4}


def played(path: Path, n_after: int = 60, **after: float) -> Attribution:
    """A minute at 1,200 tokens/s, then with what differs; each second a little off."""
    rng = random.Random(1)
    engine = Scrapes()
    for second in range(60 + n_after):
        now = LOAD | {"generation_tokens": 1_200.0} | (after if second >= 60 else {})
        now["generation_tokens"] *= rng.uniform(0.97, 1.03)
        engine.play(1, **now)
    return attribute(engine.builder(path / "session").write())


def test_slower_at_like_load_is_suspected_and_dated(tmp_path: Path) -> None:
    attribution = played(tmp_path, generation_tokens=800.0)
    answer = finding(attribution, "regression")
    assert answer.status is Status.UNDECIDED
    assert answer.start_ns == pytest.approx(1_060e9, abs=2e9)
    assert answer.lost_share == pytest.approx(1 / 6, abs=0.02)
    assert attribution.verdict.cause == "unknown"
    assert attribution.verdict.candidates[0] == "regression"


@pytest.mark.parametrize(
    "after",
    [
        {"generation_tokens": 1_130.0},
        {"generation_tokens": 1_600.0, "requests_running": 48},
        {"generation_tokens": 800.0, "prompt_tokens": 2_000},
        {"generation_tokens": 800.0, "kv_usage": 0.8},
        {"generation_tokens": 800.0, "preemptions": 2},
        {"generation_tokens": 1_700.0},
    ],
    ids=["noise", "more running", "more prompts", "longer contexts", "preemption", "faster"],
)
def test_what_the_load_explains_is_none(tmp_path: Path, after: dict[str, float]) -> None:
    assert finding(played(tmp_path, **after), "regression").status is Status.NOT_FOUND


def test_a_few_slow_seconds_are_none(tmp_path: Path) -> None:
    attribution = played(tmp_path, n_after=8, generation_tokens=300.0)
    assert finding(attribution, "regression").status is Status.NOT_FOUND


def test_without_an_engine_it_is_not_answered(tmp_path: Path) -> None:
    engine = Scrapes().play(60, requests_running=4)
    attribution = attribute(engine.builder(tmp_path / "session").write())
    answer = finding(attribution, "regression")
    assert answer.status is Status.NOT_APPLICABLE
    assert "tracer diff" in answer.undecided_because
