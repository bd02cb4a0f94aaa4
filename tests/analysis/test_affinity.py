"""Threads that wait for the few CPUs of their mask, beside threads that wait for other reasons."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from analysis import attribute
from analysis.attribution import Attribution
from analysis.finding import Finding, Status
from analysis.manifest import Target
from tests.analysis.builder import S, SessionBuilder
from tests.analysis.scrapes import finding, gpu_rows

MAIN, WORKER, SECONDS, START = 4_000, 4_100, 20, 1_000 * S


def loading(
    path: Path,
    seed: int,
    *,
    allowed: int = 2,
    main_allowed: int = 8,
    running: float = 2.0,
    waiting: float = 4.0,
    idle: float = 5.5,
    util: float | None = 15.0,
    throttled: int = 0,
) -> Attribution:
    """A training process whose workers, eight threads, have and miss so many CPUs in all."""
    rng = random.Random(seed)
    processes: list[dict[str, Any]] = []
    host: list[dict[str, Any]] = []
    threads: list[dict[str, Any]] = []
    for tick in range(SECONDS + 1):
        time = START + tick * S
        processes += [
            {"time_ns": time, "pid": pid, "n_cpus_allowed": n, "cpus_allowed": f"0-{n - 1}"}
            for pid, n in ((MAIN, main_allowed), (WORKER, allowed))
        ]
        host += [
            {"time_ns": time, "scope": "host", "n_cpus": 8, "cpu_idle_ns": int(idle * tick * S)},
            {
                "time_ns": time,
                "scope": "/pod",
                "n_cpu_periods": 10 * tick,
                "n_cpu_throttled": throttled * tick,
                "cpu_throttled_ns": throttled * tick * 50_000_000,
                "cpu_quota_ns": 200_000_000,
                "cpu_period_ns": 100_000_000,
            },
        ]
        for thread in range(8 * (tick < SECONDS)):
            had, missed = (
                int(share / 8 * rng.uniform(0.95, 1.0) * S) for share in (running, waiting)
            )
            threads.append(
                {
                    "start_ns": time,
                    "duration_ns": S,
                    "pid": WORKER,
                    "tid": WORKER + thread,
                    "running_ns": had,
                    "waiting_ns": missed,
                    "sleeping_ns": S - had - missed,
                }
            )
    targets = [Target(MAIN, name="python3", cgroup="/pod"), Target(WORKER, name="loader")]
    limits = {"start_ns": START, "end_ns": START + SECONDS * S}
    builder = SessionBuilder(path / "session", targets=targets, **limits)
    builder.add("process_sample", processes).add("host_sample", host)
    if util is not None:
        builder.add("gpu_sample", gpu_rows(START, SECONDS, util_pct=util))
    return attribute(builder.add("thread_second", threads).write())


def answer(attribution: Attribution) -> Finding:
    return finding(attribution, "launch.placement")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("allowed", "running"), [(1, 0.95), (2, 2.0), (3, 2.9)])
def test_workers_that_share_few_cpus_beside_idle_ones_are_misplaced(
    tmp_path: Path, seed: int, allowed: int, running: float
) -> None:
    attribution = loading(tmp_path, seed, allowed=allowed, running=running, idle=7.5 - allowed)
    found = answer(attribution)
    assert found.status is Status.FOUND and found.where.pid == WORKER
    assert attribution.verdict.cause == "launch.placement"
    assert f"may use {allowed} CPUs" in attribution.verdict.text


@pytest.mark.parametrize(
    "change",
    [{"main_allowed": 2}, {"util": None}, {"throttled": 6}],
    ids=["a cpuset", "device not known", "throttled"],
)
def test_what_else_it_may_be_leaves_it_undecided(tmp_path: Path, change: dict[str, Any]) -> None:
    found = answer(loading(tmp_path, 1, **change))
    assert found.status is Status.UNDECIDED and found.settled_by


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "change",
    [
        {"allowed": 8},
        {"waiting": 0.1},
        {"running": 0.6},
        {"idle": 0.3},
        {"util": 92.0},
    ],
    ids=["all CPUs", "no waits", "others hold them", "no CPU is idle", "device used"],
)
def test_other_waits_are_not_the_masks(tmp_path: Path, seed: int, change: dict[str, Any]) -> None:
    assert answer(loading(tmp_path, seed, **change)).status is Status.NOT_FOUND
