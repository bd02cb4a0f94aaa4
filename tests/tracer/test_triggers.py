"""Triggers: the grammar, what they compare, re-arming, hangs by open calls, captures."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from analysis.schema import ENGINE_SAMPLE, EVENT, GPU_SAMPLE, OPEN_CALL, PROCESS_SAMPLE
from probes.probe import Batch, make_batch
from tests.tracer.fake_probes import call_batch
from tracer.call_progress import CallProgress
from tracer.captures import Capture, CaptureOptions, Captures
from tracer.errors import UsageError
from tracer.hang_watch import HangWatch
from tracer.readings import Readings
from tracer.status import Status
from tracer.trigger_grammar import QUANTITIES, Condition, parse_trigger
from tracer.triggers import Triggers
from tracer.watching import Moment

S = 1_000_000_000


def status(**more) -> Status:
    empty = Status(S, None, 0, None, None, {}, None, 0, 0, [])
    return replace(empty, **more)


@pytest.mark.parametrize(
    ("text", "conditions"),
    [
        ("launch p99 > 5ms", [("launch p99", ">", 0.005)]),
        ("ttft p95 > 2 s", [("ttft p95", ">", 2.0)]),
        ("GPU util > 90 and tokens/s<10", [("gpu util", ">", 90.0), ("tokens/s", "<", 10.0)]),
        ("rss slope > 50MB/h", [("rss slope", ">", 50e6)]),
        ("kv usage > 95%", [("kv usage", ">", 95.0)]),
        ("calls/s < 1.5k", [("calls/s", "<", 1500.0)]),
    ],
)
def test_conditions(text, conditions):
    assert parse_trigger(text).conditions == tuple(Condition(*item) for item in conditions)


def test_words_and_silence():
    assert parse_trigger("XID").word == "xid"
    assert parse_trigger(" any  finding ").word == "any finding"
    parsed = parse_trigger("no progress for 1.5m and gpu util > 90")
    assert parsed.no_progress_ns == 90 * S
    assert [item.quantity for item in parsed.conditions] == ["gpu util"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty trigger"),
        ("latency > 5ms", "choose from launch p50"),
        ("lunch p99 > 5ms", "did you mean launch p99?"),
        ("launch p99 > 5", "has no unit"),
        ("launch p99 > 5MB", "has the unit 'mb'; it takes ns"),
        ("tokens/s < 10ms", "takes k"),
        ("launch p99 >= 5ms", "no condition"),
        ("no progress for ever", "no time in it"),
        ("no progress for 10", "has no unit"),
        ("xid and gpu util > 3", "no condition"),
        (f"no progress for {'9' * 350}s", "too large"),
        ("no progress for 99999h", "the longest is 8760h"),
        (f"tokens/s < {'9' * 350}", "too large"),
        ("gpu util > 3 and " * 1000, "too long for a trigger"),
        ("gpu util > 900", "never holds: gpu util is at most 100 %"),
        ("kv usage > 100%", "never holds: kv usage is at most 100 %"),
        ("gpu util < 101", "always holds: gpu util is at most 100 %"),
        ("gpu util < 0", "never below 0"),
        ("tokens/s < 0", "never below 0"),
        ("no progress for 0s", "always holds; write for example 'no progress for 10s'"),
        ("no progress for 0.1ns", "always holds"),
        ("launch p99 > 0ms", "always holds: a time is always above 0"),
        ("launch p99 < 0.0s", "never below 0"),
    ],
)
def test_what_is_no_trigger_is_said(text, words):
    with pytest.raises(UsageError, match=words.replace("?", r"\?")):
        parse_trigger(text)


@pytest.mark.parametrize(
    "text",
    ["gpu util > 0", "gpu util < 100", "kv usage > 99.9%", "calls/s > 0", "rss slope > 0MB/h"],
)
def test_what_can_change_is_accepted_to_the_edge(text):
    assert parse_trigger(text).text == text


def test_every_quantity_can_be_read():
    for quantity in QUANTITIES:
        assert Readings().value(quantity.name, S, status()) is None


def engine(time_ns: int, endpoint: str = "e", **values: float) -> Batch:
    kinds = {"requests_running": "gauge", "kv_usage": "gauge", "generation_tokens": "counter"}
    n = len(values)
    return make_batch(
        ENGINE_SAMPLE,
        {
            "time_ns": [time_ns] * n,
            "endpoint": [endpoint] * n,
            "engine": ["vllm"] * n,
            "metric": list(values),
            "raw_name": list(values),
            "kind": [kinds[name] for name in values],
            "value": list(values.values()),
        },
    )


def ttft(time_ns: int, counts: list[float]) -> Batch:
    bounds = [0.1, 1.0, 5.0, float("inf")]
    return make_batch(
        ENGINE_SAMPLE,
        {
            "time_ns": [time_ns] * 4,
            "endpoint": ["e"] * 4,
            "engine": ["vllm"] * 4,
            "metric": ["ttft_seconds"] * 4,
            "raw_name": ["x"] * 4,
            "kind": ["bucket"] * 4,
            "upper_bound": bounds,
            "value": counts,
        },
    )


def test_percentiles_of_the_engine_are_of_the_last_minute():
    readings = Readings()
    readings.observe(ttft(S, [100, 100, 100, 100]), S)
    readings.observe(ttft(30 * S, [110, 115, 125, 125]), 30 * S)
    assert readings.value("ttft p50", 30 * S, status()) == 1.0
    assert readings.value("ttft p95", 30 * S, status()) == 5.0
    readings.observe(ttft(95 * S, [140, 145, 155, 155]), 95 * S)
    assert readings.value("ttft p50", 95 * S, status()) == 0.1
    readings.observe(ttft(96 * S, [1, 1, 1, 1]), 96 * S)
    assert readings.value("ttft p95", 96 * S, status()) is None, "the engine started again"


def test_gauges_power_and_memory():
    readings = Readings()
    readings.observe(engine(S, requests_running=3.0, kv_usage=0.97), S)
    row = {"time_ns": [S], "device": [0], "source": ["nvml"], "power_mw": [300_000]}
    readings.observe(make_batch(GPU_SAMPLE, row), S)
    assert readings.value("kv usage", 2 * S, status()) == pytest.approx(97)
    assert readings.value("requests running", 2 * S, status()) == 3
    assert readings.value("gpu power", 2 * S, status()) == 300
    assert readings.value("requests running", 60 * S, status()) is None, "stale"
    for second in range(0, 1200, 5):
        rss = [10**9 + second * 20_000, 5 * 10**8]
        row = {"time_ns": [second * S] * 2, "pid": [1, 2], "name": ["a", "b"], "rss_bytes": rss}
        readings.observe(make_batch(PROCESS_SAMPLE, row), second * S)
    slope = readings.value("rss slope", 1200 * S, status())
    assert slope == pytest.approx(72e6, rel=1e-3)
    assert readings.value("rss", 1200 * S, status()) == pytest.approx(1.5e9 + 23.9e6)


class Recorded:
    """Captures that only count."""

    def __init__(self) -> None:
        self.fired: list[Capture] = []
        self.answer = None
        self.asked: list[tuple] = []

    def fire(self, capture):
        self.fired.append(capture)
        row = {"time_ns": [capture.time_ns], "kind": ["trigger"], "name": [capture.name]}
        return make_batch(EVENT, row)

    def analyse_soon(self, start_ns, end_ns, causes=()):
        self.asked.append((start_ns, end_ns, tuple(causes)))
        return self.answer

    def close(self):
        return ()


def watch(*texts: str) -> tuple[Triggers, Recorded]:
    captures = Recorded()
    return Triggers([parse_trigger(text) for text in texts], captures, lambda: None), captures


def look(triggers: Triggers, second: int, **more) -> list[Batch]:
    return list(triggers.look(Moment(second * S, lambda: status(**more), lambda reason: None)))


def test_a_trigger_fires_once_until_it_has_not_held_for_a_while():
    triggers, captures = watch("launch p99 > 5ms")
    slow = {"launch_p99_ns": 6_000_000, "n_launches": 1000}
    assert look(triggers, 1, launch_p99_ns=6_000_000, n_launches=50) == [], "too few for a p99"
    [row] = look(triggers, 2, **slow)
    assert row.rows.column("kind").to_pylist() == ["trigger"]
    assert "launch p99 is 0.006" in captures.fired[0].why
    assert look(triggers, 3, **slow) == []
    look(triggers, 4)
    look(triggers, 10, **slow)
    look(triggers, 11)
    look(triggers, 50)
    assert len(captures.fired) == 1
    look(triggers, 51, **slow)
    assert len(captures.fired) == 2


def test_no_progress_needs_demand():
    triggers, captures = watch("no progress for 10s")
    triggers.observe(engine(S, requests_running=0.0, generation_tokens=5.0), S)
    triggers.observe(engine(2 * S, requests_running=0.0, generation_tokens=9.0), 2 * S)
    assert look(triggers, 14) == []
    triggers.observe(engine(14 * S, requests_running=2.0, generation_tokens=9.0), 14 * S)
    assert len(look(triggers, 15)) == 1
    assert "for 13 s" in captures.fired[0].why
    triggers.observe(call_batch(0, 5, 16 * S), 16 * S)
    assert look(triggers, 17) == []


def test_only_the_newest_of_several_pages_counts():
    readings = Readings()
    pages = [engine(S * second, requests_running=3.0 + second).rows for second in (1, 2, 3)]
    rows = pa.Table.from_batches(pages).combine_chunks().to_batches()[0]
    readings.observe(Batch(ENGINE_SAMPLE, rows), 3 * S)
    assert readings.value("requests running", 3 * S, status()) == 6.0


def test_engines_are_added_up_and_the_share_of_the_cache_is_the_largest():
    readings = Readings()
    for second in (1, 2, 3):
        first = engine(second * S, "one", requests_running=2.0, kv_usage=0.9)
        other = engine(second * S, "two", requests_running=5.0, kv_usage=0.1)
        readings.observe(first, second * S)
        readings.observe(other, second * S)
    assert readings.value("requests running", 3 * S, status()) == 7.0
    assert readings.value("kv usage", 3 * S, status()) == 90.0


def test_a_stalled_engine_is_not_going_on_because_another_has_counted_more():
    triggers, _ = watch("no progress for 10s")
    for second in range(1, 15):
        for endpoint, count in (("one", 5.0), ("two", 900.0)):
            rows = engine(second * S, endpoint, requests_running=1.0, generation_tokens=count)
            triggers.observe(rows, second * S)
    triggers.observe(engine(15 * S, "one", requests_running=1.0, generation_tokens=6.0), 15 * S)
    assert look(triggers, 16) == []
    assert len(look(triggers, 26)) == 1


def test_an_xid_fires_each_time():
    triggers, captures = watch("xid")
    for second in (1, 2):
        row = {"time_ns": [S], "kind": ["xid"], "name": ["79"], "detail": ["GPU fell off the bus."]}
        triggers.observe(make_batch(EVENT, row), second * S)
        assert len(look(triggers, second)) == 1
        assert look(triggers, second) == []
    assert captures.fired[0].why == "GPU fell off the bus."


def opened(second: int, start: int, call_id: int = 9, **more) -> Batch:
    row = {
        "time_ns": [second * S],
        "start_ns": [start * S],
        "pid": [7],
        "tid": [8],
        "function": ["cudaStreamSynchronize"],
        "layer": ["runtime"],
        "kind": ["sync"],
        "call_id": [call_id],
        "depth": [0],
        "is_doubtful": [False],
    }
    return make_batch(OPEN_CALL, {**row, **{key: [value] for key, value in more.items()}})


def test_an_open_call_is_suspected_by_its_age_and_less_and_less_often():
    progress = CallProgress()
    watch_ = HangWatch(progress)
    looked = []
    for second in range(100, 200):
        progress.observe(opened(second, 100))
        progress.settle()
        if watch_.look(second * S) is not None:
            looked.append(second - 100)
    assert looked == [10, 12, 16, 24, 40, 72], "10 s where no wait tells what is usual"
    watch_.settle(9)
    progress.observe(opened(300, 100))
    progress.settle()
    assert watch_.look(300 * S) is None, "told already"


@pytest.mark.parametrize(
    "more", [{"is_doubtful": True}, {"depth": 1}, {"kind": "other"}, {"start_ns": 149 * S}]
)
def test_what_is_no_suspect(more):
    progress = CallProgress()
    progress.observe(opened(150, 100, **more))
    progress.settle()
    assert HangWatch(progress).look(150 * S) is None


def test_a_process_that_launches_on_is_no_suspect():
    progress = CallProgress()
    progress.observe(call_batch(0, 10, 149 * S))
    progress.observe(opened(150, 100))
    progress.settle()
    assert HangWatch(progress).look(150 * S) is None
    evidence = progress.evidence()
    assert len(evidence["last_launches"]["7"]) == 10 and len(evidence["open_calls"]) == 1
    json.dumps(evidence)


def test_a_hang_fires_by_itself_once_the_analyzer_proves_it():
    triggers, captures = watch()
    verdict = {"cause": "hang.kernel", "status": "undecided", "confidence": 0.5, "text": "?"}
    captures.answer = {"verdict": verdict}
    for second in (150, 151):
        triggers.observe(opened(second, 100), second * S)
        assert look(triggers, second) == []
        time.sleep(0.05)
    [(start, end, causes)] = captures.asked
    assert (start, end) == (30 * S, 150 * S) and "hang.kernel" in causes
    captures.answer = {"verdict": {**verdict, "status": "found", "text": "hangs."}}
    triggers.observe(opened(155, 100), 155 * S)
    look(triggers, 155)
    time.sleep(0.05)
    triggers.observe(opened(156, 100), 156 * S)
    assert len(look(triggers, 156)) == 1
    [capture] = captures.fired
    assert (capture.name, capture.why) == ("hang.kernel", "hangs.")
    assert capture.evidence["open_calls"][0]["call_id"] == 9
    triggers.observe(opened(170, 100), 170 * S)
    assert look(triggers, 170) == [] and len(captures.asked) == 2


def test_any_finding_is_told_once_while_it_lasts():
    triggers, captures = watch("any finding")
    found = {"cause": "launch.gil", "status": "found", "confidence": 0.9, "text": "it."}
    captures.answer = {"verdict": found}
    fired = []
    for second in range(0, 400):
        fired += [second] * len(look(triggers, second))
        if triggers._analysis is not None:
            triggers._analysis._thread.join()
    assert fired == [61]
    captures.answer = {"verdict": {**found, "cause": "healthy"}}
    for second in range(400, 800):
        assert look(triggers, second) == []
        if triggers._analysis is not None:
            triggers._analysis._thread.join()


def wait_for(path: Path) -> dict:
    """The JSON in a file, once it is there in full."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            assert time.monotonic() < deadline, f"{path} did not come"
            time.sleep(0.02)


