"""The session writer: closed segments, encodings, losses, kill -9, full disk, merging, recovery."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.manifest import Manifest, Source
from analysis.schema import CUDA_CALL, EVENT
from analysis.timeline import open_session
from probes.probe import Batch, make_batch
from tracer import compaction, segment_store, session
from tracer import recovery as recovery_module
from tracer import session as session_module
from tracer.errors import InputError, SessionError
from tracer.free_space import FreeSpace
from tracer.host_facts import boot_id
from tracer.recovery import mended_line, recover
from tracer.reserve import Reserve
from tracer.segments import Segment, parse_segment, replace_file, segment_name, split_visible
from tracer.session import SessionWriter


def calls(first: int, n: int, start_ns: int = 1_000) -> Batch:
    ids = np.arange(first, first + n, dtype=np.int64)
    return make_batch(
        CUDA_CALL,
        {
            "start_ns": start_ns + ids * 1000,
            "duration_ns": np.full(n, 500),
            "pid": np.full(n, 7),
            "tid": np.full(n, 8),
            "function": ["cudaLaunchKernel"] * n,
            "layer": ["runtime"] * n,
            "kind": ["launch"] * n,
            "call_id": ids,
            "depth": np.zeros(n),
        },
    )


def manifest() -> Manifest:
    return Manifest(tool_version="0", start_ns=1, host={"boot_id": "b", "hostname": "h"})


def call_ids(path: Path) -> list[int]:
    return open_session(path).table("cuda_call", columns=["call_id"])["call_id"].to_pylist()


def test_segment_names_round_trip_and_covered_ones_are_told_apart(tmp_path):
    assert segment_name(3, 12) == "000000003-000000012.parquet"
    assert parse_segment(tmp_path / segment_name(3, 12)) == Segment(
        3, 12, tmp_path / segment_name(3, 12)
    )
    for other in ("1.parquet", "2-1.parquet", "a-b.parquet", "1-2.parquet.damaged", ".1-2.tmp"):
        assert parse_segment(tmp_path / other) is None
    names = [segment_name(*pair) for pair in ((0, 0), (1, 1), (0, 1), (2, 2), (5, 5), (0, 3))]
    visible, covered = split_visible(tmp_path / name for name in names)
    assert [(item.first, item.last) for item in visible] == [(0, 3), (5, 5)]
    assert len(covered) == 4


def test_rows_come_back_sorted_and_the_directory_is_private(tmp_path):
    writer = SessionWriter(tmp_path / "s", manifest())
    writer.append(calls(100, 50))
    writer.append(calls(0, 100))
    assert writer.close()
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700
    [file] = (tmp_path / "s" / "cuda_call").iterdir()
    assert file.name == segment_name(0, 0)
    assert pq.read_table(file)["call_id"].to_pylist() == list(range(150))
    assert call_ids(tmp_path / "s") == list(range(150))
    source = Manifest.read(tmp_path / "s").source("session")
    assert (source.state, source.n_rows, source.n_lost) == ("ok", 150, 0)


def test_encodings_and_footer(tmp_path):
    writer = SessionWriter(tmp_path / "s", manifest())
    writer.append(calls(0, 1000))
    writer.close()
    [file] = (tmp_path / "s" / "cuda_call").iterdir()
    metadata = pq.read_metadata(file)
    columns = {
        metadata.row_group(0).column(index).path_in_schema: metadata.row_group(0).column(index)
        for index in range(metadata.num_columns)
    }
    for name in ("start_ns", "duration_ns", "call_id"):
        assert "DELTA_BINARY_PACKED" in columns[name].encodings
        assert not columns[name].has_dictionary_page
    for name in ("function", "tid", "stream"):
        assert columns[name].has_dictionary_page
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    assert columns["start_ns"].statistics.min == 1000
    footer = metadata.metadata
    assert footer[b"table"] == b"cuda_call" and footer[b"format"] == b"1"
    assert footer[b"clock"] == b"monotonic" and footer[b"boot_id"] == b"b"
    assert footer[b"n_lost_rows"] == b"0" and footer[b"hostname"] == b"h"
    types = pq.read_schema(file)
    for column, declared in zip(CUDA_CALL, CUDA_CALL.arrow_schema(), strict=True):
        assert types.field(column.name).type == declared.type


def test_few_samples_are_encoded_quickly_until_they_are_merged(tmp_path):
    batch = make_batch(
        EVENT, {"time_ns": [1, 2], "kind": ["mark"] * 2, "name": ["a"] * 2, "detail": [""] * 2}
    )
    content = segment_store.encode_segment(EVENT, [batch.rows], {})
    (tmp_path / "000000000-000000000.parquet").write_bytes(content)
    (tmp_path / "000000001-000000001.parquet").write_bytes(content)
    group = compaction.sized_segments(tmp_path)
    merged = compaction.merge(tmp_path, EVENT, group, {}).segment.path
    compressions, rows = [], []
    for path in (group[0].segment.path, merged):
        columns = pq.read_metadata(path).row_group(0).to_dict()["columns"]
        compressions.append({column["compression"] for column in columns})
        rows.append(pq.read_table(path).num_rows)
    assert compressions == [{"LZ4"}, {"ZSTD"}]
    assert rows == [2, 4]


def test_segments_close_after_a_time_and_at_a_size(tmp_path):
    now = [0]
    writer = SessionWriter(
        tmp_path / "s", manifest(), clock=lambda: now[0], segment_ns=2_000, segment_rows=100
    )
    folder = tmp_path / "s" / "cuda_call"
    writer.append(calls(0, 10))
    now[0] = 2_999
    assert writer.flush()
    assert not folder.exists()
    now[0] = 3_000
    writer.flush()
    writer.write_manifest()
    assert writer.flush(force=True)
    assert len(list(folder.iterdir())) == 1
    writer.append(calls(10, 100))
    assert writer.flush(force=True)
    assert len(list(folder.iterdir())) == 2
    writer.close()
    assert call_ids(tmp_path / "s") == list(range(110))


def test_many_rows_wait_less_than_few_and_what_waited_half_as_long_goes_along(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(session, "FEW_ROWS", 20)
    now = [0]
    writer = SessionWriter(tmp_path / "s", manifest(), clock=lambda: now[0], segment_ns=2_000)

    def tables_at(time_ns: int) -> set[str]:
        now[0] = time_ns
        writer.flush()
        writer.write_manifest()
        while not writer.flush():
            time.sleep(0.001)
        return {path.name for path in (tmp_path / "s").iterdir() if path.is_dir()}

    writer.append(calls(0, 10))
    assert tables_at(2_500) == set()
    writer.append(
        make_batch(EVENT, {"time_ns": [1], "kind": ["mark"], "name": ["a"], "detail": [""]})
    )
    writer.append(calls(10, 10))
    assert tables_at(2_501) == {"cuda_call"}
    assert tables_at(5_500) == {"cuda_call", "event"}
    writer.append(
        make_batch(EVENT, {"time_ns": [2], "kind": ["mark"], "name": ["b"], "detail": [""]})
    )
    now[0] = 7_000
    writer.append(calls(20, 20))
    assert tables_at(9_000) == {"cuda_call", "event"}
    writer.close()
    files = {name: len(list((tmp_path / "s" / name).iterdir())) for name in ("cuda_call", "event")}
    assert files == {"cuda_call": 2, "event": 2}


def test_what_its_source_kept_back_has_waited_already(tmp_path):
    now = [100_000]
    writer = SessionWriter(tmp_path / "s", manifest(), clock=lambda: now[0], segment_ns=2_000)
    writer.append(calls(0, 5))
    writer.flush()
    assert not (tmp_path / "s" / "cuda_call").exists()
    event = make_batch(EVENT, {"time_ns": [1], "kind": ["mark"], "name": ["a"], "detail": [""]})
    writer.append(event)
    writer.append(replace(event, held_ns=3_000))
    while not writer.flush():
        time.sleep(0.001)
    assert {path.name for path in (tmp_path / "s").iterdir() if path.is_dir()} == {"event"}
    writer.close()


def test_an_existing_session_is_not_overwritten(tmp_path):
    SessionWriter(tmp_path / "s", manifest()).close()
    with pytest.raises(SessionError, match="--force"):
        SessionWriter(tmp_path / "s", manifest())
    SessionWriter(tmp_path / "s", manifest(), force=True).close()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "precious").touch()
    with pytest.raises(SessionError, match="not a session"):
        SessionWriter(tmp_path / "home", manifest(), force=True)
    assert (tmp_path / "home" / "precious").exists()
    (tmp_path / "file").touch()
    with pytest.raises(SessionError, match="not a directory"):
        SessionWriter(tmp_path / "file", manifest(), force=True)
    (tmp_path / "empty").mkdir()
    SessionWriter(tmp_path / "empty", manifest()).close()


@pytest.mark.parametrize("name", ["x" * 300, "file/s", f"new/{'x' * 300}/s"])
def test_a_place_that_cannot_be_is_refused(tmp_path, name):
    (tmp_path / "file").touch()
    FreeSpace(tmp_path / name, 0)
    with pytest.raises(SessionError, match="choose another place"):
        SessionWriter(tmp_path / name, manifest())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("manifest.json", '{"manifest_version": 3}'),
        ("manifest.json", "{"),
        ("notes.md", "dear"),
        ("src/work.js", "dear"),
        ("event/notes.md", "dear"),
        ("captures/notes.md", "dear"),
        ("captures/001-hang/core", "dear"),
    ],
)
def test_a_directory_with_something_else_in_it_is_not_deleted(tmp_path, name, content):
    writer = SessionWriter(tmp_path / "s", manifest())
    writer.append(make_batch(EVENT, {"time_ns": [1], "kind": ["mark"], "name": ["m"]}))
    writer.close()
    file = tmp_path / "s" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    with pytest.raises(SessionError, match="will not be deleted"):
        SessionWriter(tmp_path / "s", manifest(), force=True)
    assert file.read_text() == content
    assert list((tmp_path / "s" / "event").iterdir())


def test_the_present_directory_can_be_replaced(tmp_path, monkeypatch):
    for _ in range(2):
        (tmp_path / "s").mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / "s")
        writer = SessionWriter(Path(), manifest(), force=True)
        writer.append(calls(0, 10))
        assert writer.close()
    assert call_ids(tmp_path / "s") == list(range(10))


def test_everything_that_a_recorder_leaves_may_be_replaced(tmp_path):
    writer = SessionWriter(tmp_path / "s", manifest())
    writer.append(calls(0, 10))
    writer.close()
    for name in (
        "kept.json",
        ".manifest.json.tmp",
        "cuda_call/000000001-000000001.parquet.damaged",
        "cuda_call/.000000002-000000002.parquet.tmp",
        "captures/001-hang/trigger.json",
        "captures/001-hang/.finding.json.tmp",
    ):
        (tmp_path / "s" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "s" / name).touch()
    SessionWriter(tmp_path / "s", manifest(), force=True).close()
    assert sorted(item.name for item in (tmp_path / "s").iterdir()) == [".lock", "manifest.json"]


def test_a_session_being_written_is_not_replaced_or_recovered(tmp_path):
    writer = SessionWriter(tmp_path / "s", manifest())
    with pytest.raises(SessionError, match="another recorder"):
        SessionWriter(tmp_path / "s", manifest(), force=True)
    with pytest.raises(SessionError, match="still being recorded"):
        recover(tmp_path / "s")
    writer.close()


def test_small_segments_are_merged_and_each_row_is_seen_once(tmp_path, monkeypatch):
    monkeypatch.setattr(compaction, "SEALED_ROWS", 1000)
    monkeypatch.setattr(compaction, "MERGED_ROWS", 2000)
    writer = SessionWriter(tmp_path / "s", manifest())
    rng = random.Random(5)
    total = 0
    for _ in range(120):
        n = rng.choice([1, 2, 50, 200])
        writer.append(calls(total, n))
        total += n
        assert writer.flush(force=True)
    deadline = time.monotonic() + 20
    while compaction.plan_merge(compaction.sized_segments(tmp_path / "s" / "cuda_call")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    n_files = len(list((tmp_path / "s" / "cuda_call").iterdir()))
    assert n_files >= 120, "a reader can finish with the files that it listed"
    assert call_ids(tmp_path / "s") == list(range(total))
    writer.close()
    assert call_ids(tmp_path / "s") == list(range(total))
    assert len(list((tmp_path / "s" / "cuda_call").iterdir())) < 40
    sizes = [item.n_rows for item in compaction.sized_segments(tmp_path / "s" / "cuda_call")]
    assert len(sizes) < 40 and max(sizes) <= 2000 and sum(sizes) == total
    assert Manifest.read(tmp_path / "s").source("session").details["n_merges"] > 0


def test_merge_groups():
    def sized(first, last, rows):
        return compaction.SizedSegment(Segment(first, last, Path()), rows)

    few = [sized(index, index, 1) for index in range(15)]
    assert list(compaction.plan_merge(few)) == []
    many = [sized(index, index, 1) for index in range(17)]
    assert list(compaction.plan_merge(many)) == many[:16]
    ranked = [sized(0, 15, 16), *[sized(index, index, 1) for index in range(16, 31)]]
    assert list(compaction.plan_merge(ranked)) == []
    assert sized(0, 255, 1).rank == 2
    large = [sized(0, 0, 200_000), sized(1, 1, 70_000), sized(2, 2, 70_000), sized(3, 3, 1)]
    assert list(compaction.plan_merge(large)) == large[1:3]


def test_half_of_a_final_segment_waits_for_the_rest_where_there_may_be_more():
    def sized(index, rows):
        return compaction.SizedSegment(Segment(index, index, Path()), rows)

    half = [sized(index, 6_000) for index in range(21)]
    assert list(compaction.plan_merge(half)) == []
    whole = [*half, sized(21, 6_000)]
    assert list(compaction.plan_merge(whole)) == whole
    ended = [*half, sized(21, 120_000)]
    assert list(compaction.plan_merge(ended)) == half[:16]


def test_a_merge_cut_short_leaves_each_row_once(tmp_path):
    writer = SessionWriter(tmp_path / "s", manifest())
    for index in range(4):
        writer.append(calls(index * 10, 10))
        writer.flush(force=True)
    writer.close()
    folder = tmp_path / "s" / "cuda_call"
    group = compaction.sized_segments(folder)
    compaction.merge(folder, CUDA_CALL, group, {})
    assert len(list(folder.glob("*.parquet"))) == 5
    assert call_ids(tmp_path / "s") == list(range(40))
    (folder / ".000000000-000000009.parquet.tmp").write_bytes(b"half")
    recovery = recover(tmp_path / "s")
    assert len(recovery.removed) == 5
    assert [file.name for file in folder.iterdir()] == [segment_name(0, 3)]
    assert call_ids(tmp_path / "s") == list(range(40))


def test_a_full_disk_drops_and_counts_and_recovers(tmp_path, monkeypatch):
    real = segment_store.replace_file
    is_full = [False]

    def write(path, content):
        if is_full[0] and path.suffix == ".parquet":
            raise OSError(28, os.strerror(28))
        real(path, content)

    monkeypatch.setattr(segment_store, "replace_file", write)
    now = [0]
    writer = SessionWriter(tmp_path / "s", manifest(), clock=lambda: now[0], segment_ns=1000)
    writer.append(calls(0, 10))
    assert writer.flush(force=True)
    is_full[0] = True
    for index in (1, 2):
        writer.append(calls(index * 10, 10))
        writer.flush(force=True)
    assert "20 rows were dropped" in writer.problem
    is_full[0] = False
    now[0] = 10_000
    writer.append(calls(30, 10))
    writer.flush(force=True)
    assert writer.close()
    assert call_ids(tmp_path / "s") == [*range(10), *range(30, 40)]
    opened = open_session(tmp_path / "s")
    losses = opened.table("loss").to_pylist()
    assert sum(row["n_lost"] for row in losses) == 20
    assert {(row["source"], row["reason"]) for row in losses} == {("session", "disk_full")}
    kinds = opened.table("event")["kind"].to_pylist()
    assert kinds == ["source_lost", "source_recovered"]
    source = opened.manifest.source("session")
    assert (source.state, source.n_lost) == ("degraded", 20)


@pytest.mark.parametrize("error", [MemoryError(), pa.ArrowMemoryError("malloc of size 9 failed")])
def test_rows_that_find_no_memory_are_counted_and_the_next_are_written(
    tmp_path, monkeypatch, error
):
    real = segment_store.encode_segment
    lacks = [False]

    def encode(table, batches, facts):
        if lacks[0]:
            raise error
        return real(table, batches, facts)

    monkeypatch.setattr(segment_store, "encode_segment", encode)
    writer = SessionWriter(tmp_path / "s", manifest())
    for lacks[0], first in ((False, 0), (True, 10), (False, 20)):
        writer.append(calls(first, 10))
        assert writer.flush(force=True)
    assert writer.close()
    assert call_ids(tmp_path / "s") == [*range(10), *range(20, 30)]
    [row] = open_session(tmp_path / "s").table("loss").to_pylist()
    assert (row["reason"], row["n_lost"]) == ("write_error", 10)


@pytest.mark.root
def test_a_really_full_disk(tmp_path):
    mount = tmp_path / "mount"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", mount], check=True)
    try:
        writer = SessionWriter(mount / "s", manifest(), segment_ns=1_000_000)
        rng = np.random.default_rng(1)
        for index in range(30):
            batch = calls(index * 3000, 3000)
            noise = rng.integers(1, 2**40, 3000)
            columns = {name: batch.rows.column(name) for name in batch.rows.schema.names}
            writer.append(make_batch(CUDA_CALL, {**columns, "duration_ns": noise}))
            writer.flush(force=True)
        assert "No space left" in writer.problem
        n_lost = writer.source().n_lost
        assert n_lost > 0
        assert len(call_ids(mount / "s")) == 90_000 - n_lost
        oldest = min((mount / "s" / "cuda_call").iterdir())
        n_deleted = pq.read_metadata(oldest).num_rows
        oldest.unlink()
        time.sleep(0.01)
        writer.append(calls(0, 10))
        writer.append(make_batch(EVENT, {"time_ns": [1], "kind": ["mark"], "name": ["m"]}))
        assert writer.close()
        opened = open_session(mount / "s")
        assert sum(opened.table("loss")["n_lost"].to_pylist()) == n_lost
        assert "source_lost" in opened.table("event")["kind"].to_pylist()
        assert len(call_ids(mount / "s")) == 90_010 - n_lost - n_deleted
        assert Manifest.read(mount / "s").source("session").n_lost == n_lost
    finally:
        subprocess.run(["umount", mount], check=True)


@pytest.mark.root
def test_a_disk_that_stays_full_gets_its_losses_and_its_end(tmp_path):
    mount = tmp_path / "mount"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", mount], check=True)
    try:
        writer = SessionWriter(mount / "s", manifest(), segment_ns=1_000_000)
        with (mount / "filling").open("wb", buffering=0) as filling, pytest.raises(OSError):
            while True:
                filling.write(bytes(4096))
        writer.append(calls(0, 57))
        writer.flush(force=True)
        writer.manifest.end_ns, writer.manifest.end_reason = 10**6, "duration"
        assert writer.close()
        opened = open_session(mount / "s")
        assert opened.manifest.end_reason == "duration"
        [loss] = opened.table("loss").to_pylist()
        assert (loss["n_lost"], loss["reason"]) == (57, "disk_full")
        assert "source_lost" in opened.table("event")["kind"].to_pylist()
        assert opened.manifest.source("session").n_lost == 57
        assert not list((mount / "s").glob("*.tmp")) and not (mount / "s" / ".reserve.tmp").exists()
    finally:
        subprocess.run(["umount", mount], check=True)


def test_the_reserve_grows_with_the_manifest_and_is_given_back(tmp_path):
    reserve = Reserve(tmp_path)
    file = tmp_path / ".reserve.tmp"
    reserve.hold(1000)
    small = file.stat().st_blocks
    reserve.hold(4_000_000)
    assert file.stat().st_blocks * 512 >= 5_000_000 > small * 512
    reserve.hold(1000)
    assert file.stat().st_blocks * 512 >= 5_000_000
    reserve.release()
    assert not file.exists()
    reserve.release()


def test_room_that_comes_back_late_still_takes_the_losses_and_the_end(tmp_path, monkeypatch):
    """As with a quota of btrfs: a removed file counts until the next transaction."""
    is_full = [False]

    def refuse(path, content):
        if is_full[0]:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        replace_file(path, content)

    def settle(reserve):
        assert not (tmp_path / "s" / ".reserve.tmp").exists(), "it was not given back"
        is_full[0] = False

    monkeypatch.setattr(segment_store, "replace_file", refuse)
    monkeypatch.setattr(session_module, "replace_file", refuse)
    monkeypatch.setattr(Reserve, "settle", settle)
    writer = SessionWriter(tmp_path / "s", manifest())
    is_full[0] = True
    writer.append(calls(0, 57))
    writer.manifest.end_ns, writer.manifest.end_reason = 9, "terminated"
    assert writer.close()
    opened = open_session(tmp_path / "s")
    assert opened.manifest.end_reason == "terminated"
    [row] = opened.table("loss").to_pylist()
    assert (row["reason"], row["n_lost"]) == ("disk_full", 57)


def test_a_disk_that_does_not_keep_up_costs_rows_not_memory(tmp_path, monkeypatch):
    real = segment_store.replace_file
    monkeypatch.setattr(
        segment_store, "replace_file", lambda path, content: (time.sleep(0.2), real(path, content))
    )
    writer = SessionWriter(tmp_path / "s", manifest(), segment_rows=1000, max_pending_bytes=300_000)
    for index in range(20):
        writer.append(calls(index * 1000, 1000))
    assert writer.close()
    opened = open_session(tmp_path / "s")
    [row] = opened.table("loss").to_pylist()
    assert row["reason"] == "writer_behind"
    assert row["n_lost"] + len(call_ids(tmp_path / "s")) == 20_000


WRITER = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    sys.path[:0] = [{tests!r}]
    from tests.tracer.test_session import calls, manifest
    from tracer import compaction
    from tracer.session import SessionWriter
    compaction.SEALED_ROWS, compaction.MERGED_ROWS, compaction.FAN_IN = 500, 1000, 4
    writer = SessionWriter(Path(sys.argv[1]), manifest(), segment_ns=1)
    first = 0
    print("up", flush=True)
    while True:
        writer.append(calls(first, 37))
        first += 37
        if writer.flush(force=True):
            print(first, flush=True)
    """
)


