"""``tracer import`` writes a session that every reader opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.manifest import Manifest
from analysis.timeline import open_session
from probes.recorded import opening
from probes.recorded.recording import Problems
from probes.recorded_formats import RECORDED_FORMATS
from tests.tracer.fake_probes import call_batch
from tracer import cli, segment_store, session
from tracer.commands import import_


class FakeRecording:
    """Ten batches of another tool, and a row that it could not use."""

    format = "ingero"

    def __init__(self) -> None:
        self.problems = Problems()

    def manifest_facts(self) -> dict:
        return {
            "origin": "ingero",
            "host": {"name": "n"},
            "gpus": [{"index": 0, "name": "H100"}],
            "sources": [{"name": "ingero", "state": "ok", "tables": ["cuda_call"]}],
            "start_ns": 1,
            "end_ns": 10_000_000,
        }

    def batches(self):
        self.problems.add("the row has no time")
        for index in range(10):
            yield call_batch(index * 1000, 1000, 10_000_000)


@pytest.fixture
def recording(monkeypatch):
    monkeypatch.setattr(opening, "open_recording", lambda path, format=None: FakeRecording())


def test_a_recording_becomes_a_session(tmp_path, recording, capsys):
    assert cli.run(["import", "x.db", "-o", str(tmp_path / "s")]) == 0
    captured = capsys.readouterr()
    assert "10,000 rows from ingero" in captured.err
    assert "skipped 1 rows: the row has no time" in captured.err
    assert f"Next: tracer analyze {tmp_path / 's'}" in captured.err
    opened = open_session(tmp_path / "s")
    assert opened.table("cuda_call").num_rows == 10_000
    manifest = opened.manifest
    assert (manifest.origin, manifest.end_reason, manifest.end_ns) == (
        "ingero",
        "imported",
        10_000_000,
    )
    assert manifest.gpus[0].name == "H100"
    assert manifest.source("session").n_rows == 10_000
    assert cli.run(["import", "x.db", "-o", str(tmp_path / "s")]) == 6
    assert "--force" in capsys.readouterr().err
    assert cli.run(["import", "x.db", "-o", str(tmp_path / "s"), "--force"]) == 0


def test_a_full_disk_is_said(tmp_path, recording, monkeypatch, capsys):
    real = segment_store.replace_file

    def full(path, content):
        if path.suffix == ".parquet":
            raise OSError(28, "No space left on device")
        real(path, content)

    monkeypatch.setattr(segment_store, "replace_file", full)
    assert cli.run(["import", "x.db", "-o", str(tmp_path / "s")]) == 6
    assert "No space left" in capsys.readouterr().err


def test_an_import_waits_for_a_slow_disk_and_drops_nothing(tmp_path, recording, monkeypatch):
    monkeypatch.setattr(session, "MAX_PENDING_BYTES", 1)
    monkeypatch.setattr(session, "SEGMENT_ROWS", 500)
    writer = session.SessionWriter(
        tmp_path / "s",
        Manifest(tool_version="0"),
        segment_rows=500,
        max_pending_bytes=400_000,
    )
    import_._copy(FakeRecording(), writer)
    assert writer.close()
    assert writer.source().n_lost == 0
    assert open_session(tmp_path / "s").table("cuda_call").num_rows == 10_000


def test_what_is_no_recording(tmp_path, capsys):
    (tmp_path / "x").write_text("hello")
    assert cli.run(["import", str(tmp_path / "x"), "-o", str(tmp_path / "s")]) == 3
    assert not Path(tmp_path / "s").exists()
    assert "none of the known recordings" in capsys.readouterr().err


def test_formats_are_listed_and_no_other_is_taken(tmp_path, capsys):
    assert cli.run(["import", "--help"]) == 0
    told = capsys.readouterr().out
    assert "FILE|DIR" in told.splitlines()[0]
    for name, meaning in RECORDED_FORMATS.items():
        assert any(line.split(None, 1) == [name, meaning] for line in told.splitlines())
    assert cli.run(["import", "x.db", "-o", str(tmp_path / "s"), "--format", "bogus"]) == 2
    assert "'kineto'" in capsys.readouterr().err