def test_a_capture_keeps_gathers_and_tells(tmp_path):
    pins, said = [], []
    options = CaptureOptions(per_hour=2, on_finding=f"cat > {tmp_path}/told.json; exit 3")
    captures = Captures(
        tmp_path, options, lambda: [1], lambda *span: pins.append(span), said.append
    )
    verdict = {"cause": "hang.kernel", "confidence": 0.9, "text": "It hangs."}
    capture = Capture("gpu util > 90", 1000 * S, "why.", {"open_calls": []}, {"verdict": verdict})
    row = captures.fire(capture).rows.to_pylist()[0]
    assert (row["kind"], row["name"], row["detail"]) == ("trigger", "gpu util > 90", "why.")
    assert pins == [(880 * S, 1060 * S)]
    folder = tmp_path / "captures" / "001-gpu-util-90"
    found = wait_for(folder / "finding.json")
    assert found["result"]["verdict"] == verdict
    evidence = json.loads((folder / "evidence.json").read_text())
    assert evidence["open_calls"] == [] and evidence["processes"][0]["pid"] == 1
    assert evidence["processes"][0]["threads"][0]["state"]
    assert wait_for(tmp_path / "told.json")["capture"] == str(folder)
    deadline = time.monotonic() + 20
    while len(said) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert said[1].startswith("hang.kernel (90 % sure): It hangs.")
    assert said[2].endswith("exit status 3.")
    assert captures.last_verdict == verdict
    captures.fire(capture)
    row = captures.fire(Capture("x", 1001 * S, "why.")).rows.to_pylist()[0]
    assert "the most per hour" in row["detail"]
    assert (captures.n_captures, captures.n_refused) == (2, 1)
    captures.close()


