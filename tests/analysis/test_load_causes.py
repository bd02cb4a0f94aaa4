"""Overload and preemption on tiny engines, each beside what it must be told apart from."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from analysis import attribute
from analysis.attribution import Attribution
from analysis.finding import Finding, Status
from tests.analysis.builder import S, SessionBuilder

GAUGES = ("requests_running", "requests_waiting", "kv_usage", "kv_pool_tokens", "requests_max")


class Engine:
    """An engine's scrapes, a second each; ``hidden`` metrics are not exposed."""

    def __init__(self, hidden: Sequence[str] = ("requests_max",)) -> None:
        self.hidden = hidden
        self.now = 1_000 * S
        self.total = dict.fromkeys(
            ("generation_tokens", "prompt_tokens", "preemptions", "requests_finished"), 0.0
        )
        self.gap_seconds = self.n_gaps = 0.0
        self.gauges = dict.fromkeys(GAUGES, 0.0)
        self.rows: list[dict[str, object]] = []
        self._scrape()

    def play(
        self,
        seconds: int,
        running: float = 4,
        waiting: float = 0,
        kv: float = 0.3,
        gap_ms: float = 10,
        prompts: float = 100,
        preempted: float = 0,
        finished: float = 2,
    ) -> Engine:
        for _ in range(seconds):
            self.now += S
            tokens = running / gap_ms * 1e3
            self.total["generation_tokens"] += tokens
            self.total["prompt_tokens"] += prompts
            self.total["preemptions"] += preempted
            self.total["requests_finished"] += finished
            self.gap_seconds += tokens * gap_ms / 1e3
            self.n_gaps += tokens
            self.gauges = dict(zip(GAUGES, (running, waiting, kv, 6_000, 8), strict=True))
            self._scrape()
        return self

    def _scrape(self) -> None:
        values = [(name, "gauge", value) for name, value in self.gauges.items()]
        values += [(name, "counter", value) for name, value in self.total.items()]
        values.append(("inter_token_seconds", "sum", self.gap_seconds))
        values.append(("inter_token_seconds", "count", self.n_gaps))
        self.rows += [
            {
                "time_ns": self.now,
                "endpoint": "http://127.0.0.1:8000/metrics",
                "engine": "vllm",
                "metric": name,
                "raw_name": name,
                "kind": kind,
                "value": float(value),
            }
            for name, kind, value in values
            if name not in self.hidden
        ]

    def attribution(self, path: Path, origin: str = "scrapes") -> Attribution:
        limits = {"start_ns": 1_000 * S, "end_ns": self.now}
        builder = SessionBuilder(path / "s", origin=origin, gpus=[], **limits)
        return attribute(builder.add("engine_sample", self.rows).write())


def of(attribution: Attribution, cause: str) -> Finding:
    return next(
        item for item in (*attribution.findings, *attribution.checked) if item.cause == cause
    )


