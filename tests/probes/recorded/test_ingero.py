import sqlite3

import numpy as np
import pyarrow.compute as pc
import pytest

from probes.recorded import RecordingError, open_recording
from tests.probes.recorded.tables import read_all

VLLM = "ingero/vllm-37343-logprobs-amplification.db"
PYTORCH = "ingero/pytorch-173382-empty-cache.db"
NODE = "ingero/sample-gpu-node-01.db"


@pytest.fixture(scope="module")
def vllm(shared_data):
    return read_all(shared_data / VLLM)


@pytest.fixture(scope="module")
def pytorch(shared_data):
    return read_all(shared_data / PYTORCH)


def nearest_rank(values, percent):
    ordered = np.sort(values)
    return int(ordered[max(0, int(np.ceil(percent / 100 * len(ordered))) - 1)])


def test_launches_of_the_first_ten_seconds(vllm):
    recording, tables = vllm
    calls = tables["cuda_call"].filter(
        pc.and_(
            pc.equal(tables["cuda_call"]["function"], "cudaLaunchKernel"),
            pc.less(
                tables["cuda_call"]["start_ns"],
                recording.manifest_facts()["start_ns"] + 10_000_000_000,
            ),
        )
    )
    durations = calls["duration_ns"].to_numpy()
    assert len(durations) == 357
    assert nearest_rank(durations, 50) == 16_700
    assert nearest_rank(durations, 99) == 13_092_663


def test_first_sight_of_each_kernel_is_marked_and_first_use_is_not_claimed(vllm):
    _, tables = vllm
    calls = tables["cuda_call"]
    launches = calls.filter(pc.equal(calls["function"], "cudaLaunchKernel"))
    first = launches.filter(launches["is_first_seen"])["duration_ns"].to_numpy()
    again = launches.filter(pc.invert(launches["is_first_seen"]))["duration_ns"].to_numpy()
    assert (len(first), int(first.max())) == (57, 70_847_581)
    assert (len(again), round(int(again.max()), -3)) == (493, 3_005_000)
    assert calls["is_first_use"].null_count == calls.num_rows


def test_off_cpu_intervals_end_at_the_stamp(vllm):
    _, tables = vllm
    offcpu = tables["offcpu"]
    ends = pc.add(offcpu["start_ns"], offcpu["duration_ns"])
    assert pc.max(ends).as_py() == 1774099524001529562
    assert offcpu["state"].null_count == offcpu.num_rows
    until = 1774099499203081639
    engine = offcpu.filter(pc.and_(pc.equal(offcpu["pid"], 72801), pc.less_equal(ends, until)))
    assert engine.num_rows == 311
    assert pc.sum(engine["duration_ns"]).as_py() == pytest.approx(15_600_000, rel=0.01)


def test_driver_calls_are_nested_in_the_runtime_call_around_them(vllm):
    _, tables = vllm
    calls = tables["cuda_call"]
    inner = calls.filter(
        pc.and_(pc.equal(calls["function"], "cuCtxSynchronize"), pc.equal(calls["depth"], 1))
    )
    assert inner.num_rows == 10
    by_id = dict(zip(calls["call_id"].to_pylist(), calls["function"].to_pylist(), strict=True))
    outer = {by_id[parent] for parent in inner["parent_call_id"].to_pylist()}
    assert outer == {"cudaDeviceSynchronize"}


def test_thinning_is_said_with_its_begin(vllm, pytorch):
    for recording, _ in (vllm, pytorch):
        source = recording.manifest_facts()["sources"][0]
        assert source["details"]["is_thinned"] is True
        assert source["state"] == "degraded"
        since = source["details"]["thinned_from_ns"] - recording.manifest_facts()["start_ns"]
        assert 9.9e9 < since < 10.2e9


def test_rows_that_the_recorder_dropped_are_losses(pytorch):
    _, tables = pytorch
    loss = tables["loss"]
    launches = loss.filter(pc.equal(loss["function"], "cudaLaunchKernel"))
    assert sorted(launches["n_lost"].to_pylist()) == [1004, 30061]


def test_copies_sizes_and_memory(pytorch):
    _, tables = pytorch
    calls = tables["cuda_call"]
    copies = calls.filter(pc.equal(calls["function"], "cudaMemcpyAsync"))
    assert set(copies["copy_kind"].to_pylist()) <= {"h2d", "d2h", "d2d"}
    assert pc.max(copies["size_bytes"]).as_py() == 272_269_312
    freed = calls.filter(pc.equal(calls["function"], "cudaFree"))
    assert freed.num_rows == 40 and freed["size_bytes"].null_count == 40
    assert freed["kernel"].null_count == 40


def test_threads_are_told_from_processes(vllm):
    _, tables = vllm
    forks = tables["event"].filter(pc.equal(tables["event"]["kind"], "fork"))
    assert sorted(forks["pid"].to_pylist()) == list(range(73180, 73186))
    assert set(forks["parent_pid"].to_pylist()) == {72801}
    other = tables["event"].filter(pc.equal(tables["event"]["kind"], "other"))
    assert other["tid"].to_pylist() == [73173] and other["name"].to_pylist() == ["thread_start"]


