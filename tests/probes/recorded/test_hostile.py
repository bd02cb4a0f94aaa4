"""Input made to break the importers: one clear line or a counted skip, in bounded memory."""

import json
import resource
import sqlite3
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probes.recorded import RecordingError
from probes.recorded.json_cuts import split_exactly
from tests.probes.recorded.fuzz import FOUND, SOURCES, make_case, try_import
from tests.probes.recorded.tables import read_all
from tests.probes.recorded.traces import kernel, launch, write_trace

#: Most memory an import may take beyond what its libraries take, in bytes.
MEMORY_BYTES = 400 << 20

READ = """
import resource, sys
import pyarrow.parquet
from probes.recorded import open_recording, RecordingError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    recording = open_recording(sys.argv[1])
    n_rows = sum(batch.rows.num_rows for batch in recording.batches())
    print("read", n_rows, sum(problem.n_rows for problem in recording.problems))
except RecordingError as error:
    print("refused", error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def read_apart(path):
    """What an import in a process of its own said, and the memory it took in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=Path(__file__).parents[3],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30)),
    )
    assert done.returncode == 0, done.stderr
    *lines, memory = done.stdout.splitlines()
    assert len(lines) == 1
    return lines[0], int(memory)


def refused_or_counted(path):
    """Read in this process; a refusal must be one sentence that names the file."""
    try:
        recording, tables = read_all(path)
    except RecordingError as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return None
    for table in tables.values():
        for name in ("duration_ns", "n_lost"):
            if name in table.column_names:
                assert all(value is None or value >= 0 for value in table[name].to_pylist())
    return recording, tables


def test_gzip_bomb(tmp_path):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    with (tmp_path / "bomb.gz").open("wb") as file:
        file.write(packer.compress(b'{"schemaVersion": 1, "traceEvents": [\n'))
        line = (json.dumps(launch(1, 1)) + ",\n").encode() * 10_000
        for _ in range(150):
            file.write(packer.compress(line))
        file.write(packer.flush())
    assert (tmp_path / "bomb.gz").stat().st_size < 2 << 20
    line, memory = read_apart(tmp_path / "bomb.gz")
    assert line.startswith("refused") and "grows more than" in line
    assert memory < MEMORY_BYTES


def test_a_string_of_two_gigabytes(tmp_path):
    path = tmp_path / "long.json"
    with path.open("wb") as file:
        file.write(b'{"schemaVersion": 1, "traceEvents": [{"name": "')
        file.truncate(2 << 30)
    line, memory = read_apart(path)
    assert line.startswith("refused") and "more than 16 MiB" in line
    assert memory < MEMORY_BYTES


def test_a_header_without_events_of_two_gigabytes(tmp_path):
    path = tmp_path / "head.json"
    with path.open("wb") as file:
        file.write(b'{"schemaVersion": 1, "x": "')
        file.truncate(2 << 30)
    line, memory = read_apart(path)
    assert line.startswith("refused") and "traceEvents" in line
    assert memory < MEMORY_BYTES


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_nesting(tmp_path, opening):
    depth = 1_000_000
    closing = "]" if opening == "[" else "}"
    deep = opening * depth + "1" + closing * depth
    path = tmp_path / "deep.json"
    path.write_text(
        '{"schemaVersion": 1, "traceEvents": ['
        + json.dumps(launch(1, 1))
        + ', {"cat": "kernel", "ts": "x", "args": '
        + deep
        + "}, "
        + json.dumps(kernel(1, 9))
        + "]}"
    )
    line, memory = read_apart(path)
    assert line.split()[0] == "read" and int(line.split()[1]) >= 2
    assert memory < MEMORY_BYTES


def test_names_that_are_paths_or_no_text(tmp_path):
    names = ["../../etc/passwd", "\x00\n\r\x1b[2J", "\ud800", "x" * 100_000, "ü€😀"]
    events = [launch(i, i) for i in range(5)]
    events += [kernel(i, 10 + i, name=name) for i, name in enumerate(names)]
    _, tables = refused_or_counted(write_trace(tmp_path / "t.json", events))
    kept = tables["gpu_activity"]["name"].to_pylist()
    assert kept[0] == "../../etc/passwd" and kept[4] == "ü€😀"
    assert max(len(name) for name in kept) == 1000
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


