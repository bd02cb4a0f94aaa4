"""What changes over hours: prompt speed, memory, and latency that follows it or does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import attribute, trend
from analysis.attribution import Attribution
from analysis.finding import Status
from tests.analysis.builder import S
from tests.analysis.scrapes import Scrapes, finding, gpu_rows

HOUR = 3_600
LOAD = {
    "requests_running": 6,
    "requests_waiting": 0,
    "kv_usage": 0.5,
    "preemptions": 0,
    "generation_tokens": 200,
    "prompt_tokens": 400,
}
PID = 4_000


def hours(
    prefill: list[float],
    *,
    rss: list[float] | None = None,
    ttft: list[float] | None = None,
    load: list[float] | None = None,
) -> tuple[Scrapes, list[dict[str, Any]]]:
    """Six hours in as many parts as there are prefill times; memory in MiB."""
    engine = Scrapes(period=60)
    rows: list[dict[str, Any]] = []
    part = 6 * HOUR // len(prefill)
    for index, seconds in enumerate(prefill):
        rate = 1.0 if load is None else load[index]
        begin = engine.now
        engine.play(
            part,
            **LOAD,
            prefill_seconds=(seconds, rate),
            prefill_computed_tokens=(400, rate),
            request_prompt_tokens=(400, rate),
            requests_finished__stop=rate,
            ttft_seconds=(0.3 if ttft is None else ttft[index], rate),
        )
        if rss is not None:
            level = rss[index]
            step = (rss[min(index + 1, len(rss) - 1)] - level) / (part // 60)
            rows += [
                {
                    "time_ns": begin + tick * 60 * S,
                    "pid": PID,
                    "name": "engine",
                    "rss_anon_bytes": int((level + step * tick) * (1 << 20)),
                }
                for tick in range(part // 60)
            ]
    return engine, rows


def analysed(path: Path, engine: Scrapes, memory: list[dict[str, Any]], **gpu: Any) -> Attribution:
    builder = engine.builder(path / "session")
    if memory:
        builder.add("process_sample", memory)
    if gpu:
        builder.add("gpu_sample", gpu_rows(engine.start, 6 * HOUR, **gpu)[::60])
    return attribute(builder.write())


FALLING = [0.20 + 0.01 * index for index in range(24)]


def test_prompts_that_get_slower_at_like_load_decay(tmp_path: Path) -> None:
    attribution = analysed(tmp_path, *hours(FALLING), sm_clock_mhz=1_900, clock_reasons=0)
    assert attribution.verdict.cause == "prefill.decay"
    decay = finding(attribution, "prefill.decay")
    assert decay.status is Status.FOUND
    assert {item.name: item.value for item in decay.evidence}["prefill_speed_first"] > 1_500


def test_slower_prompts_without_clocks_are_undecided(tmp_path: Path) -> None:
    decay = finding(analysed(tmp_path, *hours(FALLING)), "prefill.decay")
    assert decay.status is Status.UNDECIDED
    assert "clocks of the GPU" in decay.undecided_because


def test_prompts_that_get_slower_with_the_tokens_are_undecided(tmp_path: Path) -> None:
    """All of the device is slower, as beside another process."""
    engine, rows = hours(FALLING)
    slower = 0.0
    for row in engine.rows:
        if row["metric"] == "generation_tokens":
            slower += 60 * 200 * (1 - (row["time_ns"] - engine.start) / (9 * HOUR * S))
            row["value"] = slower
    attribution = analysed(tmp_path, engine, rows, sm_clock_mhz=1_900, clock_reasons=0)
    decay = finding(attribution, "prefill.decay")
    assert decay.status is Status.UNDECIDED
    assert "times as long too" in decay.undecided_because


def test_prompts_that_get_slower_beside_tokens_unknown_may_have_a_neighbour(tmp_path: Path) -> None:
    engine, rows = hours([0.2] * 8 + [0.32] * 8 + [0.42] * 8)
    engine.rows = [row for row in engine.rows if row["metric"] != "generation_tokens"]
    attribution = analysed(tmp_path, engine, rows, sm_clock_mhz=1_900, clock_reasons=0)
    decay = finding(attribution, "prefill.decay")
    assert decay.status is Status.UNDECIDED
    assert "another process" in decay.undecided_because


def test_prompts_of_steady_speed_do_not(tmp_path: Path) -> None:
    engine, rows = hours([0.2, 0.22, 0.19, 0.21] * 6)
    attribution = analysed(tmp_path, engine, rows)
    assert finding(attribution, "prefill.decay").status is Status.NOT_FOUND
    assert attribution.verdict.cause != "prefill.decay"


def test_slower_prompts_under_more_load_are_undecided(tmp_path: Path) -> None:
    more = [1 + index / 8 for index in range(24)]
    engine, rows = hours(FALLING, load=more)
    for row in engine.rows:
        if row["metric"] == "requests_running":
            row["value"] = 6 + (row["time_ns"] - engine.start) / S / HOUR
    attribution = analysed(tmp_path, engine, rows)
    assert finding(attribution, "prefill.decay").status is Status.UNDECIDED


STEADY = [0.2] * 24


def test_memory_of_every_request_is_a_leak(tmp_path: Path) -> None:
    load = [1.0] * 9 + [0.0] * 4 + [1.0] * 11
    level, rss = 6_000.0, []
    for rate in load:
        rss.append(level)
        level += 30 * rate
    attribution = analysed(tmp_path, *hours(STEADY, rss=rss, load=load))
    leak = finding(attribution, "memory.host_leak")
    assert leak.status is Status.FOUND
    # 600 MiB over 20 quarters of an hour with a request a second.
    each = {item.name: item.value for item in leak.evidence}["per_request"]
    assert each == pytest.approx(20 * 30 * (1 << 20) / (20 * 900), rel=0.1)
    assert attribution.verdict.cause == "memory.host_leak"


def test_a_pool_that_fills_up_is_no_leak(tmp_path: Path) -> None:
    rss = [6_000 + 800 * (1 - float(np.exp(-index / 4))) for index in range(24)]
    attribution = analysed(tmp_path, *hours(STEADY, rss=rss))
    assert finding(attribution, "memory.host_leak").status is Status.NOT_FOUND


def test_growth_without_requests_known_is_undecided(tmp_path: Path) -> None:
    engine, rows = hours(STEADY, rss=[6_000 + 30 * index for index in range(24)])
    known = ("requests_finished", "ttft_seconds")
    engine.rows = [row for row in engine.rows if row["metric"] not in known]
    attribution = analysed(tmp_path, engine, rows)
    assert finding(attribution, "memory.host_leak").status is Status.UNDECIDED


def test_latency_that_follows_the_memory_is_a_growing_pool(tmp_path: Path) -> None:
    rss = [6_000 + 60 * index for index in range(24)]
    ttft = [0.05 + 0.08 * index for index in range(24)]
    attribution = analysed(tmp_path, *hours(STEADY, rss=rss, ttft=ttft), sm_clock_mhz=1_900)
    assert finding(attribution, "kv.pool_growth").status is Status.FOUND
    assert finding(attribution, "memory.host_leak").status is Status.NOT_FOUND
    assert attribution.verdict.cause == "kv.pool_growth"


def test_latency_that_follows_the_memory_may_follow_an_unseen_clock(tmp_path: Path) -> None:
    rss = [6_000 + 60 * index for index in range(24)]
    ttft = [0.05 + 0.08 * index for index in range(24)]
    answer = finding(analysed(tmp_path, *hours(STEADY, rss=rss, ttft=ttft)), "kv.pool_growth")
    assert answer.status is Status.UNDECIDED
    assert "clocks of the GPU" in answer.undecided_because


def test_latency_that_rises_over_flat_memory_is_not(tmp_path: Path) -> None:
    ttft = [0.05 + 0.08 * index for index in range(24)]
    attribution = analysed(tmp_path, *hours(STEADY, rss=[6_000.0] * 24, ttft=ttft))
    assert finding(attribution, "kv.pool_growth").status is Status.NOT_FOUND


def evicted_for_hours(path: Path, seed: int, *, slower: float, kv: float = 0.97) -> Attribution:
    """Four hours without evictions, then eight with ever more, in which tokens become slower."""
    rng = np.random.default_rng(seed)
    engine = Scrapes(period=120)
    for index in range(12 * 30):
        late = max(index / 30 - 4, 0.0) / 8
        engine.play(
            120,
            requests_running=24,
            requests_waiting=0,
            generation_tokens=1_500 / (1 + late * (slower - 1)) * rng.uniform(0.97, 1.03),
            kv_usage=kv if late else 0.7,
            preemptions=0.5 * late,
        )
    return engine.attribution(path)


@pytest.mark.parametrize("seed", range(3))
def test_tokens_that_become_slower_with_evictions_over_hours_are_suspected(
    tmp_path: Path, seed: int
) -> None:
    attribution = evicted_for_hours(tmp_path, seed, slower=1.25)
    answer = finding(attribution, "kv.preemption")
    assert answer.status is Status.UNDECIDED and "following the evictions" in (
        answer.undecided_because
    )
    assert attribution.verdict.candidates[0] == "kv.preemption"


@pytest.mark.parametrize("seed", range(3))
def test_evictions_that_slow_nothing_over_hours_are_not(tmp_path: Path, seed: int) -> None:
    answer = finding(evicted_for_hours(tmp_path, seed, slower=1.0), "kv.preemption")
    assert answer.status is Status.NOT_FOUND


def test_a_trend_is_told_from_noise() -> None:
    rng = np.random.default_rng(1)
    noise = rng.normal(size=24)
    assert trend.chance_of_trend(noise) > 0.01
    assert trend.chance_of_trend(np.arange(24) + noise) < trend.CHANCE
    assert trend.chance_of_trend(np.full(24, 3.0)) == 1.0
    assert trend.ratio(np.arange(1.0, 25.0)) == pytest.approx(20.5 / 4.5, rel=0.2)
    assert trend.blocks(0, 60 * S) is None