@pytest.mark.parametrize("end", ["timeout", "close"])
def test_nothing_that_the_command_started_outlives_its_time(tmp_path, monkeypatch, end):
    said = []
    command = f"(sleep 331 & echo $! > {tmp_path}/pid; wait) | cat"
    captures = Captures(
        tmp_path, CaptureOptions(on_finding=command), list, lambda *span: None, said.append
    )
    if end == "timeout":
        monkeypatch.setattr("tracer.captures.COMMAND_TIMEOUT_S", 0.5)
    verdict = {"cause": "hang.kernel", "confidence": 0.9, "text": "It hangs."}
    captures.fire(Capture("xid", S, "why.", {}, {"verdict": verdict}))
    pid = wait_for(tmp_path / "pid")
    if end == "close":
        captures.close()
    wait_until(lambda: is_gone(pid))
    wait_until(lambda: "--on-finding was ended" in said[-1])
    captures.close()


def test_no_command_begins_after_the_end(tmp_path):
    options = CaptureOptions(on_finding=f"touch {tmp_path}/ran")
    captures = Captures(tmp_path, options, list, lambda *span: None, lambda line: None)
    captures.close()
    captures._tell(f"touch {tmp_path}/ran", {})
    assert captures.analyse_soon(0, S) is None
    assert not (tmp_path / "ran").exists()


