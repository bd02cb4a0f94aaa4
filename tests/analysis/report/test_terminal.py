"""The report as text: lengths in a unit that shows them, however short the recording."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import attribute
from analysis.report.terminal import render
from analysis.report.words import length_text
from tests.analysis.builder import MS, S, SessionBuilder


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 ns"), (41_520_000, "41.52 ms"), (S, "1.0 s"), (10_800 * S, "10800.0 s")],
)
def test_lengths_of_recordings(ns: int, text: str) -> None:
    assert length_text(ns) == text


@pytest.mark.parametrize(("length", "text"), [(40 * MS, "device 0, 40 ms, "), (3 * S, "3.0 s, ")])
def test_a_short_recording_is_not_of_no_length(tmp_path: Path, length: int, text: str) -> None:
    builder = SessionBuilder(tmp_path / "s", start_ns=S, end_ns=S + length)
    kernel = {
        "start_ns": S,
        "duration_ns": length // 2,
        "device": 0,
        "stream": 7,
        "kind": "kernel",
    }
    session = builder.add("gpu_activity", [kernel]).write()
    told = render(attribute(session))
    assert text in told
    assert " 0.0 s" not in told