def test_stacks_are_kept_innermost_frame_first(pytorch):
    _, tables = pytorch
    stacks = tables["annotation"].filter(pc.equal(tables["annotation"]["category"], "stack"))
    assert stacks.num_rows > 3000
    assert any(" < " in name and ".py:" in name for name in stacks["name"].to_pylist())
    assert not any("/home/" in name for name in stacks["name"].to_pylist())


def test_newer_schema_with_text_ids(shared_data):
    recording, tables = read_all(shared_data / NODE)
    facts = recording.manifest_facts()
    assert facts["host"]["name"] == "gpu-node-01"
    assert facts["gpus"] == [{"index": 0, "name": "Tesla T4", "memory_bytes": 15360 * 2**20}]
    assert facts["sources"][0]["details"]["is_thinned"] is False
    assert tables["offcpu"].num_rows == 99
    reads = pc.sum(pc.equal(tables["annotation"]["name"], "block_read")).as_py()
    assert reads == 98


def small_recording(path, rows, with_fork=False):
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE events (id INTEGER PRIMARY KEY, timestamp, pid, tid, source, op, duration,"
        " gpu_id, arg0, arg1, ret_code);"
        "CREATE TABLE ops (source_id, op_id, name);"
        "INSERT INTO ops VALUES (1, 3, 'cudaLaunchKernel'), (3, 7, 'process_fork');"
    )
    if with_fork:
        connection.execute("INSERT INTO events VALUES (NULL, 1000, 1, 1, 3, 7, 0, 0, 0, 20, 0)")
    connection.executemany("INSERT INTO events VALUES (NULL,?,?,?,?,?,?,?,?,?,?)", rows)
    connection.commit()
    connection.close()


def test_first_use_is_known_where_the_process_was_seen_to_start(tmp_path):
    rows = [(2000 + i, 20, 20, 1, 3, 10, 0, kernel, 0, 0) for i, kernel in enumerate((5, 5, 6))]
    rows += [(3000, 30, 30, 1, 3, 10, 0, 5, 0, 0)]
    small_recording(tmp_path / "r", rows, with_fork=True)
    _, tables = read_all(tmp_path / "r")
    calls = tables["cuda_call"]
    assert calls["is_first_use"].to_pylist() == [True, False, True, None]
    assert calls["is_first_seen"].to_pylist() == [True, False, True, True]


def test_rows_of_wrong_types_and_times_are_counted(tmp_path):
    good = (5000, 20, 20, 1, 3, 10, 0, 5, 0, 0)
    rows = [
        good,
        ("x" * 100, 20, 20, 1, 3, 10, 0, 5, 0, 0),
        (5000, 20, 20, 1, 3, -7, 0, 5, 0, 0),
        (5000, 2**40, 20, 1, 3, 10, 0, 5, 0, 0),
        (-5, 20, 20, 1, 3, 10, 0, 5, 0, 0),
        (5000, 20, 20, 9, 9, 10, 0, 5, 0, 0),
        (float("inf"), None, b"", 1, 3, 10, 0, 5, 0, 0),
    ]
    small_recording(tmp_path / "r", rows)
    recording, tables = read_all(tmp_path / "r")
    assert tables["cuda_call"].num_rows == 1
    assert sum(problem.n_rows for problem in recording.problems) == len(rows) - 1


def test_a_database_of_something_else_is_refused_by_name(tmp_path):
    connection = sqlite3.connect(tmp_path / "r")
    connection.execute("CREATE TABLE events (x)")
    connection.close()
    with pytest.raises(RecordingError, match="none of the known recordings"):
        open_recording(tmp_path / "r")


def test_a_view_in_place_of_a_table_is_not_read(tmp_path):
    connection = sqlite3.connect(tmp_path / "r")
    connection.executescript(
        "CREATE VIEW events AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
        " SELECT x timestamp, x pid, x source, x op, x duration FROM n;"
        "CREATE TABLE ops (source_id, op_id, name);"
    )
    connection.close()
    with pytest.raises(RecordingError, match="none of the known recordings"):
        open_recording(tmp_path / "r")


def test_a_truncated_database_ends_in_one_sentence(shared_data, tmp_path):
    whole = (shared_data / VLLM).read_bytes()
    for n_bytes in (16, 100, 5000, len(whole) // 2, len(whole) - 4096):
        path = tmp_path / f"cut{n_bytes}"
        path.write_bytes(whole[:n_bytes])
        try:
            read_all(path)
        except RecordingError as error:
            assert str(path) in str(error) and "\n" not in str(error)


def test_rows_of_foreign_integers_do_not_overflow(tmp_path):
    rows = [(2**62 - 1, 20, 20, 1, 3, 2**57, 0, -1, 2**63 - 1, -(2**63))]
    small_recording(tmp_path / "r", rows)
    _, tables = read_all(tmp_path / "r")
    call = tables["cuda_call"].to_pylist()[0]
    assert call["return_code"] is None and call["kernel"] == 2**64 - 1
