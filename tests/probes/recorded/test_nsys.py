import sqlite3

import pyarrow.compute as pc
import pytest

from probes.recorded import RecordingError
from tests.probes.recorded.tables import read_all


def export(path, script):
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE META_DATA_EXPORT (name, value);"
        "INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '2.9.1');"
        "CREATE TABLE StringIds (id, value);"
        "INSERT INTO StringIds VALUES (1, 'cudaLaunchKernel_v7000'), (2, 'gemm'), (3, 'poll');"
        + script
    )
    connection.close()
    return path


def task(pid, tid):
    return 1 << 48 | pid << 24 | tid


def test_equal_correlations_of_two_processes_are_not_mixed(tmp_path):
    path = export(
        tmp_path / "x",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId,"
        " globalPid, shortName);"
        f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (10, 12, {task(5, 6)}, 1, 1),"
        f" (11, 13, {task(7, 8)}, 1, 1);"
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (20, 30, 1, 7, 1, {task(7, 0)}, 2);",
    )
    _, tables = read_all(path)
    calls = tables["cuda_call"]
    assert calls["function"].to_pylist() == ["cudaLaunchKernel"] * 2
    assert calls["pid"].to_pylist() == [5, 7] and calls["tid"].to_pylist() == [6, 8]
    assert calls["device"].to_pylist() == [None, 1]
    assert tables["gpu_activity"]["name"].to_pylist() == ["gemm"]


def test_scheduling_becomes_off_cpu_intervals(tmp_path):
    rows = [(10, 0, 2), (15, 1, 3), (20, 1, 3), (30, 0, 3), (34, 1, 3), (50, 0, 1)]
    values = ",".join(f"({time}, {cpu}, {is_in}, {task(5, 6)})" for time, is_in, cpu in rows)
    path = export(
        tmp_path / "x",
        "CREATE TABLE SCHED_EVENTS (start, cpu, isSchedIn, globalTid);"
        f"INSERT INTO SCHED_EVENTS VALUES {values}, (1, 1, 1, {task(5, 7)});",
    )
    _, tables = read_all(path)
    offcpu = tables["offcpu"].to_pylist()
    found = [
        (row["start_ns"], row["duration_ns"], row["cpu_from"], row["cpu_to"]) for row in offcpu
    ]
    assert found == [(10, 5, 2, 3), (30, 4, 3, 3)]
    assert {(row["pid"], row["tid"], row["state"]) for row in offcpu} == {(5, 6, None)}


def test_the_state_of_a_thread_that_leaves_the_cpu_is_told_where_the_export_explains_it(tmp_path):
    rows = [(10, 0, 2), (15, 1, 9), (20, 0, 1), (30, 1, 9), (40, 0, 3), (44, 1, 9), (50, 0, 77)]
    rows += [(51, 1, 9), (60, 0, "NULL"), (61, 1, 9)]
    values = ",".join(f"({time}, 0, {is_in}, {task(5, 6)}, {state})" for time, is_in, state in rows)
    path = export(
        tmp_path / "x",
        "CREATE TABLE SCHED_EVENTS (start, cpu, isSchedIn, globalTid, threadState);"
        f"INSERT INTO SCHED_EVENTS VALUES {values};"
        "CREATE TABLE ENUM_SAMPLING_THREAD_STATE (id, name, label);"
        "INSERT INTO ENUM_SAMPLING_THREAD_STATE VALUES (1, 'Running', ''),"
        " (2, 'Interruptible', ''), (3, 'Uninterruptible', ''), (77, 'Sideways', ''),"
        " (NULL, 3, 4);",
    )
    _, tables = read_all(path)
    states = tables["offcpu"]["state"].to_pylist()
    assert states == ["sleeping", "running", "uninterruptible", None, None]


