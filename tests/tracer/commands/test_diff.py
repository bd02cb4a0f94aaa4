"""``tracer diff``: two sessions, or two ranges of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.analysis.builder import S, Service
from tracer import cli


@pytest.fixture(scope="module")
def slower_from_20s(tmp_path_factory: pytest.TempPathFactory) -> Path:
    service = Service(seed=4)
    service.decode_until(service.start + 20 * S)
    service.decode_until(service.start + 40 * S, 1.4)
    return service.session(tmp_path_factory.mktemp("diff") / "soak.tracer").path


def test_ranges_of_one_session(slower_from_20s: Path, capsys):
    path = str(slower_from_20s)
    assert cli.run(["diff", f"{path}@0..20s", f"{path}@20s..", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["regression"]["status"] == "found"
    assert data["before"]["end_ns"] - data["before"]["start_ns"] == 20 * S
    assert cli.run(["diff", f"{path}@..19s", f"{path}@20s..39s"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("REGRESSION")
    assert "CHANGED (" in text and "NO CHANGE BEYOND NOISE (" in text


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("@9s..3s", 2, "the range ends before it begins"),
        ("@0..3s", 3, "too short"),
        ("@2h..3h", 3, "outside of the recording"),
        ("@x..", 2, "is not a time"),
    ],
)
def test_wrong_ranges_are_said(slower_from_20s: Path, capsys, text: str, code: int, said: str):
    assert cli.run(["diff", str(slower_from_20s), f"{slower_from_20s}{text}"]) == code
    assert said in capsys.readouterr().err


def test_a_session_that_is_not_there(tmp_path: Path, capsys):
    assert cli.run(["diff", str(tmp_path / "a"), str(tmp_path / "b")]) == 3
    assert "does not exist" in capsys.readouterr().err
