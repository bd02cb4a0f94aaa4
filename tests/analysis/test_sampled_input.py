"""Input that comes too slowly, suspected from samples alone; and what looks like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import attribute
from analysis.attribution import Attribution
from analysis.finding import Status
from analysis.manifest import Gpu, Target
from tests.analysis.builder import S, SessionBuilder
from tests.analysis.scrapes import Scrapes, finding, gpu_rows

TRAINER, WORKER = 4_000, 4_100
START = 1_000 * S
SATURATED, WAITING, IDLE = (0.97, 0.01), (0.25, 0.7), (0.2, 0.01)


def sampled(
    path: Path,
    worker: tuple[float, float],
    main: tuple[float, float] = (0.06, 0.0),
    util: float = 12.0,
    *,
    is_child: bool = True,
    has_engine: bool = False,
) -> Attribution:
    """A trainer and another process, by the shares of each second that threads ran and were
    ready; 20 s without a call recorded.
    """
    builder = SessionBuilder(
        path / "session",
        start_ns=START,
        end_ns=START + 20 * S,
        gpus=[Gpu(0, "GPU")],
        targets=[Target(TRAINER, name="a"), Target(WORKER, parent_pid=TRAINER, name="b")],
    )
    threads = (
        (TRAINER, TRAINER, main),
        (WORKER if is_child else TRAINER, WORKER, worker),
    )
    rows = [
        {
            "start_ns": START + index * S,
            "duration_ns": S,
            "pid": pid,
            "tid": tid,
            "running_ns": int(running * S),
            "waiting_ns": int(ready * S),
            "sleeping_ns": int((1 - running - ready) * S),
            "is_launcher": tid == TRAINER,
        }
        for index in range(20)
        for pid, tid, (running, ready) in threads
    ]
    builder.add("thread_second", rows)
    builder.add("gpu_sample", gpu_rows(START, 20, util_pct=util))
    if has_engine:
        builder.add("engine_sample", Scrapes().play(20, requests_running=3).rows)
    return attribute(builder.write())


def test_a_saturated_worker_beside_a_sleeping_trainer_is_suspected(tmp_path: Path) -> None:
    attribution = sampled(tmp_path, SATURATED)
    answer = finding(attribution, "host.input_starvation")
    assert answer.status is Status.UNDECIDED
    assert answer.lost_share == pytest.approx(0.88)
    assert attribution.verdict.cause == "unknown"
    assert attribution.verdict.candidates[0] == "host.input_starvation"


@pytest.mark.parametrize("worker", [WAITING, IDLE], ids=["no CPU for it", "it sleeps itself"])
def test_a_worker_that_is_not_the_limit(tmp_path: Path, worker: tuple[float, float]) -> None:
    answer = finding(sampled(tmp_path, worker), "host.input_starvation")
    assert answer.status is Status.NOT_FOUND


@pytest.mark.parametrize(
    ("main", "util"),
    [((0.9, 0.0), 12.0), ((0.06, 0.0), 93.0), ((0.06, 0.0), 0.0)],
    ids=["the trainer computes", "a busy device", "a device that nobody uses"],
)
def test_a_device_that_does_not_wait_for_input(
    tmp_path: Path, main: tuple[float, float], util: float
) -> None:
    answer = finding(sampled(tmp_path, SATURATED, main, util), "host.input_starvation")
    assert answer.status is Status.NOT_FOUND


def test_a_thread_of_the_trainer_itself_is_no_worker(tmp_path: Path) -> None:
    attribution = sampled(tmp_path, SATURATED, is_child=False)
    assert finding(attribution, "host.input_starvation").status is Status.NOT_FOUND


def test_what_serves_requests_has_no_input_workers(tmp_path: Path) -> None:
    attribution = sampled(tmp_path, SATURATED, has_engine=True)
    assert finding(attribution, "host.input_starvation").status is Status.NOT_APPLICABLE
