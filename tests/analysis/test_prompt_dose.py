"""Prompts all the time: tokens that become fewer with them, and tokens that do not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from analysis.finding import Status
from tests.analysis.scrapes import Scrapes, finding


def prompts_all_the_time(seed: int, *, more: float, speed_with_more: float) -> Scrapes:
    """Two minutes of prompts beside tokens, then four with more of them; no second without."""
    rng = random.Random(seed)
    engine = Scrapes()
    prompts, running, each = rng.uniform(3_000, 6_000), rng.randint(3, 9), rng.uniform(8, 15)
    for seconds, dose, speed in ((120, 1.0, 1.0), (240, more, speed_with_more)):
        for _ in range(seconds):
            batch = max(round(running * (1 + 0.3 * (dose - 1))), 1)
            engine.play(
                1,
                requests_running=batch,
                requests_waiting=0,
                prompt_tokens=prompts * dose * rng.uniform(0.8, 1.2),
                generation_tokens=batch * each * speed * rng.uniform(0.95, 1.05),
            )
    return engine


@pytest.mark.parametrize("seed", range(4))
def test_tokens_that_come_all_the_same_are_not_held_up(tmp_path: Path, seed: int) -> None:
    engine = prompts_all_the_time(seed, more=2.5, speed_with_more=1.0)
    answer = finding(engine.attribution(tmp_path), "prefill.hogging")
    assert answer.status is Status.NOT_FOUND
    assert "times the prompts" in answer.excluded[-1].reason


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("more", "speed"), [(2.5, 0.6), (1.0, 1.0)], ids=["fewer", "no dose"])
def test_hogging_stays_suspected_otherwise(
    tmp_path: Path, seed: int, more: float, speed: float
) -> None:
    engine = prompts_all_the_time(seed, more=more, speed_with_more=speed)
    assert finding(engine.attribution(tmp_path), "prefill.hogging").status is Status.UNDECIDED
