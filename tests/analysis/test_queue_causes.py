"""Requests that wait before the device, each beside what it must be told apart from."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import attribute
from analysis.finding import Status
from tests.analysis.builder import S, Service
from tests.analysis.scrapes import Scrapes, finding, gpu_rows

SERVED = {"generation_tokens": 400, "prompt_tokens": 100, "preemptions": 0}


def test_requests_that_wait_beside_room_are_held_by_admission(tmp_path: Path) -> None:
    engine = Scrapes().play(10, requests_running=8, requests_waiting=0, kv_usage=0.4, **SERVED)
    engine.play(30, requests_running=3, requests_waiting=9, kv_usage=0.3, **SERVED)
    attribution = engine.attribution(tmp_path)
    assert attribution.verdict.cause == "queue.head_of_line"
    assert "3 were running of up to 8" in attribution.verdict.text


@pytest.mark.parametrize(
    ("served", "because"),
    [
        ({"generation_tokens": 100, "prompt_tokens": 60}, "times as long as before"),
        ({"generation_tokens": 300, "prompt_tokens": 900}, "prompt tokens/s were computed"),
    ],
    ids=["a slower device", "a device full of prompts"],
)
def test_requests_may_wait_beside_room_for_the_device(
    tmp_path: Path, served: dict[str, float], because: str
) -> None:
    engine = Scrapes().play(10, requests_running=8, requests_waiting=0, kv_usage=0.4, **SERVED)
    engine.play(30, requests_running=5, requests_waiting=9, kv_usage=0.3, **served)
    answer = finding(engine.attribution(tmp_path), "queue.head_of_line")
    assert answer.status is Status.UNDECIDED
    assert because in answer.undecided_because


@pytest.mark.parametrize(
    ("running", "kv"), [(8, 0.4), (3, 0.97)], ids=["the batch is full", "the cache is full"]
)
def test_requests_that_wait_without_room_are_not_held(
    tmp_path: Path, running: float, kv: float
) -> None:
    engine = Scrapes().play(10, requests_running=8, requests_waiting=0, kv_usage=0.4, **SERVED)
    engine.play(30, requests_running=running, requests_waiting=9, kv_usage=kv, **SERVED)
    attribution = engine.attribution(tmp_path)
    assert finding(attribution, "queue.head_of_line").status is Status.NOT_FOUND


def test_deferred_requests_wait_for_a_transfer(tmp_path: Path) -> None:
    engine = Scrapes().play(
        30,
        requests_running=1,
        requests_waiting=20,
        kv_usage=0.04,
        generation_tokens=8,
        prompt_tokens=0,
        requests_waiting_by_reason__deferred=18,
        requests_max=64,
    )
    attribution = engine.attribution(tmp_path)
    assert finding(attribution, "queue.remote_wait").status is Status.FOUND
    assert finding(attribution, "queue.head_of_line").status is Status.NOT_FOUND


def test_nothing_admitted_into_an_empty_cache_is_not_proof_of_a_transfer(tmp_path: Path) -> None:
    still = {"generation_tokens": 0, "prompt_tokens": 0}
    engine = Scrapes().play(10, requests_running=8, requests_waiting=0, kv_usage=0.4, **SERVED)
    engine.play(30, requests_running=1, requests_waiting=20, kv_usage=0.04, **still)
    attribution = engine.attribution(tmp_path)
    assert finding(attribution, "queue.remote_wait").status is Status.UNDECIDED
    assert finding(attribution, "queue.head_of_line").status is Status.NOT_FOUND


def retrying(
    age_s: float = 1.2, aborted: float = 6.0, done: float = 2.0, waiting: float = 10.0
) -> Scrapes:
    return Scrapes().play(
        40,
        requests_running=12,
        requests_waiting=waiting,
        kv_usage=0.5,
        requests_max=12,
        requests_finished__abort=aborted,
        requests_finished__stop=done,
        e2e_seconds=(age_s, aborted + done),
        **SERVED,
    )


def test_a_retry_storm_is_found(tmp_path: Path) -> None:
    attribution = retrying().attribution(tmp_path)
    storm = finding(attribution, "queue.retry_storm")
    assert storm.status is Status.FOUND
    assert {item.name: item.value for item in storm.evidence}["given_up_share"] == 75.0


def test_aborts_while_nobody_waits_may_be_cancelled(tmp_path: Path) -> None:
    """An editor's completions: the next key ends most of them, early, and asks for another."""
    storm = finding(retrying(waiting=0).attribution(tmp_path), "queue.retry_storm")
    assert storm.status is Status.UNDECIDED
    assert "editor" in storm.undecided_because


def test_aborts_that_many_outlive_are_no_time_outs(tmp_path: Path) -> None:
    engine = Scrapes()
    for age, n in ((0.3, 5), (3.0, 3)) * 20:
        engine.play(
            1,
            requests_running=12,
            requests_waiting=4,
            requests_finished__abort=5,
            requests_finished__stop=3,
            e2e_seconds=(age, n),
            **SERVED,
        )
    answer = finding(engine.attribution(tmp_path), "queue.retry_storm")
    assert answer.status is Status.UNDECIDED


def test_few_aborts_are_no_storm(tmp_path: Path) -> None:
    attribution = retrying(aborted=0.5, done=8.0).attribution(tmp_path)
    assert finding(attribution, "queue.retry_storm").status is Status.NOT_FOUND


