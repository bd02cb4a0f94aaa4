"""A device that becomes slower unseen, beside an engine that is asked the same or a little more:
nothing may be stated of it, whatever its metrics happen to do.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from analysis.finding import Status
from tests.analysis.scrapes import finding
from tests.analysis.served import Engine

HIDDEN = (
    (),
    ("requests_max",),
    ("inter_token_seconds",),
    ("requests_received", "requests_finished"),
    ("kv_usage", "requests_max", "requests_received", "requests_finished"),
)


def slowed(seed: int) -> Engine:
    """Two minutes of load that the device serves with ease, until it is two to six times slower;
    longer prompts may come from about then on, which would cost it a 25th of its time.
    """
    rng = random.Random(seed)
    step, factor, at = rng.choice((0.008, 0.015, 0.03)), rng.uniform(2, 6), rng.uniform(35, 60)
    more, since = rng.choice((1, 3, 10)), at + rng.choice((0, 0, -10, 10))
    until = rng.choice((1e9, at + 30))
    arrivals, prompt = rng.choice((1.0, 2.0, 5.0)), rng.choice((100, 300))
    return Engine(
        seed,
        step_s=step,
        request_s=step * 0.005,
        prompt_s=0.04 / (arrivals * prompt * more),
        chunk=rng.choice((512, 4096)),
        limit=rng.choice((16, 48, 256)),
        slower=lambda now: factor if at <= now < until else 1.0,
        arrivals=lambda _now: arrivals,
        prompt_tokens=lambda now: prompt * (more if now >= since else 1),
        # Eight requests run at a time.
        answer_tokens=8 / (arrivals * step),
        hidden=rng.choice(HIDDEN),
    ).play(120)


@pytest.mark.parametrize("seed", range(24))
def test_nothing_is_stated_of_a_device_that_became_slower_unseen(tmp_path: Path, seed: int) -> None:
    engine = slowed(seed)
    stated = {
        item.cause: item
        for item in engine.attribution(tmp_path).findings
        if item.status is Status.FOUND and item.confidence >= 0.7
    }
    hogging = stated.pop("prefill.hogging", None)
    assert stated == {}
    if hogging is not None:
        # On a device that is five times slower, prompts may hold some seconds all the same.
        first_ns = int(engine.rows[0]["time_ns"])
        spans = (hogging.spans - first_ns) / 1e9
        shares = [engine.prompts_share(begin, end) for begin, end in spans.tolist()]
        assert sum(shares) / len(shares) > 0.33


def hogged(seed: int) -> Engine:
    """The same, and documents from some time on that take six tenths of the device's time."""
    rng = random.Random(seed)
    at, document, prompt_s = rng.uniform(30, 50), rng.choice((4_000, 9_000)), 0.00012
    documents = 0.6 / (document * prompt_s)
    kinds = random.Random(seed + 1)

    def length(now: float) -> float:
        is_document = now >= at and kinds.random() < documents / (documents + 2)
        return document if is_document else 200

    return Engine(
        seed,
        prompt_s=prompt_s,
        chunk=8_192,
        limit=256,
        arrivals=lambda now: 2 + (documents if now >= at else 0),
        prompt_tokens=length,
        hidden=rng.choice(((), ("inter_token_seconds",))),
    ).play(120)


def test_prompts_that_take_most_of_the_time_are_found_mostly(tmp_path: Path) -> None:
    answers = [
        finding(hogged(seed).attribution(tmp_path / str(seed)), "prefill.hogging").status
        for seed in range(8)
    ]
    assert answers.count(Status.FOUND) >= 5
    assert set(answers) <= {Status.FOUND, Status.UNDECIDED}


def test_the_engine_keeps_its_books() -> None:
    engine = Engine(3).play(30)
    last = {row["metric"]: row["value"] for row in engine.rows if row["upper_bound"] is None}
    inside = last["requests_running"] + last["requests_waiting"]
    # What came is inside or has gone; 30 s of three requests a second of 200 tokens each.
    assert last["requests_received"] - last["requests_finished"] == pytest.approx(inside, abs=5)
    assert 60 < last["requests_received"] < 130
    assert last["generation_tokens"] == pytest.approx(200 * last["requests_finished"], rel=0.3)
    assert 0 < engine.prompts_share(0, 30) < 0.2
