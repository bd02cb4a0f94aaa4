"""The cases: enough of them, well formed, each cause with a confounder, and drawn by seed alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from analysis import open_session
from analysis.causes import CAUSES
from tests.scenarios.build import build
from tests.scenarios.case import CALM, CASES, Case, CaseError, all_cases, read_case
from tracer.simulated.scenarios.registry import SCENARIOS

#: Traps: cases of what must not be said.
TRAPS = ("I09", "I18", "I26", "I35", "I37", "I53")
BY_NAME = {case.name: case for case in all_cases()}


def cases_of(slug: str) -> list[Case]:
    return [case for case in all_cases() if slug in case.right]


def test_there_are_enough() -> None:
    assert len([case for case in all_cases() if case.incident]) >= 60
    assert len(SCENARIOS) >= 25


def test_every_open_incident_has_a_case() -> None:
    expected = {f"I{number:02d}" for number in range(1, 70)} - {"I67"}
    assert {case.incident for case in all_cases()} - {""} == expected


def test_traps_say_what_must_not_be_said() -> None:
    for incident in TRAPS:
        cases = [case for case in all_cases() if case.incident == incident]
        assert any(case.must_not for case in cases), incident


def test_open_causes_want_unknown_or_forbid() -> None:
    for case in all_cases():
        if case.grade == "C":
            assert case.cause == "unknown" or case.must_not, case.name


@pytest.mark.parametrize(
    "slug", [cause.slug for cause in CAUSES if cause.slug not in (*CALM, "unknown")]
)
def test_cause_is_covered(slug: str) -> None:
    is_live = any(scenario.expected.cause == slug for scenario in SCENARIOS)
    assert is_live or len(cases_of(slug)) >= 2
    has_confounder = any(
        slug in case.right and slug not in other.right
        for other in all_cases()
        if other.confounder_of
        for case in [BY_NAME[other.confounder_of]]
    )
    is_live_confounded = any(
        scenario.confounders for scenario in SCENARIOS if scenario.expected.cause == slug
    )
    assert has_confounder or is_live_confounded


def test_confounders_have_the_same_tables_and_another_cause() -> None:
    for other in all_cases():
        if other.confounder_of:
            case = BY_NAME[other.confounder_of]
            assert other.cause not in case.right, other.name
            assert set(other.report) == set(case.report), other.name


@pytest.mark.parametrize("name", ["i02_stress_beside_graphs", "i30_ranks_unbalanced"])
def test_a_seed_draws_the_same_again(name: str, tmp_path: Path) -> None:
    case = BY_NAME[name]
    first, again, other = (
        build(case, seed, tmp_path / folder)
        for seed, folder in ((3, "first"), (3, "again"), (4, "other"))
    )
    assert first.tables
    for table in first.tables:
        assert first.table(table).equals(again.table(table))
    assert any(not first.table(table).equals(other.table(table)) for table in first.tables)


def test_another_process_draws_the_same(tmp_path: Path) -> None:
    """Whatever order its sets have: strings hash differently in every process."""
    drawn = []
    for seed in ("1", "2"):
        path = tmp_path / seed
        subprocess.run(
            [sys.executable, "-m", "tests.scenarios.build", "i06_chunked_prefill", "-o", str(path)],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=CASES.parents[2],
        )
        drawn.append(open_session(path).table("engine_sample"))
    assert drawn[0].equals(drawn[1])


def test_only_what_the_report_gives_is_in_the_tables(tmp_path: Path) -> None:
    session = build(BY_NAME["i05_prefill_priority"], 1, tmp_path / "case")
    assert session.tables == ["engine_sample", "gpu_sample"]
    metrics = set(session.table("engine_sample")["metric"].to_pylist())
    assert metrics == {"prompt_tokens", "generation_tokens", "requests_running", "preemptions"}
    samples = session.table("gpu_sample")
    assert samples["util_pct"].null_count == 0
    assert samples["power_mw"].null_count == len(samples)


def test_a_training_loop_has_no_engine(tmp_path: Path) -> None:
    session = build(BY_NAME["healthy_training"], 1, tmp_path / "case")
    assert "cuda_call" in session.tables
    assert "engine_sample" not in session.tables


def test_published_numbers_are_in_the_tables(tmp_path: Path) -> None:
    """I05: 2,560 prompt tokens/s for 77 s, as drawn from the seed."""
    session = build(BY_NAME["i05_prefill_priority"], 1, tmp_path / "case")
    rows = session.frame("engine_sample")
    prompts = rows[rows.metric == "prompt_tokens"].value
    assert prompts.max() - prompts.min() == pytest.approx(200_019, rel=0.3)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('title = "t"\ncause = "launch.gill"\n[[phase]]\nseconds = 1', "launch.gil"),
        ('title = "t"\ncause = "healthy"\n[[phase]]\nsecond = 1', "seconds"),
        ('title = "t"\ncause = "healthy"\n[[phase]]\nseconds = 1\nfaults = { gcc = 1 }', "gc"),
        ('title = "t"\ncause = "healthy"', "no phase"),
        ("title = ", "cannot be read"),
    ],
)
def test_a_misspelt_case_is_told(text: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CaseError, match=re.escape(word)) as error:
        read_case(path)
    assert "odd.toml" in str(error.value)


def test_the_example_of_the_readme_is_a_case(tmp_path: Path) -> None:
    text = (CASES.parent / "README.md").read_text(encoding="utf-8")
    example = text.split("```toml\n")[1].split("```")[0]
    path = tmp_path / "example.toml"
    path.write_text(example, encoding="utf-8")
    assert read_case(path).cause == "launch.gil"
