"""Flight recorder: what is dropped and thinned, exact summaries, captures, bytes, crashes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from analysis.kept import FILE_NAME as KEPT_NAME
from analysis.kept import Kept
from analysis.schema import (
    CALL_HISTOGRAM,
    CALL_SECOND,
    CUDA_CALL,
    ENGINE_SAMPLE,
    GPU_SAMPLE,
    THREAD_SECOND,
)
from analysis.timeline import open_session
from probes.probe import Batch, make_batch
from tests.tracer.test_session import manifest
from tracer import segment_store
from tracer.compaction import SizedSegment
from tracer.retention import Retention
from tracer.segments import Segment
from tracer.session import SessionWriter
from tracer.summaries import combine, length_range, summarise
from tracer.thinning import thin

S = 1_000_000_000


def second_of_calls(second: int, n: int = 50) -> Batch:
    return make_batch(
        CUDA_CALL,
        {
            "start_ns": second * S + np.arange(n) * (S // n),
            "duration_ns": pa.array([1000 * (1 + i % 7) for i in range(n - 1)] + [None]),
            "pid": np.full(n, 7),
            "tid": np.full(n, 8),
            "function": ["cudaLaunchKernel"] * n,
            "layer": ["runtime"] * n,
            "kind": ["launch"] * n,
            "call_id": second * n + np.arange(n),
            "depth": np.arange(n) % 2,
        },
    )


def second_of_samples(second: int) -> list[Batch]:
    return [
        make_batch(
            GPU_SAMPLE,
            {
                "time_ns": [second * S],
                "device": [0],
                "source": ["nvml"],
                "util_pct": [float(second % 10)],
                "period_ns": [S],
            },
        ),
        make_batch(
            ENGINE_SAMPLE,
            {
                "time_ns": [second * S] * 2,
                "endpoint": ["http://e"] * 2,
                "engine": ["vllm"] * 2,
                "metric": ["generation_tokens", "requests_running"],
                "raw_name": ["a", "b"],
                "kind": ["counter", "gauge"],
                "value": [5.0 * second, 2.0],
            },
        ),
    ]


def play(path: Path, seconds: range, retention: Retention) -> SessionWriter:
    """A recording of those seconds, played at the speed of the disk."""
    now = [seconds.start * S]
    writer = SessionWriter(path, manifest(), clock=lambda: now[0], retention=retention)
    for second in seconds:
        now[0] = second * S
        writer.append(second_of_calls(second))
        for batch in second_of_samples(second):
            writer.append(batch)
        if second % 10 == 9:
            assert writer.flush(force=True)
    writer.manifest.start_ns, writer.manifest.end_ns = seconds.start * S, seconds.stop * S
    return writer


def test_old_detail_is_dropped_and_the_summaries_stay_exact(tmp_path):
    retention = Retention(keep_ns=60 * S)
    writer = play(tmp_path / "s", range(100, 400), retention)
    assert writer.close()
    session, kept = open_session(tmp_path / "s"), Kept.read(tmp_path / "s")
    starts = session.table("cuda_call")["start_ns"].to_numpy()
    assert kept.detail_from_ns is not None
    assert 250 * S <= kept.detail_from_ns <= 340 * S
    inside = starts[starts >= kept.detail_from_ns]
    assert len(inside) * S == (400 * S - kept.detail_from_ns) // S * 50 * S
    assert len(starts) < 150 * 50
    by_second = session.table("call_second")
    assert sum(by_second["n_calls"].to_pylist()) == 300 * 50
    assert sum(by_second["n_returned"].to_pylist()) == 300 * 49
    histogram = session.table("call_histogram")
    assert sum(histogram["n_calls"].to_pylist()) == 300 * 25, "outermost calls that returned"
    counts = {}
    for row in by_second.to_pylist():
        counts[row["start_ns"]] = counts.get(row["start_ns"], 0) + row["n_calls"]
    assert counts == {second * S: 50 for second in range(100, 400)}
    source = session.manifest.source("session")
    assert source.details["n_dropped_rows"] == 300 * 50 - len(starts)


def test_what_is_dropped_can_be_told_on_a_full_disk_and_makes_room(tmp_path, monkeypatch):
    real = segment_store.replace_file
    held = tmp_path / "s" / ".reserve.tmp"

    def write(path, content):
        if path.name == KEPT_NAME and held.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, content)

    monkeypatch.setattr(segment_store, "replace_file", write)
    writer = play(tmp_path / "s", range(100, 200), Retention(keep_ns=30 * S))
    kept = Kept.read(tmp_path / "s")
    assert kept.detail_from_ns is not None and kept.detail_from_ns >= 140 * S
    n_dropped = writer.source().details["n_dropped_rows"]
    writer.write_manifest()
    writer.flush(force=True)
    assert held.exists(), "room is held back again for the end"
    assert writer.close()
    n_left = open_session(tmp_path / "s").table("cuda_call").num_rows
    assert n_dropped >= 40 * 50 and n_left == 100 * 50 - n_dropped


def test_old_samples_are_thinned_but_no_counter_is_lost(tmp_path):
    writer = play(tmp_path / "s", range(100, 400), Retention(keep_ns=60 * S))
    assert writer.close()
    session = open_session(tmp_path / "s")
    tokens = session.table("engine_sample").to_pylist()
    tokens = [(r["time_ns"], r["value"]) for r in tokens if r["metric"] == "generation_tokens"]
    assert len(tokens) < 200
    assert all(value == 5.0 * (time // S) for time, value in tokens)
    assert tokens[-1][0] == 399 * S
    utils = session.table("gpu_sample", end_ns=200 * S)
    assert utils.num_rows <= 12
    weights = utils["period_ns"].to_numpy()
    assert np.average(utils["util_pct"].to_numpy(), weights=weights) == pytest.approx(4.5, abs=0.2)


def test_a_capture_is_kept_in_full(tmp_path):
    retention = Retention(keep_ns=60 * S)
    now = [0]
    writer = SessionWriter(tmp_path / "s", manifest(), clock=lambda: now[0], retention=retention)
    for second in range(100, 400):
        now[0] = second * S
        writer.append(second_of_calls(second))
        if second == 150:
            writer.pin(130 * S, 170 * S)
        if second % 10 == 9:
            assert writer.flush(force=True)
    writer.close()
    kept = Kept.read(tmp_path / "s")
    assert kept.pins == [(130 * S, 170 * S)]
    starts = open_session(tmp_path / "s").table("cuda_call")["start_ns"].to_numpy()
    assert ((starts >= 130 * S) & (starts < 170 * S)).sum() == 40 * 50
    spans = kept.detailed(100 * S, 400 * S)
    assert spans == [(130 * S, 170 * S), (kept.detail_from_ns, 400 * S)]


def test_the_bytes_stay_below_the_limit(tmp_path):
    writer = play(tmp_path / "s", range(100, 500), Retention(max_bytes=140_000))
    assert writer.close()
    files = list((tmp_path / "s").rglob("*.parquet"))
    assert sum(file.stat().st_size for file in files) < 150_000
    session = open_session(tmp_path / "s")
    assert sum(session.table("call_second")["n_calls"].to_pylist()) == 400 * 50
    n_kept = session.n_rows("cuda_call")
    assert n_kept < 400 * 50
    details = session.manifest.source("session").details
    assert details["n_dropped_rows"] >= 400 * 50 - n_kept > 0
    assert Kept.read(session.path).detail_from_ns > 100 * S


def sized(name: str, first: int, last: int, n_bytes: int = 10, **more: bool) -> SizedSegment:
    return SizedSegment(Segment(first, last, Path(name)), 1, n_bytes, first * S, last * S, **more)


def test_what_is_given_up_first():
    segments = {
        "call_second": [sized("summary", 0, 1)],
        "cuda_call": [sized("old", 0, 1), sized("pinned", 2, 3), sized("new", 4, 5)],
        "event": [sized("event", 0, 1)],
        "gpu_sample": [sized("sample", 0, 1)],
    }
    retention = Retention(max_bytes=35)
    retention.pin(2 * S, 3 * S)
    names = [str(step.item.segment.path) for step in retention.plan(segments, 9 * S)]
    assert names == ["old", "new", "pinned"]
    assert retention.kept.detail_from_ns == 5 * S + 1 and retention.kept.pins == []
    tight = Retention(max_bytes=10)
    names = [str(step.item.segment.path) for step in tight.plan(segments, 9 * S)]
    assert names == ["old", "pinned", "new", "sample", "event", "summary"]
    assert tight.kept.dropped_to_ns["gpu_sample"] == S + 1


def test_by_age_captures_stay_and_samples_are_thinned_once():
    segments = {
        "cuda_call": [sized("old", 0, 1), sized("pinned", 2, 3), sized("new", 8, 9)],
        "gpu_sample": [
            sized("thin", 0, 1, is_thinned=True),
            sized("thick", 2, 3),
            sized("not merged", 4, 4),
        ],
        "event": [sized("event", 0, 1)],
    }
    retention = Retention(keep_ns=5 * S)
    retention.pin(3 * S, 4 * S)
    steps = [(str(s.item.segment.path), s.is_drop) for s in retention.plan(segments, 10 * S)]
    assert steps == [("old", True), ("thick", False)]
    assert retention.kept.detail_from_ns == S + 1
    retention.pin(0, S)
    assert retention.kept.pins == [(3 * S, 4 * S)], "what is gone cannot be kept"


def test_summaries_of_parts_add_up_to_that_of_the_whole():
    whole = pa.Table.from_batches([second_of_calls(5, 997).rows])
    parts = [whole.slice(0, 300), whole.slice(300, 697)]
    for index, table in enumerate((CALL_SECOND, CALL_HISTOGRAM)):
        joined = combine(
            table, pa.concat_tables([summarise(CUDA_CALL, p)[index][1] for p in parts])
        )
        expected = summarise(CUDA_CALL, whole)[index][1]
        order = [(name, "ascending") for name in table.column_names]
        assert joined.sort_by(order).equals(expected.sort_by(order))


def test_ranges_hold_their_lengths_and_are_narrow():
    lengths = np.array([0, 1, 7, 999, 123_456, 3 * S, 10**14])
    lower, upper = length_range(lengths)
    assert (lower <= lengths).all() and (lengths < upper).all()
    assert (upper[3:] / lower[3:] < 1.1).all()


def test_thinning_twice_changes_nothing_and_keeps_sums():
    n = 35
    seconds = make_batch(
        THREAD_SECOND,
        {
            "start_ns": np.arange(n) * S,
            "duration_ns": np.full(n, S),
            "pid": np.full(n, 1),
            "tid": np.full(n, 2),
            "name": ["t"] * n,
            "running_ns": np.arange(n),
            "waiting_ns": np.full(n, 3),
            "sleeping_ns": np.full(n, 5),
        },
    )
    once = thin(THREAD_SECOND, pa.Table.from_batches([seconds.rows]))
    assert once.num_rows == 4
    assert sum(once["running_ns"].to_pylist()) == sum(range(n))
    assert sum(once["duration_ns"].to_pylist()) == n * S
    assert thin(THREAD_SECOND, once).equals(once)


def test_a_damaged_file_is_taken_as_absent(tmp_path):
    kept = Kept(5, [(1, 2)], 3, {"event": 4})
    (tmp_path / "kept.json").write_text(kept.to_json())
    assert Kept.read(tmp_path) == kept
    for text in ("{", "[]", '{"pins": 3}', '{"detail_from_ns": "x"}'):
        (tmp_path / "kept.json").write_text(text)
        assert Kept.read(tmp_path).is_whole
