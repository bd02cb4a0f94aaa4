"""The demo writes the report beside its session, and has said its verdict when that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.report import html
from tests.analysis.report.sessions import story
from tracer.commands import demo


def test_the_report_lies_beside_the_session_and_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story(tmp_path / "demo-x.tracer", "launch.cpu_delay")
    (tmp_path / "demo-x.html").write_text("of the last demo")
    demo._write_report(tmp_path / "demo-x.tracer")
    assert f"Report:  {tmp_path / 'demo-x.html'}" in capsys.readouterr().out
    assert "launch.cpu_delay" in (tmp_path / "demo-x.html").read_text()


def test_the_report_of_the_present_directory_lies_beside_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story(tmp_path / "demo-x.tracer", "healthy")
    monkeypatch.chdir(tmp_path / "demo-x.tracer")
    demo._write_report(Path())
    assert (tmp_path / "demo-x.html").is_file()


def test_a_report_that_fails_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    story(tmp_path / "demo-x.tracer", "healthy")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("odd\x1b[31m")

    monkeypatch.setattr(html, "write_report", fail)
    demo._write_report(tmp_path / "demo-x.tracer")
    assert capsys.readouterr().err == "The report was not written: odd?[31m\n"
