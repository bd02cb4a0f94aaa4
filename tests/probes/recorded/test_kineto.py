import gzip
import json
import shutil

import pyarrow.compute as pc
import pytest

from probes.recorded import RecordingError, open_recording
from tests.probes.recorded.tables import read_all
from tests.probes.recorded.traces import event, kernel, launch, write_trace


def reasons(recording):
    return {problem.reason: problem.n_rows for problem in recording.problems}


def test_ranks_of_a_folder_come_from_the_content(shared_data, tmp_path):
    for rank in range(8):
        source = next((shared_data / "kineto/dlrm_8rank").glob(f"worker{rank}_*"))
        shutil.copy(source, tmp_path / f"trace_{7 - rank}.bin")
    (tmp_path / "notes.txt").write_text("not a trace")
    recording, tables = read_all(tmp_path)
    facts = recording.manifest_facts()
    assert facts["sources"][0]["details"]["ranks"] == list(range(8))
    assert [gpu["index"] for gpu in facts["gpus"]] == list(range(8))
    activity = tables["gpu_activity"]
    pairs = set(zip(activity["rank"].to_pylist(), activity["device"].to_pylist(), strict=True))
    assert pairs == {(rank, rank) for rank in range(8)}
    assert len(set(activity["pid"].to_pylist())) == 8
    assert not any("MZ" in str(value) for value in facts["host"].values())


def test_equal_device_ids_of_two_ranks_are_two_gpus(tmp_path):
    for rank in (0, 1):
        write_trace(
            tmp_path / f"rank{rank}.json",
            [launch(1, 10), kernel(1, 20)],
            distributedInfo={"rank": rank},
        )
    recording, tables = read_all(tmp_path)
    assert tables["gpu_activity"]["device"].to_pylist() == [0, 1]
    assert len(recording.manifest_facts()["gpus"]) == 2


def test_ranks_with_different_bases_share_one_clock(tmp_path):
    for rank, base in ((0, 1_700_000_000_000_000_000), (1, 1_700_000_000_000_005_000)):
        write_trace(
            tmp_path / f"rank{rank}.json",
            [launch(1, 10), kernel(1, 20)],
            distributedInfo={"rank": rank},
            baseTimeNanoseconds=base,
        )
    recording, tables = read_all(tmp_path)
    assert tables["gpu_activity"]["start_ns"].to_pylist() == [20_000, 25_000]
    assert recording.manifest_facts()["start_realtime_ns"] == 1_700_000_000_000_010_000


def test_microseconds_become_exact_nanoseconds(shared_data, tmp_path):
    events = [
        launch(1, 1712195495505543.213, 41.768),
        kernel(1, "1712195495505600.001", "0.999"),
        kernel(2, 0.1 + 0.2, 1e-3),
    ]
    path = write_trace(tmp_path / "t.json", events)
    text = path.read_text().replace("1712195495505543.2", "1712195495505543.213")
    path.write_text(text)
    _, tables = read_all(path)
    assert tables["cuda_call"]["start_ns"].to_pylist() == [1712195495505543213]
    assert tables["gpu_activity"]["start_ns"].to_pylist() == [300, 1712195495505600001]
    assert tables["gpu_activity"]["duration_ns"].to_pylist() == [1, 999]


def test_steps_of_profiler_and_engine_are_steps(shared_data):
    for name, start in (
        ("kineto/inference__vllm_decode_full__graph_execution.json.gz", "execute_32_context_0("),
        ("kineto/num_workers_0__worker0.1623143089861.pt.trace.json.gz", "ProfilerStep#"),
    ):
        _, tables = read_all(shared_data / name)
        ranges = tables["annotation"]
        steps = ranges.filter(pc.equal(ranges["category"], "step"))["name"].to_pylist()
        assert steps and all(step.startswith(start) for step in steps)