def test_aborts_without_their_ages_are_undecided(tmp_path: Path) -> None:
    engine = Scrapes().play(
        40,
        requests_running=4,
        requests_waiting=0,
        requests_finished__abort=5,
        requests_finished__stop=2,
        **SERVED,
    )
    assert finding(engine.attribution(tmp_path), "queue.retry_storm").status is Status.UNDECIDED


def replicas(
    waiting: tuple[float, float],
    running: tuple[float, float],
    tokens: tuple[float, float] = (400, 400),
) -> list[Scrapes]:
    return [
        Scrapes(f"http://10.0.0.{index}:8000/metrics").play(
            20,
            requests_running=busy,
            requests_waiting=queue,
            kv_usage=0.5,
            **{**SERVED, "generation_tokens": made},
        )
        for index, (queue, busy, made) in enumerate(zip(waiting, running, tokens, strict=True))
    ]


def test_one_hot_replica_is_found(tmp_path: Path) -> None:
    hot, cool = replicas((12, 0), (16, 4), (900, 300))
    attribution = hot.attribution(tmp_path, cool)
    assert attribution.verdict.cause == "queue.imbalance"
    assert "10.0.0.0" in attribution.verdict.text


def test_a_slow_replica_is_not_called_hot(tmp_path: Path) -> None:
    """It makes fewer tokens than the one that has room."""
    slow, other = replicas((12, 0), (16, 8), (300, 400))
    answer = finding(slow.attribution(tmp_path), "queue.imbalance")
    assert answer.status is Status.NOT_APPLICABLE
    answer = finding(slow.attribution(tmp_path / "both", other), "queue.imbalance")
    assert answer.status is Status.UNDECIDED
    assert "it made 6000 tokens and those with room 8000" in answer.undecided_because


def test_overloaded_replicas_are_balanced(tmp_path: Path) -> None:
    first, second = replicas((12, 11), (16, 16))
    attribution = first.attribution(tmp_path, second)
    assert finding(attribution, "queue.imbalance").status is Status.NOT_FOUND


FRONT = 3_990


def serving(front_end: float, ttft_s: float, waiting: float) -> Service:
    """An engine that is used little, and a front end that uses that much of a CPU."""
    service = Service(seed=3, has_engine=False, has_nvml=False)
    service.decode_until(service.start + 15 * S)
    engine = Scrapes().play(
        15,
        requests_running=1,
        requests_waiting=waiting,
        ttft_seconds=(ttft_s, 5),
        prefill_seconds=(0.04, 5),
        **SERVED,
    )
    rows = [
        {
            "start_ns": service.start + index * S,
            "duration_ns": S,
            "pid": FRONT,
            "tid": FRONT + thread,
            "running_ns": int(front_end * S / 4),
            "waiting_ns": 0,
            "sleeping_ns": int(S * (1 - front_end / 4)),
        }
        for index in range(15)
        for thread in range(4)
    ]
    service.rows["thread_second"] = rows
    service.rows["engine_sample"] = engine.rows
    service.rows["gpu_sample"] = gpu_rows(service.start, 15, util_pct=35.0)
    return service


@pytest.mark.parametrize(
    ("front_end", "ttft_s", "waiting", "status"),
    [
        (0.97, 1.8, 0, Status.FOUND),
        (0.30, 1.8, 0, Status.UNDECIDED),
        (0.97, 0.05, 0, Status.UNDECIDED),
        (0.97, 1.8, 9, Status.NOT_FOUND),
    ],
    ids=["saturated", "front end has room", "it polls", "the engine is behind"],
)
def test_a_saturated_front_end(
    tmp_path: Path, front_end: float, ttft_s: float, waiting: float, status: Status
) -> None:
    service = serving(front_end, ttft_s, waiting)
    attribution = attribute(service.session(tmp_path / "session", service.start + 15 * S))
    assert finding(attribution, "queue.frontend").status is status
    if status is Status.FOUND:
        assert attribution.verdict.cause == "queue.frontend"


def test_prompts_that_hold_the_device_for_most_of_the_time_are_told_by_the_rest(
    tmp_path: Path,
) -> None:
    engine = Scrapes()
    level = {"requests_running": 2, "requests_waiting": 0, "preemptions": 0}
    engine.play(12, **level, generation_tokens=60, prompt_tokens=0)
    engine.play(60, **level, generation_tokens=1, prompt_tokens=2_500)
    engine.play(8, **level, generation_tokens=60, prompt_tokens=0)
    assert engine.attribution(tmp_path).verdict.cause == "prefill.hogging"


def test_evictions_that_fill_the_service_are_not_called_overload(tmp_path: Path) -> None:
    engine = Scrapes()
    engine.play(10, requests_running=8, requests_waiting=0, kv_usage=0.6, **SERVED)
    crowded = {"requests_running": 3, "requests_waiting": 20, "kv_usage": 0.99}
    engine.play(40, **crowded, generation_tokens=10, prompt_tokens=100, preemptions=4)
    attribution = engine.attribution(tmp_path)
    assert attribution.verdict.cause == "kv.preemption"
    assert finding(attribution, "queue.overload").status is not Status.FOUND