def test_what_was_not_finished_at_the_end_is_told(tmp_path, monkeypatch):
    asked = threading.Event()

    def analyse(path, *span) -> subprocess.Popen[bytes]:
        asked.set()
        return subprocess.Popen(["sleep", "331"], stdout=subprocess.PIPE, start_new_session=True)

    monkeypatch.setattr("tracer.live.start", analyse)
    said = []
    options = CaptureOptions(on_finding=f"touch {tmp_path}/ran")
    captures = Captures(tmp_path, options, list, lambda *span: None, said.append)
    for name in ("rss > 1kb", "xid"):
        captures.fire(Capture(name, S, "why."))
    assert asked.wait(20)
    rows = [row for batch in captures.close() for row in batch.rows.to_pylist()]
    assert [(row["kind"], row["name"]) for row in rows] == [
        ("other", "rss > 1kb"),
        ("other", "xid"),
    ]
    assert all("before the verdict" in row["detail"] for row in rows)
    for name, line in zip(("rss > 1kb", "xid"), said[2:], strict=True):
        assert line.startswith(f"{name}: the recording ended before its verdict was made, so")
    captures._thread.join(20)
    assert len(said) == 4 and not (tmp_path / "ran").exists()
    assert captures.close() == []


@pytest.mark.parametrize(
    ("place", "words"),
    [("s", "the analysis failed"), ("s/file", "could not be written (Not a dir")],
)
def test_a_capture_that_fails_is_told(tmp_path, monkeypatch, place, words):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "file").touch()
    monkeypatch.setattr(Captures, "analyse_soon", lambda *_: None)
    said = []
    captures = Captures(tmp_path / place, CaptureOptions(), list, lambda *span: None, said.append)
    captures.fire(Capture("xid", S, "why."))
    wait_until(lambda: len(said) == 2)
    assert words in said[1]
    assert captures.close() == []


def wait_until(holds) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