def test_bytes_that_are_no_utf8(tmp_path):
    text = json.dumps({"schemaVersion": 1, "traceEvents": [launch(1, 1), kernel(1, 9, name="NN")]})
    (tmp_path / "t.json").write_bytes(text.encode().replace(b"NN", b"\xff\xfe"))
    _, tables = refused_or_counted(tmp_path / "t.json")
    assert tables["gpu_activity"]["name"].to_pylist() == ["\ufffd\ufffd"]


def test_links_in_a_folder_are_not_followed(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    write_trace(tmp_path / "outside.json", [launch(1, 1), kernel(1, 9)])
    (folder / "link.json").symlink_to(tmp_path / "outside.json")
    (folder / "loop").symlink_to(folder)
    with pytest.raises(RecordingError, match="none of the known recordings"):
        read_all(folder)


def test_devices_and_missing_paths_are_refused(tmp_path):
    for path in (Path("/dev/zero"), tmp_path / "missing", tmp_path / "a\nb"):
        with pytest.raises(RecordingError):
            read_all(path)


def test_tables_with_hostile_names_and_views(tmp_path):
    path = tmp_path / "x"
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE META_DATA_EXPORT (name, value);"
        """CREATE TABLE "x""; DROP TABLE META_DATA_EXPORT; --" (a);"""
        "CREATE TABLE OSRT_API (start, end, globalTid, nameId);"
        "INSERT INTO OSRT_API VALUES (1, 2, 3, 4), (zeroblob(1000000), 2, 3, 4), (1, 2e300, 3, 4);"
        "CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n)"
        " SELECT x start, x end, 59 eventType, 'x' text FROM n;"
    )
    connection.close()
    recording, tables = refused_or_counted(path)
    assert tables["annotation"].num_rows == 1
    assert sum(problem.n_rows for problem in recording.problems) == 2


@pytest.mark.parametrize("name", SOURCES)
def test_damaged_recordings(shared_data, tmp_path, name):
    """The short form of the fuzzing; the long one is ``make fuzz``."""
    results = set()
    for seed in (*range(8), *FOUND.get(name, ())):
        make_case(shared_data / name, tmp_path / "damaged", seed)
        results.add(try_import(tmp_path / "damaged"))
    assert results <= {"read", "refused"}


_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["kernel", "cuda_runtime", "X", "cpu_op", "1.5", "gpu_memcpy"]),
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["grid", "device", "stream", "x"]), inner, max_size=3),
    ),
    max_leaves=6,
)
_EVENTS = st.lists(
    st.dictionaries(
        st.sampled_from(["ph", "cat", "name", "ts", "dur", "pid", "tid", "args"]),
        _VALUES,
        max_size=8,
    ),
    max_size=6,
)


@given(_EVENTS)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_events_of_any_shape(tmp_path, events):
    events = [launch(1, 1), *events, kernel(1, 9)]
    recording, tables = refused_or_counted(write_trace(tmp_path / "t.json", events))
    assert tables["gpu_activity"].num_rows >= 1 and tables["cuda_call"].num_rows >= 1
    counted = sum(problem.n_rows for problem in recording.problems)
    kept = sum(
        tables[name].num_rows
        for name in ("gpu_activity", "cuda_call", "annotation")
        if name in tables
    )
    assert counted + kept == len(events)


@given(st.lists(st.one_of(st.text(alphabet='{}[]",\\ a', max_size=12), st.lists(st.integers()))))
@settings(max_examples=100, deadline=None)
def test_splitting_follows_strings_and_brackets(values):
    pieces = [json.dumps({"a": value}) for value in values]
    starts, ends, end = split_exactly(" , ".join(pieces).encode())
    assert end is None
    data = " , ".join(pieces).encode()
    found = [data[a:b].decode() for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    assert found == pieces
    again, _, end = split_exactly(data + b" ] , {}")
    assert end == len(data) + 1
    assert again.tolist() == starts.tolist()
