"""``tracer report`` and ``tracer export``: files, defaults, refusals, exit codes."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analysis.report.sessions import story, traced
from tracer import cli


def test_the_report_is_written_where_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    story(tmp_path / "s.tracer", "launch.cpu_delay")
    monkeypatch.chdir(tmp_path)
    assert cli.run(["report", "s.tracer"]) == 0
    assert "s.html" in capsys.readouterr().err
    assert "launch.cpu_delay" in (tmp_path / "s.html").read_text()
    assert cli.run(["report", "s"]) == 6
    assert "--force" in capsys.readouterr().err
    assert cli.run(["report", "s", "--force", "-o", "s.html"]) == 0


def test_the_report_of_a_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story(tmp_path / "s.tracer", "launch.cpu_delay")
    monkeypatch.chdir(tmp_path)
    assert cli.run(["report", "s.tracer@1s..4s"]) == 0
    assert "3.0 s" in (tmp_path / "s.html").read_text()


def test_a_report_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", str(tmp_path / "none")]) == 3
    (tmp_path / "odd.tracer").mkdir()
    assert cli.run(["report", str(tmp_path / "odd.tracer"), "-o", str(tmp_path / "r.html")]) == 3
    assert not (tmp_path / "r.html").exists()
    assert "Traceback" not in capsys.readouterr().err


def test_a_library_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from analysis.report.html import page

    story(tmp_path / "s.tracer", "healthy")

    real = page.resources.files

    def without_plotly(name: str) -> object:
        if name == "plotly":
            raise ModuleNotFoundError(name)
        return real(name)

    page._plotly.cache_clear()
    monkeypatch.setattr(page.resources, "files", without_plotly)
    assert cli.run(["report", str(tmp_path / "s"), "-o", str(tmp_path / "r.html")]) == 4
    assert "pip install plotly" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["perfetto", "chrome", "csv", "duckdb"])
def test_every_format_is_written_under_its_default_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    traced(tmp_path / "s.tracer")
    monkeypatch.chdir(tmp_path)
    assert cli.run(["export", name, "s.tracer"]) == 0
    told = capsys.readouterr().err
    made = [path for path in tmp_path.iterdir() if path.name != "s.tracer"]
    assert len(made) == 1 and made[0].name in told
    assert made[0].is_dir() == (name == "csv")
    assert cli.run(["export", name, "s.tracer"]) == 6
    assert cli.run(["export", name, "s.tracer", "--force"]) == 0


def test_a_chrome_trace_without_compression(tmp_path: Path) -> None:
    traced(tmp_path / "s.tracer")
    assert cli.run(["export", "chrome", str(tmp_path / "s"), "-o", str(tmp_path / "t.json")]) == 0
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def test_an_unknown_format_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["export", "excel", "s"]) == 2
    assert "perfetto" in capsys.readouterr().err


def _limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


@pytest.mark.parametrize(
    "arguments",
    [["report"], *(["export", name] for name in ("perfetto", "chrome", "csv", "duckdb"))],
)
def test_an_output_that_the_system_does_not_take_is_one_sentence(
    arguments: list[str], tmp_path: Path
) -> None:
    traced(tmp_path / "s.tracer")
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-m", "tracer", *arguments, str(tmp_path / "s.tracer")]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "out" / "x")],
        preexec_fn=_limit_file_size,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 6, done.stderr
    assert done.stderr.startswith("tracer: ") and "Traceback" not in done.stderr
    assert "cannot be written" in done.stderr and "; " in done.stderr
    assert list((tmp_path / "out").iterdir()) == []