def test_kill_at_any_instant_leaves_every_written_row_readable_once(tmp_path):
    rng = random.Random(11)
    root = str(Path(__file__).resolve().parents[2])
    for index in range(4):
        path = tmp_path / f"s{index}"
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER.format(tests=root), str(path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
        )
        try:
            assert process.stdout.readline() == "up\n"
            time.sleep(rng.uniform(0.05, 0.8))
            process.send_signal(signal.SIGKILL)
            output = process.stdout.read().split()
        finally:
            process.kill()
            process.wait()
        promised = int(output[-1]) if output else 0
        before = call_ids(path) if promised else []
        assert len(before) >= promised
        recovery = recover(path)
        assert recovery.damaged == []
        assert not list(path.glob("**/*.tmp"))
        after = call_ids(path) if before else []
        assert after == before == list(range(len(after)))
        mended = Manifest.read(path)
        assert mended.end_reason == "crashed"
        assert mended.end_ns == (1000 + (len(after) - 1) * 1000 if after else mended.start_ns)
        assert recover(path).was_finished


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.ENOSPC, "make room"), (errno.EROFS, "as its owner")]
)
def test_a_session_that_cannot_be_mended_says_what_to_do(tmp_path, monkeypatch, number, remedy):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    SessionWriter(tmp_path / "s", manifest()).close()
    unfinished = Manifest.read(tmp_path / "s")
    assert unfinished.end_ns is None
    monkeypatch.setattr(recovery_module, "replace_file", refuse)
    with pytest.raises(SessionError, match=remedy):
        recover(tmp_path / "s")


