"""Text of strangers is shown as it is, but steers nothing; lengths have units."""

from __future__ import annotations

import pytest

from analysis.finding import Evidence
from analysis.report.words import (
    REASON_TEXT,
    STATE_TEXT,
    basis_text,
    duration_text,
    evidence_text,
    shown,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("VLLM::EngineCore", "VLLM::EngineCore"),
        ("<script>&\"'", "<script>&\"'"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("\x1b[31m\n", "\\u001b[31m\\u000a"),
        ("\udcff", "\\udcff"),
        ("עברית", "עברית"),
        (17, "17"),
    ],
)
def test_shown(text: object, expected: str) -> None:
    assert shown(text) == expected
    shown(text).encode()


def test_a_long_text_keeps_both_ends_and_says_what_is_left_out() -> None:
    result = shown("a" * 5000 + "b" * 5000, 100)
    assert result.startswith("a" * 75) and result.endswith("b" * 25)
    assert "9,900 characters" in result and len(result) < 130


def test_lengths_and_evidence_have_units() -> None:
    assert [duration_text(ns) for ns in (5, 8_281, 15_000, 2.5e7, 3e9)] == [
        "5 ns",
        "8.281 µs",
        "15 µs",
        "25 ms",
        "3 s",
    ]
    item = Evidence("ready_share", 0.21, "ratio", 40, "offcpu")
    assert evidence_text(item) == "ready share: 0.21 ratio (n = 40) [offcpu]"


def test_every_state_and_reason_of_the_budget_has_words() -> None:
    from analysis.budget import REASONS, STATES

    assert set(STATES) == set(STATE_TEXT)
    assert set(REASONS) == set(REASON_TEXT)


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        (("gpu_activity",), "from device times"),
        (("cuda_call",), "from host's calls"),
        (("cuda_call", "gpu_sample"), "from host's calls and utilisation"),
        (
            ("gpu_activity", "cuda_call", "gpu_sample"),
            "from device times, host's calls and utilisation",
        ),
        ((), "with nothing recorded that tells when it worked"),
    ],
)
def test_a_budget_names_what_it_rests_on(tables: tuple[str, ...], expected: str) -> None:
    assert basis_text(tables) == expected
