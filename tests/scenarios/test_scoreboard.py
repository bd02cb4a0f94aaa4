"""What a verdict counts as, what the figures are, and that the page of the docs tells the truth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.builder import SessionBuilder
from tests.scenarios import report, sources
from tests.scenarios.ablation import ABLATIONS, without
from tests.scenarios.build import build
from tests.scenarios.case import Case, all_cases
from tests.scenarios.report import SHORT_SEED
from tests.scenarios.score import Result, Truth, grade, summarise
from tests.scenarios.scoreboard import DOCS, results_of
from tests.scenarios.sources import Sample

#: The short form takes half a minute of CPU time: long on a machine that others keep busy.
pytestmark = pytest.mark.timeout(900)
DEVICE_TIMES = "without device times"
REFRESH = "renew it with: python -m tests.scenarios.scoreboard --short --docs"


def answer(
    cause: str, confidence: float, *findings: tuple[str, str, float], seconds: float = 36.0
) -> dict[str, Any]:
    return {
        "verdict": {"cause": cause, "confidence": confidence},
        "findings": [{"cause": c, "status": s, "confidence": sure} for c, s, sure in findings],
        "notes": [],
        "start_ns": 0,
        "end_ns": int(seconds * 1e9),
    }


HANG = Truth("hang.kernel")
OPEN = Truth("unknown", ("none", "undecided"), must_not=("power.throttle",))
WELL = Truth("healthy", ("found",))
WEAK = Truth("launch.gc_pause", ("undecided",))


@pytest.mark.parametrize(
    ("truth", "said", "outcome"),
    [
        (HANG, answer("hang.kernel", 0.9, ("hang.kernel", "found", 0.9)), "right"),
        (HANG, answer("unknown", 0.0), "unknown"),
        (HANG, answer("unknown", 0.0, ("hang.kernel", "undecided", 0.4)), "unknown"),
        (HANG, answer("unknown", 0.0, ("queue.overload", "undecided", 0.4)), "unsure"),
        (HANG, answer("queue.overload", 0.6, ("queue.overload", "found", 0.6)), "unsure"),
        (HANG, answer("queue.overload", 0.7, ("queue.overload", "found", 0.7)), "wrong"),
        (HANG, answer("healthy", 0.8), "missed"),
        (OPEN, answer("unknown", 0.0), "right"),
        (OPEN, answer("unknown", 0.0, ("hang.kernel", "undecided", 0.4)), "right"),
        (OPEN, answer("hang.kernel", 0.8, ("hang.kernel", "found", 0.8)), "wrong"),
        (OPEN, answer("power.throttle", 0.5, ("power.throttle", "found", 0.5)), "wrong"),
        (OPEN, answer("healthy", 0.8), "missed"),
        (WELL, answer("healthy", 0.8), "right"),
        (WELL, answer("launch.gil", 0.9, ("launch.gil", "found", 0.9)), "wrong"),
        (WEAK, answer("unknown", 0.0, ("launch.gc_pause", "undecided", 0.4)), "right"),
        (WEAK, answer("launch.gc_pause", 0.9, ("launch.gc_pause", "found", 0.9)), "overstated"),
    ],
)
def test_outcome(truth: Truth, said: dict[str, Any], outcome: str) -> None:
    result = grade(truth, said, kind="built", name="x")
    assert result.outcome == outcome
    assert bool(result.why) == (outcome not in ("right",))


def test_figures() -> None:
    rows = [
        grade(truth, said, kind="built", name=str(index))
        for index, (truth, said) in enumerate(
            [
                (HANG, answer("hang.kernel", 0.95, ("hang.kernel", "found", 0.95))),
                (HANG, answer("queue.overload", 0.95, ("queue.overload", "found", 0.95))),
                (HANG, answer("unknown", 0.0)),
                (WELL, answer("healthy", 0.8)),
                (WELL, answer("launch.gil", 0.75, ("launch.gil", "found", 0.75))),
            ]
        )
    ]
    summary = summarise(rows)
    assert (summary.n, summary.n_first, summary.n_confident_wrong) == (5, 2, 2)
    assert summary.outcomes["unknown"] == 1
    assert summary.healthy_hours == pytest.approx(72 / 3600)
    assert summary.n_false_alarms == 1
    # (from, to, stated, right): 0.75 and 0.8 below 0.9, two of 0.95 above.
    assert summary.calibration[2:] == [(0.7, 0.9, 2, 1), (0.9, 1.0, 2, 1)]
    assert summary.by_cause["hang.kernel"] == {
        "cases": 3,
        "first": 1,
        "stated": 1,
        "stated_right": 1,
    }
    assert summary.by_cause["queue.overload"]["stated"] == 1
    assert summary.confusion["hang.kernel", "unknown"] == 1


def test_results_come_back_from_json() -> None:
    said = answer("healthy", 0.8, ("launch.gil", "found", 0.75))
    row = grade(WELL, said, kind="built", name="x", seed=3)
    assert Result.from_json(json.loads(json.dumps(row.to_json()))) == row


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    """The short form: every built case of one seed."""
    folder = tmp_path_factory.mktemp("short")
    return [
        result
        for sample in sources.built(SHORT_SEED, folder)
        for result in results_of(sample, folder, is_ablated=False)
    ]


def test_page_lists_what_is_wrong(short: list[Result]) -> None:
    """What the docs say is still wrong is what is still wrong, no more and no less."""
    said = report.listed((DOCS / "scoreboard.md").read_text(encoding="utf-8"))
    true = {row.name: row.outcome for row in report.failures(short)}
    worse = {name: true[name] for name in true if true[name] != said.get(name)}
    assert said == true, f"differs from the page: {worse or set(said) - set(true)}; {REFRESH}"


def test_no_analyzer_fails_on_a_case(short: list[Result]) -> None:
    assert len(short) == len(all_cases())
    assert [(row.name, row.failed) for row in short if row.failed] == []


def test_page_is_renewed_where_it_lists(short: list[Result]) -> None:
    worse = [replace(row, outcome="missed", why="made up") for row in short[:1]]
    assert "earlier run" not in report.page(worse, [], "make scoreboard")
    page = report.page(worse, ["a note"], "make scoreboard", ["live"])
    assert "The live sessions are of an earlier run" in page
    assert report.listed(page) == {short[0].name: "missed"}
    renewed = report.relisted(page, [replace(worse[0], outcome="wrong")])
    assert report.listed(renewed) == {short[0].name: "wrong"}
    assert renewed.split("## What is still wrong")[0] == page.split("## What is still wrong")[0]
    assert renewed.endswith("* a note\n")


@pytest.mark.parametrize("ablation", [name for name in ABLATIONS if name != DEVICE_TIMES])
def test_ablation_takes_one_source_away(ablation: str, tmp_path: Path) -> None:
    case = next(case for case in all_cases() if case.name == "bandwidth_small_batch")
    session = build(case, 1, tmp_path / "case")
    poorer = without(session, ablation, tmp_path / "poorer")
    assert poorer is not None
    gone = set(session.tables) - set(poorer.tables)
    expected = {
        "without eBPF": {"cuda_call", "offcpu"},
        "without engine metrics": {"engine_sample"},
        "without GPU samples": {"gpu_sample", "gpu_process"},
        "without DCGM": set(),
    }[ablation]
    assert gone == expected
    if ablation == "without DCGM":
        assert "dcgm" in session.table("gpu_sample")["source"].to_pylist()
        assert "dcgm" not in poorer.table("gpu_sample")["source"].to_pylist()
    sample = Sample("built", case.name, 1, sources.truth_of(case), poorer)
    assert next(results_of(sample, tmp_path, is_ablated=False)).said


def test_device_times_can_be_taken_from_what_has_them(tmp_path: Path) -> None:
    activity = {
        "start_ns": 0,
        "duration_ns": 5,
        "device": 0,
        "pid": 1,
        "kind": "kernel",
        "name": "k",
    }
    session = SessionBuilder(tmp_path / "s", start_ns=0, end_ns=10).add("gpu_activity", [activity])
    poorer = without(session.write(), DEVICE_TIMES, tmp_path / "poorer")
    assert poorer is not None
    assert not poorer.has("gpu_activity")


def test_a_session_without_the_source_has_no_ablation(tmp_path: Path) -> None:
    case = next(case for case in all_cases() if case.name == "i05_prefill_priority")
    session = build(case, 1, tmp_path / "case")
    for ablation in ("without eBPF", DEVICE_TIMES):
        path = tmp_path / ablation.replace(" ", "-")
        assert without(session, ablation, path) is None


def test_healthy_hours_are_of_calm_cases_and_fresh_draws(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drawn: list[tuple[int, float]] = []

    def note(seed: int, folder: Path, cases: tuple[Case, ...]) -> Iterator[Sample]:
        assert all(case.is_calm for case in cases)
        drawn.append((seed, sum(case.seconds for case in cases)))
        yield from ()

    monkeypatch.setattr(sources, "built", note)
    assert list(sources.healthy(7, tmp_path, 100.0)) == []
    short = [draw for draw in drawn if draw[1] < 3_600]
    long = [draw for draw in drawn if draw not in short]
    assert sum(seconds for _seed, seconds in long) >= 100 * 3_600
    assert sum(seconds for _seed, seconds in short) >= 10 * 3_600
    assert [seed for seed, _ in short] == list(range(7, 7 + len(short)))
