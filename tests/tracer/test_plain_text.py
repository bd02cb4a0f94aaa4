"""What a stranger wrote does not command the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from analysis.manifest import Target
from tests.analysis.builder import SessionBuilder
from tracer.commands.analyze import command as analyze
from tracer.plain_text import plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("VLLM::EngineCore µs → 中文", "VLLM::EngineCore µs → 中文"),
        ("two\nlines", "two\nlines"),
        ("\x1b]0;title\x07", "?]0;title?"),
        ("\x1b[31mred\x1b[0m", "?[31mred?[0m"),
        ("a\rb\x9bc\u202ed\udcff", "a?b?c?d?"),
    ],
)
def test_control_characters_are_shown_as_question_marks(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_analyze_prints_no_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "s"
    evil = "\x1b[2J\x07evil"
    builder = SessionBuilder(path, targets=[Target(7, name=evil)], start_ns=0, end_ns=10**9)
    builder.add("event", [{"time_ns": 1, "kind": "coverage", "pid": 7, "name": evil}])
    builder.write()
    result = CliRunner().invoke(analyze, [str(path)])
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    assert "\x07" not in result.output


def test_windows_without_number_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    SessionBuilder(path, start_ns=0, end_ns=3600 * 10**9).write()
    result = CliRunner().invoke(analyze, [str(path), "--window", "1ms"])
    assert "--window" in str(result.exception)