def test_hip_traces_have_launches_and_graph_launches(shared_data):
    name = "kineto/inference__vllm_prefilldecode_piecewise__graph_execution.json.gz"
    _, tables = read_all(shared_data / name)
    calls = tables["cuda_call"]
    kinds = dict(zip(calls["function"].to_pylist(), calls["kind"].to_pylist(), strict=True))
    assert kinds["hipGraphLaunch"] == "graph_launch"
    assert kinds["hipModuleLaunchKernel"] == "launch"
    assert set(calls["layer"].to_pylist()) == {"runtime"}


def test_kernels_are_known_by_name_for_first_uses(tmp_path):
    events = [
        *(launch(i, 100 * i) for i in (1, 2, 3)),
        kernel(1, 110, name="gemm"),
        kernel(2, 210, name="softmax"),
        kernel(3, 310, name="gemm"),
    ]
    _, tables = read_all(write_trace(tmp_path / "t.json.gz", events))
    calls = tables["cuda_call"]
    assert calls["is_first_seen"].to_pylist() == [True, True, False]
    assert calls["is_first_use"].null_count == 3
    names = dict(
        zip(
            tables["kernel_function"]["kernel"].to_pylist(),
            tables["kernel_function"]["name"].to_pylist(),
            strict=True,
        )
    )
    assert [names[key] for key in calls["kernel"].to_pylist()] == ["gemm", "softmax", "gemm"]


def test_collectives_by_name_and_by_argument(tmp_path):
    events = [
        launch(1, 1),
        kernel(1, 10, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)"),
        kernel(2, 30, name="my_own_exchange", **{"Collective name": "allreduce"}),
        kernel(3, 50, name="elementwise_reduce_sum"),
    ]
    _, tables = read_all(write_trace(tmp_path / "t.json", events))
    assert tables["gpu_activity"]["is_collective"].to_pylist() == [True, True, False]


def test_overlaps_and_missing_launches_stay(tmp_path):
    events = [kernel(1, 100, 50), kernel(2, 120, 50), launch(9, 1)]
    _, tables = read_all(write_trace(tmp_path / "t.json", events))
    assert tables["gpu_activity"]["start_ns"].to_pylist() == [100_000, 120_000]
    assert tables["cuda_call"]["device"].to_pylist() == [None]


def test_syncs_tell_the_device_and_stream_of_their_calls(tmp_path):
    events = [
        launch(1, 10, 90, "cudaStreamSynchronize"),
        launch(2, 110, 90, "cudaDeviceSynchronize"),
        launch(3, 210, 5),
        kernel(3, 220, stream=9),
        event(
            "cuda_sync", "Stream Sync", 11, 89, args={"stream": 7, "correlation": 1, "device": 2}
        ),
        event(
            "cuda_sync", "Context Sync", 111, 89, args={"stream": -1, "correlation": 2, "device": 2}
        ),
        event(
            "cuda_sync", "Stream Sync", 211, 1, args={"stream": 5, "correlation": 3, "device": 2}
        ),
        event("cuda_sync", "Stream Sync", 211, 1, args={"stream": "x", "correlation": 4}),
    ]
    _, tables = read_all(write_trace(tmp_path / "t.json", events))
    calls = tables["cuda_call"].to_pylist()
    assert [(row["device"], row["stream"]) for row in calls] == [(2, 7), (2, None), (0, 9)]
    assert tables["gpu_activity"].num_rows == 1


def test_kernels_of_one_graph_share_its_launch_which_counts_once(tmp_path):
    events = [launch(7, 10, 5, "cudaGraphLaunch")]
    events += [kernel(7, 20 + 10 * i, 8, f"part{i}", **{"graph id": 3}) for i in range(4)]
    _, tables = read_all(write_trace(tmp_path / "t.json", events))
    [call] = tables["cuda_call"].to_pylist()
    assert (call["kind"], call["device"], call["stream"]) == ("graph_launch", 0, 7)
    assert call["kernel"] is None and call["is_first_seen"] is None
    rows = tables["gpu_activity"].to_pylist()
    assert [(row["correlation_id"], row["graph_id"]) for row in rows] == [(7, 3)] * 4
    assert {row["name"] for row in rows} == {f"part{i}" for i in range(4)}


