"""Sessions on disk: running, compacted, damaged, incomplete."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from analysis import open_session, schema
from analysis.timeline import TimelineError
from tests.analysis.builder import SessionBuilder, write_segment


def rows(*times: int) -> pa.Table:
    declared = schema.table("gpu_sample")
    columns = {column.name: [None] * len(times) for column in declared}
    columns |= {"time_ns": list(times), "device": [0] * len(times), "source": ["nvml"] * len(times)}
    return pa.table(columns, schema=declared.arrow_schema())


@pytest.fixture
def session(tmp_path: Path) -> Path:
    SessionBuilder(tmp_path / "s").write()
    return tmp_path / "s"


def times(session: Path, **limits: int) -> list[int]:
    return open_session(session).table("gpu_sample", **limits)["time_ns"].to_pylist()


def test_a_segment_inside_a_larger_one_is_ignored(session: Path) -> None:
    write_segment(session, rows(1, 2), "gpu_sample", 0, 0)
    write_segment(session, rows(3), "gpu_sample", 1, 1)
    write_segment(session, rows(1, 2, 3), "gpu_sample", 0, 1)
    write_segment(session, rows(4), "gpu_sample", 2, 2)
    (session / "gpu_sample" / ".0000000003-0000000003.parquet.tmp").write_bytes(b"half")
    assert times(session) == [1, 2, 3, 4]


def test_rows_come_in_order_and_by_range(session: Path) -> None:
    write_segment(session, rows(5, 9), "gpu_sample", 0, 0)
    write_segment(session, rows(2, 7), "gpu_sample", 1, 1)
    assert times(session) == [2, 5, 7, 9]
    assert times(session, start_ns=5, end_ns=9) == [5, 7]


def test_many_segments_are_read_ahead_in_order(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(6):
        write_segment(session, rows(2 * index, 2 * index + 1), "gpu_sample", index, index)
    damaged = session / "gpu_sample" / "0000000002-0000000002.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-20])
    opened = open_session(session)
    expected = [0, 1, 2, 3, 6, 7, 8, 9, 10, 11]
    assert opened.table("gpu_sample")["time_ns"].to_pylist() == expected
    assert len(opened.problems) == 1

    def refuse(*_arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    assert times(session) == expected


def test_a_damaged_segment_is_skipped_and_said(session: Path) -> None:
    write_segment(session, rows(1), "gpu_sample", 0, 0)
    path = write_segment(session, rows(2), "gpu_sample", 1, 1)
    path.write_bytes(path.read_bytes()[:-20])
    opened = open_session(session)
    assert opened.table("gpu_sample")["time_ns"].to_pylist() == [1]
    assert "gpu_sample/0000000001-0000000001.parquet was skipped" in opened.problems[0]


def test_a_column_that_an_older_writer_lacked_is_null(session: Path) -> None:
    write_segment(session, rows(1).drop_columns(["power_mw"]), "gpu_sample")
    assert open_session(session).table("gpu_sample")["power_mw"].to_pylist() == [None]


def test_nulls_stay_nulls_in_a_frame(session: Path) -> None:
    write_segment(session, rows(1), "gpu_sample")
    frame = open_session(session).frame("gpu_sample", columns=["time_ns", "power_mw"])
    assert frame["power_mw"].isna().all()
    assert str(frame["power_mw"].dtype) == "Int64"


def test_range_of_a_running_session_comes_from_its_rows(session: Path) -> None:
    write_segment(session, rows(3, 40), "gpu_sample")
    opened = open_session(session)
    assert (opened.start_ns, opened.end_ns, opened.duration_ns) == (3, 40, 37)


def test_a_missing_table_names_the_command(session: Path) -> None:
    opened = open_session(session)
    assert not opened.has("offcpu")
    with pytest.raises(TimelineError, match=r"no table offcpu.*tracer record --pid PID"):
        opened.table("offcpu")
    with pytest.raises(TimelineError, match="did you mean cuda_call"):
        opened.table("cuda_cal")
    write_segment(session, rows(1), "gpu_sample")
    with pytest.raises(TimelineError, match="did you mean power_mw"):
        open_session(session).table("gpu_sample", columns=["power_mv"])


def test_what_is_no_session_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TimelineError, match="is not a directory"):
        open_session(tmp_path / "none")
    with pytest.raises(TimelineError, match="not a session"):
        open_session(tmp_path)


def test_a_session_is_found_with_and_without_its_suffix(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "named.tracer").mkdir()
    for folder in ("plain", "named.tracer"):
        (tmp_path / folder / "manifest.json").write_text(
            '{"tool_version": "1", "format_version": 1}'
        )
    assert open_session(tmp_path / "plain.tracer").path == tmp_path / "plain"
    assert open_session(tmp_path / "named").path == tmp_path / "named.tracer"
    with pytest.raises(TimelineError, match="is not a directory"):
        open_session(tmp_path / "named.1")
