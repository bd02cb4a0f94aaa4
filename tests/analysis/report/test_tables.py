"""CSV and DuckDB hold every row; the views answer."""

from __future__ import annotations

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
