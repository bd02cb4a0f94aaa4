"""Chrome's JSON: the same slices, times in µs since the begin, flows begun once and ended once."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

from analysis import attribute
from analysis.report.trace.export import write_chrome
from tests.analysis.report.sessions import hostile, traced


def test_the_events_are_those_of_the_session(tmp_path: Path) -> None:
    session, counts = traced(tmp_path / "s.tracer")
    n = write_chrome(session, attribute(session), tmp_path / "t.json")
    told = json.loads((tmp_path / "t.json").read_text())
    events = told["traceEvents"]
    kinds = Counter(event["ph"] for event in events)
    assert kinds["X"] + kinds["C"] + kinds["i"] == n
    assert kinds["s"] == kinds["f"] == counts["gpu_activity"]
    launches = [event for event in events if event.get("name") == "cudaLaunchKernel"]
    assert len(launches) == counts["gpu_activity"]
    assert launches[0]["dur"] == 12.0 and launches[0]["pid"] == 10
    assert min(event["ts"] for event in events if "ts" in event) == 0
    assert told["otherData"]["session"] == "s.tracer"
    begins = {event["id"]: event["ts"] for event in events if event["ph"] == "s"}
    ends = {event["id"]: event["ts"] for event in events if event["ph"] == "f"}
    assert set(begins) == set(ends) and all(ends[flow] > begins[flow] for flow in begins)


def test_it_may_be_compressed_and_strange_names_stay_text(tmp_path: Path) -> None:
    session = hostile(tmp_path / "s.tracer")
    write_chrome(session, attribute(session), tmp_path / "t.json.gz")
    told = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))
    names = [event["args"]["name"] for event in told["traceEvents"] if event["ph"] == "M"]
    assert any(name.startswith("<script>") for name in names)
