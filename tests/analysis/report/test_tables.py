"""CSV and DuckDB hold every row; the views answer."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from pathlib import Path

import duckdb
import pyarrow.csv
import pytest

from analysis import attribute
from analysis.report.files import OutputError, replaced
from analysis.report.tables import write_csv, write_duckdb
from analysis.report.views import VIEWS
from tests.analysis.report.sessions import HOSTILE, hostile, story, traced


def test_csv_holds_every_table(tmp_path: Path) -> None:
    session, counts = traced(tmp_path / "s.tracer")
    n = write_csv(session, tmp_path / "csv")
    assert n == sum(session.n_rows(name) for name in session.tables)
    assert {path.stem for path in (tmp_path / "csv").iterdir()} == set(session.tables)
    calls = pyarrow.csv.read_csv(tmp_path / "csv" / "cuda_call.csv")
    assert calls.num_rows == counts["cuda_call"]
    assert calls["start_ns"].to_pylist() == session.table("cuda_call")["start_ns"].to_pylist()
    assert calls["return_code"].null_count == calls.num_rows


def test_csv_quotes_what_is_strange(tmp_path: Path) -> None:
    session = hostile(tmp_path / "s.tracer")
    write_csv(session, tmp_path / "csv")
    options = pyarrow.csv.ParseOptions(newlines_in_values=True)
    rows = pyarrow.csv.read_csv(tmp_path / "csv" / "mps_client.csv", parse_options=options)
    assert rows["name"].to_pylist() == [HOSTILE]


def test_duckdb_holds_every_table_and_its_views_answer(tmp_path: Path) -> None:
    session, counts = traced(tmp_path / "s.tracer")
    path = tmp_path / "s.duckdb"
    n = write_duckdb(session, attribute(session), path)
    assert n == sum(session.n_rows(name) for name in session.tables)
    with duckdb.connect(str(path), read_only=True) as connection:

        def one(query: str) -> object:
            row = connection.execute(query).fetchone()
            assert row is not None
            return row[0]

        assert one("SELECT count(*) FROM cuda_call") == counts["cuda_call"]
        assert one("SELECT count(*) FROM launch") == counts["gpu_activity"]
        assert (
            one(
                "SELECT string_agg(DISTINCT kernel_name, ' ' ORDER BY kernel_name) "
                "FROM named_launch"
            )
            == "k0 k1 k2"
        )
        assert one("SELECT sum(n) FROM launch_second") == counts["gpu_activity"]
        assert one("SELECT held_by FROM cpu_wait") == "hog"
        assert one("SELECT round(sum(share), 6) FROM budget_state") == 1.0
        assert one("SELECT name FROM session") == "s.tracer"
        comment = (
            "SELECT comment FROM duckdb_columns() WHERE table_name = 'cuda_call' "
            "AND column_name = 'start_ns'"
        )
        assert one(comment) == "Begin, CLOCK_MONOTONIC."


@pytest.mark.parametrize("name", ["launch.cpu_delay", "healthy"])
def test_duckdb_tells_the_verdict(tmp_path: Path, name: str) -> None:
    session = story(tmp_path / "s.tracer", name)
    write_duckdb(session, attribute(session), tmp_path / "s.duckdb")
    with duckdb.connect(str(tmp_path / "s.duckdb"), read_only=True) as connection:
        assert connection.execute("SELECT cause FROM verdict").fetchall() == [(name,)]
        views = connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal")
        for (view,) in views.fetchall():
            connection.execute(f"SELECT * FROM {view}").fetchall()
        assert [view.name for view in VIEWS] == sorted(view.name for view in VIEWS)


def test_an_output_is_whole_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), replaced(tmp_path / "x", force=False) as part:
        part.write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with replaced(tmp_path / "x", force=False) as part:
        part.write_text("whole")
    assert (tmp_path / "x").read_text() == "whole"
    with pytest.raises(OutputError, match="exists already"), replaced(tmp_path / "x", force=False):
        pass
    with (
        pytest.raises(OutputError, match="not a directory"),
        replaced(tmp_path / "no" / "x", force=False),
    ):
        pass


def test_a_directory_of_something_else_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("dear")
    with (
        pytest.raises(OutputError, match="something else"),
        replaced(tmp_path / "mine", force=True),
    ):
        pass
    assert (tmp_path / "mine" / "notes.txt").read_text() == "dear"


def test_a_link_a_pipe_and_a_place_without_a_name_stay(tmp_path: Path) -> None:
    (tmp_path / "dear").write_text("dear")
    (tmp_path / "link").symlink_to("dear")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    places = [tmp_path / name for name in ("link", "dangling", "pipe")]
    for place in (*places, Path("/"), Path()):
        for force in (False, True):
            with pytest.raises(OutputError), replaced(place, force=force):
                raise AssertionError("it was given out to be written")
    assert (tmp_path / "dear").read_text() == "dear"
    assert (tmp_path / "link").is_symlink() and (tmp_path / "dangling").is_symlink()
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("mask", [0o077, 0o027, 0o022])
def test_who_may_read_an_output_is_up_to_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with replaced(tmp_path / "file", force=False) as part:
            part.write_text("x")
        with replaced(tmp_path / "folder", force=False) as part:
            part.mkdir()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~mask
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o777 & ~mask


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "make room"), (errno.EFBIG, "ulimit -f"), (errno.EROFS, "another place")],
)
def test_a_disk_that_takes_no_more_is_told_with_its_remedy(
    tmp_path: Path, number: int, remedy: str
) -> None:
    with pytest.raises(OutputError, match=remedy), replaced(tmp_path / "x", force=False) as part:
        part.write_text("half")
        raise OSError(number, os.strerror(number))
    with pytest.raises(OSError, match="Input"), replaced(tmp_path / "x", force=False):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    with (
        pytest.raises(OutputError, match="shorter name"),
        replaced(tmp_path / ("x" * 300), force=True),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.root
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    session, _ = traced(tmp_path / "s.tracer")
    mount = tmp_path / "mount"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", mount], check=True)
    try:
        with (
            pytest.raises(OutputError, match="No space left"),
            replaced(mount / "x", force=False) as part,
        ):
            write_duckdb(session, attribute(session), part)
        with (
            pytest.raises(OutputError, match="make room"),
            replaced(mount / "x", force=False) as part,
        ):
            write_csv(session, part)
        assert list(mount.iterdir()) == []
    finally:
        subprocess.run(["umount", mount], check=True)