@pytest.mark.parametrize(("is_this_boot", "reason"), [(True, "out_of_memory"), (False, "crashed")])
def test_a_recorder_that_the_kernel_killed_for_memory(tmp_path, monkeypatch, is_this_boot, reason):
    told = manifest()
    told.host["boot_id"] = boot_id() if is_this_boot else "another"
    told.sources = [Source("recorder", "ok", details={"pid": 4242})]
    SessionWriter(tmp_path / "s", told).close()
    monkeypatch.setattr(
        recovery_module, "was_killed_for_memory", lambda pid, since_ns: (pid, since_ns) == (4242, 1)
    )
    recover(tmp_path / "s")
    assert Manifest.read(tmp_path / "s").end_reason == reason
    assert ("lack of memory" in mended_line(tmp_path / "s")) is is_this_boot


def test_recovery_sets_a_damaged_segment_aside(tmp_path):
    writer = SessionWriter(tmp_path / "s", manifest())
    writer.append(calls(0, 10))
    writer.close()
    (tmp_path / "s" / "cuda_call" / segment_name(1, 1)).write_bytes(b"PAR1 not a segment")
    recovery = recover(tmp_path / "s")
    assert recovery.damaged == [f"cuda_call/{segment_name(1, 1)}"]
    assert recovery.n_rows == 10
    with pytest.raises(InputError, match="not a session"):
        recover(tmp_path)