def test_odd_events_are_counted_and_the_others_kept(tmp_path):
    events = [
        launch(1, 1),
        kernel(1, 10, name='say "},\n {" and \\'),
        kernel(2, 20, -3),
        kernel(3, None),
        kernel(4, "soon"),
        kernel(5, 1e30),
        kernel(6, 40, True),
        kernel(7, 60, name=["x"]),
        event("kernel", "no device", 80, 1, args="none"),
        event("kernel", "no args", 90, 1),
        event("cuda_runtime", "cudaFree", 95, 1, pid="Spans", tid="x"),
        {"cat": "kernel", "ph": "B", "name": "b", "ts": 5, "dur": 1},
        {"cat": 7},
        {},
        event("strange", "x", 1, 1),
    ]
    recording, tables = read_all(write_trace(tmp_path / "t.json", events))
    assert tables["gpu_activity"]["name"].to_pylist() == ['say "},\n {" and \\', "['x']"]
    assert tables["cuda_call"].num_rows == 1
    found = reasons(recording)
    assert found["event with a negative duration"] == 1
    assert found["event without a possible begin"] == 1
    assert found["event whose time is not a number"] == 1
    assert found["event with an impossible time"] == 1
    assert found["event without a possible duration"] == 1
    assert found["activity that names no GPU"] == 2
    assert found["call without process or thread"] == 1
    assert found["event that is no range (ph is not X)"] == 1
    assert found["event of category 'strange': not imported"] == 1


def test_a_cut_off_file_gives_what_is_complete(shared_data, tmp_path):
    name = "kineto/h100__facebook_timesformer-base-finetuned-k400__1016002.json.gz"
    packed = (shared_data / name).read_bytes()
    (tmp_path / "cut.gz").write_bytes(packed[: len(packed) * 95 // 100])
    (tmp_path / "cut.json").write_bytes(gzip.decompress(packed)[: len(packed) * 14])
    for cut in ("cut.gz", "cut.json"):
        recording, tables = read_all(tmp_path / cut)
        assert sum(table.num_rows for table in tables.values()) > 3000
        assert any("cut off" in reason for reason in reasons(recording))


def test_a_bare_list_of_events_and_a_header_after_them(tmp_path):
    events = [launch(1, 1), kernel(1, 10)]
    (tmp_path / "list.json").write_text(json.dumps(events))
    (tmp_path / "tail.json").write_text(
        '{"traceEvents":' + json.dumps(events) + ', "baseTimeNanoseconds": 5000000000,'
        ' "deviceProperties": [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}]}'
    )
    assert read_all(tmp_path / "list.json")[1]["gpu_activity"].num_rows == 1
    recording, tables = read_all(tmp_path / "tail.json")
    assert tables["gpu_activity"].num_rows == 1
    facts = recording.manifest_facts()
    assert facts["start_realtime_ns"] == 5_000_001_000
    assert [gpu["name"] for gpu in facts["gpus"]] == ["A", "B"]


def test_python_functions_of_small_traces_are_kept(tmp_path):
    events = [launch(1, 1), kernel(1, 10), event("python_function", "f.py(3): g", 0, 99)]
    _, tables = read_all(write_trace(tmp_path / "t.json", events))
    assert tables["annotation"]["category"].to_pylist() == ["python"]


def test_a_trace_without_usable_events_is_refused(tmp_path):
    with pytest.raises(RecordingError, match="no event that can be imported"):
        read_all(write_trace(tmp_path / "t.json", []))


def test_the_format_is_recognised_by_content_and_can_be_insisted_on(shared_data, tmp_path):
    source = next((shared_data / "kineto/dlrm_8rank").glob("worker0*"))
    shutil.copy(source, tmp_path / "trace.sqlite")
    assert open_recording(tmp_path / "trace.sqlite").format == "kineto"
    with pytest.raises(RecordingError, match="not of nsys"):
        open_recording(tmp_path / "trace.sqlite", "nsys")
    with pytest.raises(RecordingError, match="choose one of"):
        open_recording(tmp_path / "trace.sqlite", "perfetto")