def evicting(engine: Engine, seconds: int, **more: float) -> Engine:
    """Every second second a request is evicted, and tokens take three times as long."""
    for _ in range(seconds // 2):
        engine.play(1, 8, 6, 0.99, 30, 0, **{"preempted": 2, **more})
        engine.play(2, 8, 6, 0.97, 10, 0, finished=1)
    return engine


def test_preemption_is_found_before_the_queue_it_makes(tmp_path: Path) -> None:
    attribution = evicting(Engine(), 40).attribution(tmp_path)
    finding = of(attribution, "kv.preemption")
    assert attribution.verdict.cause == "kv.preemption"
    assert finding.status is Status.FOUND and finding.confidence > 0.85
    assert finding.symptoms == ["queue.overload"]
    numbers = {item.name: float(item.value) for item in finding.evidence}
    assert numbers["preemptions"] == 40
    # Two requests of an eighth of 6000 tokens at 99 %, twenty times.
    assert numbers["recomputed_tokens"] == pytest.approx(40 * 0.99 * 6_000 / 8, rel=0.01)
    # A third of the time tokens take three times as long.
    assert finding.lost_share == pytest.approx(2 / 9, rel=0.1)
    assert of(attribution, "queue.overload").status is Status.FOUND


def test_preemption_all_the_time_is_told_by_the_work_done_twice(tmp_path: Path) -> None:
    finding = of(
        Engine().play(30, 8, 6, 0.99, 30, 50, preempted=1).attribution(tmp_path), "kv.preemption"
    )
    assert finding.status is Status.FOUND and finding.confidence < 0.8


def test_a_full_cache_alone_is_no_cause(tmp_path: Path) -> None:
    attribution = Engine().play(40, 8, 0, 0.97).attribution(tmp_path)
    assert attribution.verdict.cause == "healthy"
    finding = of(attribution, "kv.preemption")
    assert finding.status is Status.NOT_FOUND
    assert "97 % full, which alone costs none" in finding.excluded[0].reason


def test_preemptions_that_cost_nothing_are_no_cause(tmp_path: Path) -> None:
    engine = Engine()
    for _ in range(12):
        engine.play(1, 100, 0, 0.95, 10, 0, preempted=1).play(2, 100, 0, 0.93, 10, 0)
    assert of(engine.attribution(tmp_path), "kv.preemption").status is Status.NOT_FOUND


@pytest.mark.parametrize(
    ("hidden", "kv"), [(("requests_max", "kv_usage"), 0.99), (("requests_max",), 0.5)]
)
def test_preemption_is_undecided_without_a_cache_seen_full(
    tmp_path: Path, hidden: tuple[str, ...], kv: float
) -> None:
    engine = Engine(hidden).play(10, 8, 0, kv)
    for _ in range(10):
        engine.play(1, 8, 0, kv, 30, preempted=2).play(2, 8, 0, kv)
    attribution = engine.attribution(tmp_path)
    finding = of(attribution, "kv.preemption")
    assert finding.status is Status.UNDECIDED and finding.settled_by
    assert attribution.verdict.cause == "unknown"


def test_prompts_that_hold_the_device_are_not_preemption(tmp_path: Path) -> None:
    engine = Engine()
    for _ in range(12):
        engine.play(1, 4, 0, 0.4, 800, 3_500).play(1, 4, 0, 0.4, 8, 0)
    attribution = engine.attribution(tmp_path)
    assert attribution.verdict.cause == "prefill.hogging"
    for cause in ("kv.preemption", "queue.overload"):
        assert of(attribution, cause).status is Status.NOT_FOUND


@pytest.mark.parametrize("hidden", [(), ("requests_max",), ("requests_max", "kv_usage")])
def test_overload_at_the_limit_of_the_batch(tmp_path: Path, hidden: tuple[str, ...]) -> None:
    engine = Engine(hidden).play(10).play(5, 8, 6, finished=5).play(30, 8, 20, finished=5)
    attribution = engine.attribution(tmp_path)
    finding = of(attribution, "queue.overload")
    assert finding.status is Status.FOUND
    assert attribution.verdict.cause == "queue.overload"
    assert finding.lost_ns == 0
    numbers = {item.name: float(item.value) for item in finding.evidence}
    assert numbers["at_batch_limit"] == 100
    assert numbers["arrivals_rise"] > 1.25


@pytest.mark.parametrize("seed", range(4))
def test_a_short_queue_before_the_deep_one_does_not_hide_the_limit(
    tmp_path: Path, seed: int
) -> None:
    """The batch is below its limit while a short queue stands, and about at it in the deep one."""
    rng = random.Random(seed)
    engine = Engine()
    for second in range(80):
        is_deep = second >= 35
        largest = 70 if second == 60 else rng.uniform(60, 65)
        running = largest if is_deep else 40
        engine.play(1, running, 60 + 4 * second if is_deep else 2, 0.7)
    assert of(engine.attribution(tmp_path), "queue.overload").status is Status.FOUND


def test_overload_by_a_full_cache_without_eviction(tmp_path: Path) -> None:
    engine = Engine().play(10)
    for running in (5, 7, 4, 6, 8, 5) * 5:
        engine.play(1, running, 9, 0.95, finished=4)
    finding = of(engine.attribution(tmp_path), "queue.overload")
    assert finding.status is Status.FOUND and "the cache is full" in finding.summary


def test_short_waits_are_healthy(tmp_path: Path) -> None:
    engine = Engine(())
    for _ in range(8):
        engine.play(6, 6).play(1, 8, 2)
    attribution = engine.attribution(tmp_path)
    assert of(attribution, "queue.overload").status is Status.NOT_FOUND
    assert attribution.verdict.cause == "healthy"


def test_waiting_with_room_is_not_overload(tmp_path: Path) -> None:
    """Head-of-line blocking: the cache is free and the batch below its limit."""
    engine = Engine(()).play(10)
    for running in (6, 4, 3, 2) * 8:
        engine.play(1, running, 9, 0.3)
    attribution = engine.attribution(tmp_path)
    finding = of(attribution, "queue.overload")
    assert finding.status is Status.NOT_FOUND
    assert "queue.head_of_line" in finding.excluded[-1].reason
    assert attribution.verdict.cause == "queue.head_of_line"


def test_waiting_is_undecided_where_capacity_is_not_exposed(tmp_path: Path) -> None:
    engine = Engine(("requests_max", "kv_usage")).play(10)
    for running in (6, 4, 3, 9) * 8:
        engine.play(1, running, 9)
    assert of(engine.attribution(tmp_path), "queue.overload").status is Status.UNDECIDED


@pytest.mark.parametrize("waiting", [1, 2])
@pytest.mark.parametrize("more", [1.5, 3])
def test_a_short_queue_that_stands_since_more_come_is_suspected(
    tmp_path: Path, waiting: int, more: float
) -> None:
    hidden = ("requests_max", "kv_usage")
    engine = Engine(hidden).play(20, 5).play(40, 9, waiting, finished=2 * more)
    finding = of(engine.attribution(tmp_path), "queue.overload")
    assert finding.status is Status.UNDECIDED
    assert "at an unchanged speed" in finding.undecided_because


@pytest.mark.parametrize(
    ("gap_ms", "finished"), [(10, 2), (30, 6)], ids=["as many come", "slower as well"]
)
def test_a_short_queue_alone_is_not(tmp_path: Path, gap_ms: float, finished: float) -> None:
    hidden = ("requests_max", "kv_usage")
    engine = Engine(hidden).play(20, 8).play(40, 9, 1, gap_ms=gap_ms, finished=finished)
    assert of(engine.attribution(tmp_path), "queue.overload").status is Status.NOT_FOUND


def test_a_queue_behind_slower_service_is_not_overload(tmp_path: Path) -> None:
    """The same arrivals, four times slower steps: the queue is a consequence."""
    engine = Engine(()).play(20, 4, finished=4)
    for second in range(30):
        engine.play(1, 8, min(3 * second, 40), 0.5, 40, finished=1)
    attribution = engine.attribution(tmp_path)
    finding = of(attribution, "queue.overload")
    assert finding.status is Status.NOT_FOUND
    assert "service time rose" in finding.excluded[-1].reason
    assert attribution.verdict.cause == "unknown"


def test_a_queue_while_fewer_tokens_are_served_is_not_called_overload(tmp_path: Path) -> None:
    """A slower device and unknown arrivals: the batch fills up, and less is served."""
    engine = Engine(("requests_finished",)).play(30, 4, gap_ms=10)
    for second in range(40):
        engine.play(1, 8, 3 + second, 0.5, gap_ms=26)
    finding = of(engine.attribution(tmp_path), "queue.overload")
    assert finding.status is Status.UNDECIDED
    assert "instead of the 400 before" in finding.undecided_because
    assert "clocks" in finding.settled_by


def test_a_queue_of_no_more_requests_is_not_called_overload(tmp_path: Path) -> None:
    """As many come as before, and tokens take a fifth longer: too long for this batch."""
    engine = Engine(()).play(40, 6, gap_ms=10, finished=6)
    for second in range(60):
        engine.play(1, 8, 4 + second / 2, 0.5, gap_ms=12.5, finished=5.5)
    finding = of(engine.attribution(tmp_path), "queue.overload")
    assert finding.status is Status.UNDECIDED
    assert "times as many requests came as before" in finding.undecided_because


def test_overload_from_the_first_second_on_is_less_sure(tmp_path: Path) -> None:
    """Nothing tells whether the service was ever faster."""
    known = Engine(()).play(30, 4).play(40, 8, 20, finished=6)
    always = Engine(()).play(40, 8, 20, finished=6)
    sure, unsure = (
        of(engine.attribution(tmp_path / name), "queue.overload")
        for name, engine in (("known", known), ("always", always))
    )
    assert (sure.status, unsure.status) == (Status.FOUND, Status.FOUND)
    assert unsure.confidence < 0.7 < sure.confidence


@pytest.mark.parametrize(
    ("is_between", "status"), [(False, Status.UNDECIDED), (True, Status.FOUND)]
)
def test_evictions_from_which_on_all_is_slower_are_not_proven(
    tmp_path: Path, is_between: bool, status: Status
) -> None:
    """Tokens take twice as long from the first eviction on; or only while requests are evicted."""
    engine = Engine(("requests_max", "kv_pool_tokens")).play(20, 8, 0, 0.8)
    for _ in range(12):
        engine.play(1, 8, 0, 0.97, 22, preempted=1)
        engine.play(2, 8, 0, 0.95, 10 if is_between else 22, preempted=0 if is_between else 1)
    finding = of(engine.attribution(tmp_path), "kv.preemption")
    assert finding.status is status
    assert is_between or "lowered clock" in finding.undecided_because


@pytest.mark.parametrize("hung_s", [15, 40])
def test_a_queue_while_nothing_is_served_is_not_overload(tmp_path: Path, hung_s: int) -> None:
    """A hang: the last tokens come within its first second."""
    engine = (
        Engine().play(20, 8).play(1, 8, 3).play(hung_s, 8, 9, gap_ms=1e300, prompts=0, finished=0)
    )
    finding = of(engine.attribution(tmp_path), "queue.overload")
    assert finding.status is Status.NOT_FOUND
    assert "nothing was served" in finding.excluded[-1].reason


def test_nothing_is_said_without_an_engine(tmp_path: Path) -> None:
    attribution = attribute(SessionBuilder(tmp_path / "s", start_ns=0, end_ns=S).write())
    for cause in ("kv.preemption", "queue.overload"):
        assert of(attribution, cause).status is Status.NOT_APPLICABLE


def test_a_recording_that_saw_no_call_is_not_called_healthy(tmp_path: Path) -> None:
    engine = Engine().play(40, 8, 0, 0.5)
    assert engine.attribution(tmp_path / "scraped").verdict.cause == "healthy"
    attribution = engine.attribution(tmp_path / "blind", origin="record")
    assert attribution.verdict.cause == "unknown"
    assert attribution.findings[0].undecided_because == "no CUDA call was recorded"