def test_syncs_tell_the_device_and_stream_of_their_calls(tmp_path):
    path = export(
        tmp_path / "x",
        "INSERT INTO StringIds VALUES (8, 'cudaStreamSynchronize_v3020'),"
        " (9, 'cudaDeviceSynchronize_v3020');"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId);"
        f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (10, 40, {task(5, 6)}, 1, 8),"
        f" (50, 80, {task(5, 6)}, 2, 9), (90, 95, {task(5, 6)}, 3, 1),"
        f" (90, 95, {task(7, 7)}, 1, 8);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start, end, deviceId, streamId,"
        " correlationId, globalPid, syncType);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES"
        f" (11, 39, 3, 7, 1, {task(5, 0)}, 3),"
        f" (51, 79, 3, 4294967295, 2, {task(5, 0)}, 4), (51, 'x', 3, 1, 3, {task(5, 0)}, 4),"
        f" (51, 79, -2, 1, 3, {task(5, 0)}, 4);",
    )
    recording, tables = read_all(path)
    calls = {(row["pid"], row["start_ns"]): row for row in tables["cuda_call"].to_pylist()}
    places = {key: (row["kind"], row["device"], row["stream"]) for key, row in calls.items()}
    assert places == {
        (5, 10): ("sync", 3, 7),
        (5, 50): ("sync", 3, None),
        (5, 90): ("launch", None, None),
        (7, 90): ("sync", None, None),
    }
    assert [gpu["index"] for gpu in recording.manifest_facts()["gpus"]] == [0, 1, 2, 3]
    assert "gpu_activity" not in tables and "annotation" not in tables


def test_graphs_operating_system_calls_and_pageable_copies(tmp_path):
    path = export(
        tmp_path / "x",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end, deviceId, streamId, graphId,"
        " correlationId, globalPid);"
        f"INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1, 9, 0, 7, 4, 3, {task(5, 0)});"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, end, deviceId, streamId, bytes, copyKind,"
        " srcKind, dstKind);"
        "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (11, 12, 0, 7, 64, 1, 0, 2),"
        " (13, 12, 0, 7, 64, 1, 0, 2), ('x', 12, 0, 7, 64, 1, 0, 2);"
        "CREATE TABLE OSRT_API (start, end, globalTid, nameId);"
        f"INSERT INTO OSRT_API VALUES (2, 5, {task(5, 6)}, 3);"
        "CREATE TABLE NVTX_EVENTS (start, end, eventType, text, globalTid);"
        f"INSERT INTO NVTX_EVENTS VALUES (1, 4, 59, 'ProfilerStep#3', {task(5, 6)}),"
        f" (1, 4, 59, 'aten::add, seq = 4, op_id = 7', {task(5, 6)}),"
        f" (1, NULL, 34, 'a mark', {task(5, 6)});",
    )
    recording, tables = read_all(path)
    graph, copy = tables["gpu_activity"].to_pylist()
    assert (graph["kind"], graph["graph_id"]) == ("graph", 4)
    assert (copy["copy_kind"], copy["is_pageable"], copy["size_bytes"]) == ("h2d", True, 64)
    ranges = {(row["category"], row["name"]) for row in tables["annotation"].to_pylist()}
    assert ranges == {("step", "ProfilerStep#3"), ("operator", "aten::add"), ("os", "poll")}
    counted = {problem.reason: problem.n_rows for problem in recording.problems}
    assert counted == {
        "row of CUPTI_ACTIVITY_KIND_MEMCPY that ends before it begins": 1,
        "row of CUPTI_ACTIVITY_KIND_MEMCPY without begin or end": 1,
    }


def test_environment_and_outputs_are_not_read(shared_data):
    recording, tables = read_all(shared_data / "nsys/h100_2gpu_1s.sqlite")
    everything = str(recording.manifest_facts()) + "".join(
        str(table[name].unique().to_pylist())
        for table in tables.values()
        for name in table.column_names
        if str(table.schema.field(name).type) == "string"
    )
    for secret in ("CpuSpeedMhz", "nsys-config", "quadd_session"):
        assert secret not in everything
    assert recording.manifest_facts()["targets"] == [
        {"pid": 111, "name": "python3"},
        {"pid": 112, "name": "python3"},
    ]


def test_two_devices_and_their_host_transfers(shared_data):
    _, tables = read_all(shared_data / "nsys/h100_2gpu_1s.sqlite")
    activity = tables["gpu_activity"]
    for device in (0, 1):
        copies = activity.filter(
            pc.and_(pc.equal(activity["device"], device), pc.equal(activity["copy_kind"], "h2d"))
        )
        assert pc.sum(copies["size_bytes"]).as_py() / 1e9 == pytest.approx(25.5, rel=0.02)
        pageable = copies.filter(copies["is_pageable"])["size_bytes"]
        assert (pc.sum(pageable).as_py() or 0) < 1_000_000


def test_an_export_without_rows_is_refused(tmp_path):
    path = export(tmp_path / "x", "CREATE TABLE OSRT_API (start, end, globalTid, nameId);")
    with pytest.raises(RecordingError, match="no row that can be imported"):
        read_all(path)
