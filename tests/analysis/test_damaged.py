"""A damaged or hostile session ends in one sentence, or in an answer that says what is missing."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import attribute, open_session
from analysis.manifest import FILE_NAME, Manifest, ManifestError
from analysis.timeline import TimelineError
from tests.analysis.builder import S, Service

HEALTHY_S = 12


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A healthy service."""
    service = Service()
    service.decode_until(service.start + HEALTHY_S * S)
    service.session(tmp_path / "s")
    assert attribute(open_session(tmp_path / "s")).verdict.cause == "healthy"
    return tmp_path / "s"


def files(session: Path) -> list[Path]:
    """All segments."""
    return sorted(session.glob("*/*.parquet"))


def change_manifest(session: Path, **values: Any) -> None:
    """Replace values of the manifest."""
    data = json.loads((session / FILE_NAME).read_text())
    (session / FILE_NAME).write_text(json.dumps({**data, **values}))


@pytest.mark.parametrize(
    "values",
    [
        {"start_ns": "abc"},
        {"start_ns": 10**30},
        {"end_ns": -1},
        {"start_ns": 1.5},
        {"start_ns": True},
        {"format_version": True},
        {"format_version": -3},
        {"format_version": 99},
        {"sources": [{"name": "cuda", "state": "ok", "details": None}]},
        {"sources": "cuda"},
        {"targets": [{"pid": "abc"}]},
        {"targets": {"pid": 1}},
        {"gpus": [[]]},
        {"functions": [{}]},
        {"host": []},
    ],
)
def test_wrong_types_in_the_manifest_are_named(session: Path, values: dict[str, Any]) -> None:
    change_manifest(session, **values)
    with pytest.raises(ManifestError):
        Manifest.read(session)


@pytest.mark.parametrize("kind", ["fifo", "device", "directory", "loop", "deep", "binary"])
def test_a_manifest_that_is_no_file_of_json_is_refused_at_once(session: Path, kind: str) -> None:
    path = session / FILE_NAME
    path.unlink()
    makers: dict[str, Callable[[], object]] = {
        "fifo": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "directory": path.mkdir,
        "loop": lambda: path.symlink_to(FILE_NAME),
        "deep": lambda: path.write_text("[" * 200_000),
        "binary": lambda: path.write_bytes(bytes(range(256))),
    }
    makers[kind]()
    with pytest.raises(TimelineError):
        open_session(session)


def test_a_small_manifest_takes_little_memory_and_a_huge_one_is_refused(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracemalloc.start()
    try:
        Manifest.read(session)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    monkeypatch.setattr("analysis.manifest.MAX_BYTES", 100)
    with pytest.raises(ManifestError, match="more than"):
        Manifest.read(session)


def test_a_session_of_a_hundred_years_is_refused(session: Path) -> None:
    change_manifest(session, start_ns=0, end_ns=100 * 366 * 86_400 * S)
    with pytest.raises(TimelineError, match="damaged"):
        attribute(open_session(session))


def _rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


def _huge(rows: pa.Table) -> pa.Table:
    extreme = [2**63 - 1, -(2**63), 0, 1]
    return pa.table(
        {
            name: pa.array([extreme[i % 4] for i in range(rows.num_rows)], pa.int64())
            if rows[name].type == pa.int64()
            else rows[name]
            for name in rows.column_names
        }
    )


def _as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _as_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "fifo": _as_fifo,
    "folder": _as_folder,
    "device": _as_device,
    "other columns": lambda path: pq.write_table(pa.table({"x": [1, 2]}), path),
    "text": lambda path: _rewrite(
        path, lambda rows: pa.table({n: ["zz"] * rows.num_rows for n in rows.column_names})
    ),
    "nulls": lambda path: _rewrite(
        path,
        lambda rows: pa.table({n: pa.nulls(len(rows), rows[n].type) for n in rows.column_names}),
    ),
    "huge": lambda path: _rewrite(path, _huge),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_of_all_tables_proves_nothing(session: Path, damage: str) -> None:
    for path in files(session):
        DAMAGES[damage](path)
    answer = attribute(open_session(session))
    assert (answer.verdict.cause, answer.verdict.status.value) == ("unknown", "undecided")
    assert any(note.startswith("segment ") for note in answer.notes)
    json.dumps(answer.to_json(), allow_nan=False)


@pytest.mark.parametrize("table", ["cuda_call", "offcpu", "engine_sample"])
def test_one_unreadable_table_is_enough_to_withhold_healthy(session: Path, table: str) -> None:
    for path in (session / table).glob("*.parquet"):
        DAMAGES["truncated"](path)
    verdict = attribute(open_session(session)).verdict
    assert verdict.cause == "unknown"
    assert "cannot be read" in verdict.text


def test_rows_that_the_disk_did_not_take_withhold_healthy(session: Path) -> None:
    source = {"name": "session", "state": "degraded", "n_rows": 1000, "n_lost": 400}
    data = json.loads((session / FILE_NAME).read_text())
    change_manifest(session, sources=[*data["sources"], source])
    verdict = attribute(open_session(session)).verdict
    assert verdict.cause == "unknown"
    assert "29 %" in verdict.text
