"""Rounds by marks, rates with their bounds, stalls and drifts over the whole of a recording."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.kept import Kept
from analysis.long_recording import find_drifts, find_stalls
from analysis.long_series import launch_lengths, submissions
from analysis.rates import bounds, describe
from analysis.rounds import Round, RoundsError, rates, render, rounds_of, to_json
from analysis.timeline import Session
from tests.analysis.builder import Service, SessionBuilder

S = 1_000_000_000
HOUR = 3600 * S


@pytest.mark.parametrize(
    ("k", "n", "text"),
    [
        (0, 330, "0 in 330: below 0.9 % at 95 %"),
        (1, 30, "1 in 30: 3.3 %, 0.084 % to 17 % at 95 %"),
        (5, 10, "5 in 10: 50 %, 19 % to 81 % at 95 %"),
        (30, 30, "30 in 30: above 90 % at 95 %"),
    ],
)
def test_a_rate_and_its_bound(k, n, text):
    assert describe(k, n) == text


def test_bounds_agree_with_the_exact_ones():
    low, high = bounds(3, 50)
    assert (low, high) == (pytest.approx(0.01255, abs=1e-4), pytest.approx(0.16548, abs=1e-4))
    with pytest.raises(ValueError, match="no rate"):
        bounds(3, 2)


def marked(path: Path) -> Session:
    """Three rounds of 20 s; decodes are twice as slow in the second."""
    service = Service(seed=3)
    builder_marks = []
    for name, slower in (("round 1", 1.0), ("round 2", 2.0), ("round 3", 1.0)):
        builder_marks.append((service.now, name))
        service.decode_until(service.now + 20 * S, slower)
    builder = service.builder(path)
    builder.add("event", [{"time_ns": t, "kind": "mark", "name": n} for t, n in builder_marks])
    return builder.write()


def test_rounds_are_told_apart(tmp_path):
    rounds = rounds_of(marked(tmp_path / "s"))
    assert [item.name for item in rounds] == ["round 1", "round 2", "round 3"]
    assert all(abs(item.end_ns - item.start_ns - 20 * S) < S for item in rounds)
    fast, slow, again = (item.tokens_per_s for item in rounds)
    assert fast / slow == pytest.approx(2, rel=0.15) and fast / again == pytest.approx(1, rel=0.1)
    assert all(7_000 < item.launch_p50_ns < 9_000 for item in rounds)
    assert all(item.n_launches > 500 and item.is_analysed for item in rounds)
    text = render(rounds)
    assert "round 2" in text and "stall: 0 in 3: below 63 % at 95 %" in text
    assert len(to_json(rounds)["rounds"]) == 3


def test_growth_per_hour_is_told_of_minutes_and_not_of_seconds(tmp_path):
    builder = SessionBuilder(tmp_path / "s", start_ns=0, end_ns=400 * S)
    samples = [{"time_ns": s * S, "pid": 1, "rss_bytes": 7_000_000 * s} for s in range(400)]
    builder.add("process_sample", samples)
    marks = ((0, "short"), (7, "long"))
    builder.add("event", [{"time_ns": t * S, "kind": "mark", "name": name} for t, name in marks])
    short, long = rounds_of(builder.write())
    assert short.rss_bytes_per_h is None
    assert long.rss_bytes_per_h == pytest.approx(25.2e9, rel=1e-6)
    assert to_json([short])["rounds"][0]["rss_bytes_per_h"] is None
    head, first, second = render([short, long]).splitlines()[:3]
    at = head.index("RSS/h") + len("RSS/h")
    assert first[:at].endswith(" -") and second[:at].endswith(" +25200 MB")


def test_columns_never_touch_and_the_bounds_are_explained():
    item = Round("r", 0, 7 * S, launch_p99_ns=9_744, rss_bytes_per_h=2.5405e13, is_analysed=True)
    text = render([item])
    assert "9.744 µs +25405000 MB  -" in text
    assert "hang.kernel: 0 in 1: below 95 % at 95 %" in text
    assert "the bounds of\nits true rate" in text
    assert "RSS/h: growth of memory, - where it was sampled for less than 4 min" in text


def test_without_marks_there_are_no_rounds(tmp_path):
    service = Service()
    service.decode_until(service.now + 3 * S)
    with pytest.raises(RoundsError, match="tracer mark"):
        rounds_of(service.session(tmp_path / "s"))


def test_a_rare_event_counts_over_the_rounds_that_could_show_it():
    rounds = [Round(str(i), 0, 1, is_analysed=i < 20) for i in range(30)]
    rounds[25].findings = ["hang.kernel"]
    rounds[3].findings = ["stall"]
    told = rates(rounds)
    assert told["hang.kernel"].startswith("1 in 21: 4.8 %")
    assert told["stall"].startswith("1 in 30: 3.3 %")


def summarised(path: Path, hours: int = 4) -> Session:
    """Hours at one row a second: a stall, launches that become 20 % longer in the second half."""
    seconds = np.arange(hours * 3600)
    builder = SessionBuilder(path, start_ns=0, end_ns=hours * HOUR, start_realtime_ns=10**18)
    is_stalled = (seconds >= 5000) & (seconds < 5040)
    common = {"pid": 1, "function": "cudaLaunchKernel", "kind": "launch"}
    builder.add(
        "call_second",
        [
            {
                **common,
                **{"start_ns": int(s) * S, "duration_ns": S, "tid": 2, "layer": "runtime"},
                **{"depth": 0, "n_calls": 100, "n_returned": 100},
            }
            for s in seconds[~is_stalled]
        ],
    )
    rows = []
    for s in seconds[::10]:
        length = 5000 * (1 + 0.2 * max(0.0, s / len(seconds) - 0.5) * 2)
        upper = int(length) + 1
        span = {"start_ns": int(s) * S, "duration_ns": 10 * S, "n_calls": 1000}
        rows.append({**common, **span, "lower_ns": upper - 400, "upper_ns": upper})
    builder.add("call_histogram", rows)
    builder.add(
        "engine_sample",
        [
            {
                **{"time_ns": int(s) * S, "endpoint": "e", "engine": "vllm", "raw_name": "r"},
                **{"metric": metric, "kind": kind, "value": value},
            }
            for s in seconds[::10]
            for metric, kind, value in (
                ("requests_running", "gauge", 0.0 if 9000 <= s < 9100 else 4.0),
                ("generation_tokens", "counter", float(s)),
            )
        ],
    )
    builder.add("event", [{"time_ns": 0, "kind": "mark", "name": "all"}])
    return builder.write()


def test_a_stall_is_found_and_dated_and_silence_without_requests_is_none(tmp_path):
    session = summarised(tmp_path / "s")
    [stall] = find_stalls(session)
    assert (stall.start_ns, stall.end_ns) == (5000 * S, 5040 * S)
    first, total = submissions(session)
    assert first == 0 and total.sum() == (4 * 3600 - 40) * 100


def test_a_drift_is_found_and_dated(tmp_path):
    session = summarised(tmp_path / "s")
    [drift] = [item for item in find_drifts(session) if item.name == "median launch"]
    assert drift.before == pytest.approx(5000, rel=0.01)
    assert drift.after == pytest.approx(5650, rel=0.02)
    assert 1.9 * HOUR < drift.start_ns < 2.4 * HOUR
    assert drift.load_ratio == pytest.approx(1, abs=0.01)


def test_lengths_come_from_the_histogram(tmp_path):
    session = summarised(tmp_path / "s", 1)
    lengths = launch_lengths(session, np.array([0, HOUR // 2, HOUR]))
    value, n = lengths.quantile(0, 0.5)
    assert (value, n) == (5001, 180_000)


def test_the_long_recording_is_told_as_a_whole(tmp_path):
    from analysis.attribution import attribute

    session = summarised(tmp_path / "s")
    kept = Kept(detail_from_ns=4 * HOUR - 60 * S, thinned_to_ns=HOUR)
    (session.path / "kept.json").write_text(kept.to_json())
    answer = attribute(session)
    notes = " ".join(answer.notes)
    assert "full detail is kept of 60 s of it" in notes
    assert "Stall: nothing was handed to the device for 40 s" in notes
    assert "Drift: the median launch went from 5" in notes
    assert (answer.start_ns, answer.end_ns) == (0, 4 * HOUR)
