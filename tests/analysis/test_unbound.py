"""A tail of first tokens at a steady load, and whether the processes were bound to a node."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from analysis import attribute
from analysis.attribution import Attribution
from analysis.finding import Status
from tests.analysis.builder import S
from tests.analysis.scrapes import Scrapes, finding

SECONDS = 120


def served(
    path: Path,
    seed: int,
    *,
    slow_s: float = 7.0,
    allowed: int = 192,
    nodes: int = 2,
    waiting: int = 0,
    most: int = 20,
) -> Attribution:
    """Two minutes of requests of which some get their first token late."""
    rng = random.Random(seed)
    engine = Scrapes()
    for index in range(SECONDS):
        engine.play(
            1,
            requests_running=20 if index < SECONDS // 2 else most,
            requests_waiting=waiting,
            generation_tokens=900,
            ttft_seconds=(slow_s if rng.random() < 0.05 else 0.4, 4),
        )
    rows: list[dict[str, Any]] = [
        {"time_ns": engine.start + tick * S, "pid": 4_000, "n_cpus_allowed": allowed}
        for tick in range(SECONDS)
    ]
    host = {"n_cpus": 192, "n_numa_nodes": nodes}
    builder = engine.builder(path / "session", host=host).add("process_sample", rows)
    return attribute(builder.write())


@pytest.mark.parametrize("seed", range(3))
def test_late_first_tokens_of_an_unbound_service_may_be_its_placement(
    tmp_path: Path, seed: int
) -> None:
    attribution = served(tmp_path, seed)
    answer = finding(attribution, "launch.placement")
    assert answer.status is Status.UNDECIDED
    assert "long prompts look the same" in answer.undecided_because
    assert attribution.verdict.cause == "unknown"
    assert attribution.verdict.candidates[0] == "launch.placement"


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "change",
    [{"allowed": 96}, {"nodes": 1}, {"slow_s": 0.9}, {"waiting": 3}, {"most": 50}],
    ids=["bound", "one node", "no tail", "a queue", "more load"],
)
def test_other_tails_and_bound_services_are_not(
    tmp_path: Path, seed: int, change: dict[str, Any]
) -> None:
    attribution = served(tmp_path, seed, **change)
    assert finding(attribution, "launch.placement").status is Status.NOT_FOUND
