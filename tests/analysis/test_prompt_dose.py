"""Prompts all the time: tokens that become fewer with them, and tokens that do not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from analysis import attribute
from analysis.finding import Finding, Status
from analysis.manifest import Gpu
from tests.analysis.builder import MS, S, Service
from tests.analysis.scrapes import Scrapes, finding, gpu_rows


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


def without_calls(
    path: Path, seed: int, *, calm_s: int, every_ms: int, is_prompt: bool, vary: float = 0.0
) -> Finding:
    """Decodes with steps of 200 ms among them, more or less by ``vary``, in which prompts are
    computed or the host pauses; before that some seconds without. No call is recorded.
    """
    service = Service(seed=seed, running=8)
    begin = service.start + calm_s * S
    while service.now < begin + 25 * S:
        if not is_prompt:
            service.prompted += service.rng.randint(0, 40)
        service.decode_until(service.now + service.shake(every_ms * MS))
        if service.now >= begin:
            length = service.shake(200 * MS * service.rng.uniform(1 - vary, 1 + vary))
            if is_prompt:
                service.prefill_step(length, length // 100_000)
            else:
                service.compute(length)
                service.prompted += 1_500
    for name in ("cuda_call", "offcpu"):
        service.rows.pop(name)
    session = service.session(path / "session", functions=[], sources=[])
    return finding(attribute(session), "prefill.hogging")


@pytest.mark.parametrize("seed", range(6))
def test_waits_as_long_as_the_prompts_are_theirs(tmp_path: Path, seed: int) -> None:
    answer = without_calls(tmp_path, seed, calm_s=8, every_ms=600, is_prompt=True, vary=0.7)
    assert answer.status is Status.FOUND
    assert any(item.name == "lost_with_prompts" for item in answer.evidence)


@pytest.mark.parametrize("seed", range(3))
def test_waits_that_only_begin_with_the_prompts_are_not_proven(tmp_path: Path, seed: int) -> None:
    """As many a second and as long, whatever prompts come: they may be another process's turns."""
    service = Service(seed=seed, running=8)
    while service.now < service.start + 40 * S:
        service.decode_until(service.now + service.shake(600 * MS))
        if service.now >= service.start + 10 * S:
            service.run_device(service.shake(200 * MS))
            service.prompted += service.rng.choice((500, 1_500, 4_000))
    for name in ("cuda_call", "offcpu"):
        service.rows.pop(name)
    session = service.session(tmp_path / "session", functions=[], sources=[])
    answer = finding(attribute(session), "prefill.hogging")
    assert answer.status is Status.UNDECIDED
    assert "clock" in answer.undecided_because and "cuda_call" in answer.settled_by


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("is_prompt", [True, False], ids=["prompts", "pauses"])
def test_waits_in_every_second_of_prompts_are_not_proven(
    tmp_path: Path, seed: int, is_prompt: bool
) -> None:
    answer = without_calls(tmp_path, seed, calm_s=0, every_ms=300, is_prompt=is_prompt)
    assert answer.status is not Status.FOUND


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("left", "status"), [(0.5, Status.NOT_FOUND), (1.0, Status.UNDECIDED)])
def test_fewer_requests_that_each_get_their_tokens_are_not_held_up(
    tmp_path: Path, seed: int, left: float, status: Status
) -> None:
    """Tokens fall to less than half beside many more prompts: with the requests, or without, when
    it may be a slower device as well.
    """
    rng = random.Random(seed)
    engine = Scrapes()
    running, each = 4 * rng.randint(2, 6), rng.uniform(60, 90)
    for seconds, share, prompts in ((40, 1.0, 300.0), (40, left, 4_000.0)):
        for _ in range(seconds):
            engine.play(
                1,
                requests_running=running * share,
                requests_waiting=0,
                prompt_tokens=prompts * rng.uniform(0.8, 1.2),
                generation_tokens=running
                * each
                * (1.0 if share == 1.0 and prompts < 1_000 else 0.45)
                * rng.uniform(0.97, 1.03),
            )
    answer = finding(engine.attribution(tmp_path), "prefill.hogging")
    assert answer.status is status


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("every_ms", "pause_ms"), [(1700, 1400), (900, 400), (3000, 2500)])
def test_long_pauses_of_the_host_beside_prompts_are_no_hogging(
    tmp_path: Path, seed: int, every_ms: int, pause_ms: int
) -> None:
    """A pause ends in another window than it began in: the tokens come with its end."""
    service = Service(seed=seed, running=16)
    while service.now < service.start + 25 * S:
        service.prefill_step(15 * MS, 6_000)
        service.decode_until(service.now + service.shake(every_ms * MS))
        service.compute(service.shake(pause_ms * MS))
    answer = attribute(service.session(tmp_path / "s"))
    assert finding(answer, "prefill.hogging").status is not Status.FOUND


@pytest.mark.parametrize(("used_pct", "status"), [(98, Status.UNDECIDED), (28, Status.NOT_FOUND)])
def test_a_device_that_does_little_computes_no_prompts(
    tmp_path: Path, used_pct: float, status: Status
) -> None:
    engine = Scrapes()
    for prompts, tokens in ((200, 800), (900, 300)):
        engine.play(
            40,
            requests_running=16,
            requests_waiting=0,
            prompt_tokens=prompts,
            generation_tokens=tokens,
        )
    builder = engine.builder(tmp_path / "session", gpus=[Gpu(0, "GPU")])
    builder.add("gpu_sample", gpu_rows(engine.start, 80, util_pct=used_pct))
    answer = attribute(builder.write())
    assert finding(answer, "prefill.hogging").status is status
