"""Questions in SQL, and ranges of a session."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from analysis.attribution import attribute
from analysis.timeline import Session, TimelineError
from tests.analysis.builder import MS, S, Service, SessionBuilder

duckdb = pytest.importorskip("duckdb", reason="pip install duckdb")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    service = Service(seed=3)
    service.decode_until(service.start + 6 * S)
    return service.session(tmp_path / "s.tracer")


def test_the_answer_equals_the_table(session: Session):
    frame = session.frame("cuda_call")
    answer = session.sql(
        "SELECT function, count(*) AS n, sum(duration_ns) AS total_ns, max(rank) AS rank "
        "FROM cuda_call GROUP BY function ORDER BY function"
    )
    expected = frame.groupby("function")["duration_ns"].agg(["size", "sum"]).sort_index()
    assert answer["function"].tolist() == expected.index.tolist()
    assert answer["n"].tolist() == expected["size"].tolist()
    assert answer["total_ns"].tolist() == expected["sum"].tolist()
    assert str(answer["total_ns"].dtype) == "Int64"
    assert answer["rank"].isna().all()


def test_tables_of_different_sources_join(session: Session):
    answer = session.sql(
        "SELECT g.time_ns, count(*) AS n FROM gpu_sample g JOIN cuda_call c "
        "ON c.start_ns BETWEEN g.time_ns - g.period_ns AND g.time_ns - 1 GROUP BY 1 ORDER BY 1"
    )
    assert len(answer) == len(session.frame("gpu_sample"))
    assert answer["n"].min() > 10


def test_a_table_that_was_not_recorded_names_what_records_it(session: Session):
    with pytest.raises(TimelineError, match=r"no table annotation.*record it with: tracer"):
        session.between(session.start_ns, session.end_ns).sql("SELECT * FROM annotation")


def test_a_wrong_query_is_one_sentence_that_lists_the_tables(session: Session):
    with pytest.raises(TimelineError, match=r"DuckDB refuses.*cuda_call, .*gpu_sample"):
        session.sql("SELECT nothing FROM cuda_call")
    with pytest.raises(TimelineError, match="DuckDB refuses"):
        session.sql("SELEC 1")


@pytest.mark.parametrize(
    "query",
    [None, 5, b"SELECT 1", "\ud800", "", ";", "\0", "SELECT ?", "(" * 100_000, "SELECT " + "-" * 9],
)
def test_what_is_no_query_is_refused(session: Session, query: object):
    with pytest.raises(TimelineError):
        session.sql(query)  # type: ignore[arg-type]


def test_nothing_else_can_be_read_or_written(session: Session, tmp_path: Path):
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    for query in (
        f"SELECT * FROM read_csv('{secret}')",
        f"SELECT * FROM '{secret}'",
        f"COPY (SELECT 1) TO '{tmp_path / 'out.csv'}'",
        f"ATTACH '{tmp_path / 'out.db'}'",
        "SET enable_external_access = true",
        "SELECT * FROM session",
    ):
        with pytest.raises(TimelineError, match="DuckDB refuses"):
            session.sql(query)
    assert not list(tmp_path.glob("out*"))


def test_without_duckdb_the_error_says_how_to_get_it(session: Session, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(TimelineError, match=r"pip install duckdb"):
        session.sql("SELECT 1")


def test_a_damaged_segment_is_left_out_and_said(session: Session):
    n_rows = len(session.frame("cuda_call"))
    (session.path / "cuda_call" / "0000000009-0000000009.parquet").write_bytes(b"no parquet")
    again = Session(session.path, session.manifest)
    assert again.sql("SELECT count(*) AS n FROM cuda_call")["n"].tolist() == [n_rows]
    assert any("0000000009" in problem for problem in again.problems)


def test_a_range_sees_only_its_rows(session: Session):
    begin, end = session.start_ns + 2 * S, session.start_ns + 4 * S
    part = session.between(begin, end)
    assert (part.start_ns, part.end_ns, part.duration_ns) == (begin, end, 2 * S)
    frame = session.frame("cuda_call")
    reach = frame["start_ns"] + frame["duration_ns"]
    expected = frame[(frame["start_ns"] < end) & ((frame["start_ns"] >= begin) | (reach > begin))]
    assert part.frame("cuda_call")["call_id"].tolist() == expected["call_id"].tolist()
    n = part.sql("SELECT count(*) AS n FROM cuda_call")["n"].tolist()
    assert n == [len(expected)]
    with pytest.raises(TimelineError, match="outside of the recording, which is 6"):
        session.between(session.end_ns + S, session.end_ns + 2 * S)


def test_the_budget_of_a_range_adds_up_and_finds_what_is_in_it(tmp_path: Path):
    service = Service(seed=1)
    service.decode_until(service.start + 12 * S)
    quiet_until = service.now
    while service.now < quiet_until + 12 * S:
        service.preempt(20 * MS)
        service.decode_step()
    session = service.session(tmp_path / "s")
    first = attribute(session.between(session.start_ns, quiet_until))
    second = attribute(session.between(quiet_until, session.end_ns))
    assert first.verdict.cause == "healthy"
    assert second.verdict.cause == "launch.cpu_delay"
    for attribution in (first, second):
        for window in attribution.to_json()["budget"]:
            length = window["end_ns"] - window["start_ns"]
            assert sum(part["ns"] for part in window["shares"]) == length


def test_row_groups_outside_of_a_range_are_not_read(tmp_path: Path):
    import pyarrow.parquet as pq

    from analysis.timeline import _row_groups

    builder = SessionBuilder(tmp_path / "s", start_ns=0, end_ns=100 * S)
    rows = [{"time_ns": i * S, "kind": "mark", "name": "m"} for i in range(100)]
    session = builder.add("event", rows).write()
    path = session.segments("event")[0]
    pq.write_table(pq.read_table(path), path, row_group_size=10)
    metadata = pq.read_metadata(path)
    assert _row_groups(metadata, ["time_ns"], 35 * S, 50 * S) == [3, 4]
    assert _row_groups(metadata, ["time_ns"], None, None) == list(range(10))
    again = Session(session.path, session.manifest)
    assert again.table("event", 35 * S, 50 * S)["time_ns"].to_pylist() == [
        i * S for i in range(35, 50)
    ]