def test_a_session_without_a_thread_is_refused_and_can_be_made_later(tmp_path, monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", refuse)
        with pytest.raises(SessionError, match="no room for a thread"):
            SessionWriter(tmp_path / "s", Manifest(tool_version="1"))
    assert SessionWriter(tmp_path / "s", Manifest(tool_version="1"), force=True).close()


@pytest.mark.parametrize("what", ["removed", "moved", "replaced"])
def test_a_directory_that_is_not_there_any_more_gets_no_rows(tmp_path, what):
    path = tmp_path / "s"
    writer = SessionWriter(path, manifest())
    writer.append(calls(0, 10))
    assert writer.flush(force=True) and writer.is_in_place()
    path.rename(tmp_path / "moved")
    if what == "removed":
        shutil.rmtree(tmp_path / "moved")
    elif what == "replaced":
        path.mkdir()
        (path / "manifest.json").write_text("dear")
    writer.append(calls(10, 10))
    writer.write_manifest()
    writer.flush(force=True)
    assert not writer.is_in_place()
    assert "10 rows were dropped" in writer.problem and writer.source().n_lost == 10
    assert not writer.close() and not writer.is_in_place()
    if what == "replaced":
        assert [(item.name, item.read_text()) for item in path.iterdir()] == [
            ("manifest.json", "dear")
        ]
    else:
        assert not path.exists()
    if what == "moved":
        recover(tmp_path / "moved")
        assert call_ids(tmp_path / "moved") == list(range(10))


def test_a_table_whose_folder_was_removed_goes_on(tmp_path):
    writer = SessionWriter(tmp_path / "s", manifest())
    writer.append(calls(0, 10))
    assert writer.flush(force=True)
    shutil.rmtree(tmp_path / "s" / "cuda_call")
    writer.append(calls(10, 10))
    assert writer.close() and writer.source().n_lost == 0
    assert call_ids(tmp_path / "s") == list(range(10, 20))
