"""Kept scrapes of an engine: read as when scraped here; damage is counted, never fatal."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow.compute as pc
import pytest

from probes.recorded import RecordingError, open_recording
from tests.probes.recorded.tables import read_all

PAGE = (
    "# HELP vllm:num_requests_running Requests.\n"
    "# TYPE vllm:num_requests_running gauge\n"
    'vllm:num_requests_running{{engine="0"}} {running}\n'
)


def line(time: object, running: object = 1, **more: object) -> str:
    return json.dumps({"t": time, "text": PAGE.format(running=running), **more}) + "\n"


def test_the_recorded_engine_is_read(shared_data: Path) -> None:
    path = shared_data / "metrics/vllm-0.32.0-cpu-recorded/scrapes.jsonl.gz"
    recording, tables = read_all(path)
    assert (recording.format, list(tables)) == ("scrapes", ["engine_sample"])
    rows = tables["engine_sample"]
    assert not recording.problems
    assert len(pc.unique(rows["time_ns"])) == 150
    assert pc.unique(rows["engine"]).to_pylist() == ["vllm"]
    evicted = rows.filter(pc.equal(rows["metric"], "preemptions"))["value"]
    assert (evicted[0].as_py(), evicted[-1].as_py()) == (0, 63)
    facts = recording.manifest_facts()
    assert facts["end_ns"] - facts["start_ns"] == pytest.approx(149.2e9, rel=0.01)


@pytest.mark.parametrize("is_packed", [False, True])
def test_content_tells_the_format_and_times_are_middles(tmp_path: Path, is_packed: bool) -> None:
    text = (line(10.0, 3, dt=0.5) + line(11, 4)).encode()
    path = tmp_path / "anything"
    path.write_bytes(gzip.compress(text) if is_packed else text)
    _recording, tables = read_all(path)
    rows = tables["engine_sample"]
    assert rows["time_ns"].to_pylist() == [10_250_000_000, 11_000_000_000]
    assert rows["scrape_ns"].to_pylist() == [500_000_000, None]
    assert rows["value"].to_pylist() == [3.0, 4.0]


def test_what_is_no_scrape_is_skipped_and_counted(tmp_path: Path) -> None:
    bad = [
        "{\n",
        "[" * 100_000 + "\n",
        '"text"\n',
        line(True),
        line(-1),
        line(1e300),
        line(float("nan")),
        line("now"),
        '{"t": ' + "9" * 5000 + ', "text": ""}\n',
        json.dumps({"t": 5, "text": None}) + "\n",
        json.dumps({"t": 6, "text": "<html>\n"}) + "\n",
        json.dumps({"t": 7, "text": PAGE.format(running=1)[:-3]}) + "\n",
        json.dumps({"t": 8, "text": 'vllm:num_requests_running{engine="\ud800"} 1\n'}) + "\n",
        line(2.5),
        line(9, "nan"),
        " " * (9 << 20) + "\n",
    ]
    path = tmp_path / "scrapes"
    path.write_text(line(1) + line(3) + "".join(bad) + line(20))
    recording, tables = read_all(path)
    counted = {problem.reason: problem.n_rows for problem in recording.problems}
    assert tables["engine_sample"]["value"].to_pylist() == [1.0, 1.0, 1.0, None, 1.0]
    assert counted["line that is no JSON"] >= 2
    assert counted["scrape that is not later than the one before"] == 1
    assert counted["scrape without a metric of a known engine"] == 1
    assert counted["scrape whose page broke off in the middle of a line"] == 1
    assert any("longer than" in reason for reason in counted)


def test_a_file_that_breaks_off_keeps_what_came_before(tmp_path: Path) -> None:
    whole = gzip.compress("".join(line(time) for time in range(1, 20_000)).encode())
    path = tmp_path / "scrapes"
    path.write_bytes(whole[: len(whole) // 2])
    recording, tables = read_all(path)
    assert 0 < tables["engine_sample"].num_rows < 19_999
    assert any("damaged or broken off" in problem.reason for problem in recording.problems)


def test_other_json_is_not_taken_for_scrapes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(json.dumps({"t": 1, "text": "hello"}) + "\n")
    with pytest.raises(RecordingError, match="none of the known recordings"):
        open_recording(path)
