"""Device time on tiny traces whose answers are on the same screen."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from analysis import device_time, schema


def table(declared: schema.Table, rows: list[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist(
        [{name: row.get(name) for name in declared.column_names} for row in rows],
        schema=declared.arrow_schema(),
    )


def kernel(start: int, end: int, correlation: int | None = None, **more: object) -> dict:
    return {
        "start_ns": start,
        "duration_ns": end - start,
        "device": 0,
        "pid": 1,
        "kind": "kernel",
        "name": "k",
        "stream": 7,
        "correlation_id": correlation,
    } | more


def launch(start: int, end: int, correlation: int, **more: object) -> dict:
    return {
        "start_ns": start,
        "duration_ns": end - start,
        "pid": 1,
        "tid": 11,
        "function": "cudaLaunchKernel",
        "layer": "runtime",
        "kind": "launch",
        "call_id": correlation,
        "depth": 0,
        "correlation_id": correlation,
    } | more


def one(activity: list[dict], calls: list[dict] | None = None) -> device_time.Activities:
    (found,) = device_time.by_device(
        table(schema.GPU_ACTIVITY, activity),
        None if calls is None else table(schema.CUDA_CALL, calls),
    )
    return found


def test_classes_overlap_and_busy_counts_once():
    activities = one(
        [
            kernel(0, 100),
            kernel(50, 150, name="nccl", is_collective=True, stream=8),
            kernel(200, 260, kind="copy", name="h2d", copy_kind="h2d", stream=9),
            kernel(240, 300),
        ]
    )
    assert device_time.usage(activities) == device_time.Usage(
        span_ns=300,
        busy_ns=250,
        compute_ns=160,
        copy_ns=60,
        collective_ns=100,
        exposed_collective_ns=50,
        exposed_copy_ns=40,
    )


def test_a_gap_is_a_late_launch_or_queued_or_unknown():
    activities = one(
        [kernel(0, 100, 1), kernel(150, 200, 2), kernel(210, 220, 3), kernel(300, 310, None)],
        [launch(-20, -10, 1), launch(130, 140, 2), launch(150, 155, 3)],
    )
    gaps = device_time.gaps(activities)
    assert gaps.spans.tolist() == [[100, 150], [200, 210], [220, 300]]
    assert gaps.is_late_launch.tolist() == [True, False, False]
    assert gaps.is_queued.tolist() == [False, True, False]
    assert gaps.length_ns.tolist() == [50, 10, 80]


def test_overlap_on_one_stream_makes_no_negative_gap():
    activities = one([kernel(0, 100), kernel(90, 120), kernel(95, 99), kernel(130, 140)])
    assert device_time.gaps(activities).spans.tolist() == [[120, 130]]


def test_queue_depth_and_delay():
    activities = one(
        [kernel(100, 200, 1), kernel(200, 300, 2), kernel(300, 400, 3)],
        [launch(0, 10, 1), launch(20, 30, 2), launch(250, 320, 3)],
    )
    assert device_time.queue_depth(activities).tolist() == [1, 2, 1]
    assert device_time.launch_delay_ns(activities).tolist() == [90, 170, 0]


def test_the_outermost_call_of_a_correlation_is_the_one_that_submitted():
    activities = one(
        [kernel(100, 200, 1)],
        [
            launch(5, 9, 1, function="cuLaunchKernel", layer="driver", depth=1),
            launch(2, 10, 1),
            launch(0, 50, 1, pid=2),
        ],
    )
    assert activities.call_start_ns.tolist() == [2]
    assert activities.call_end_ns.tolist() == [10]


def test_ranks_and_devices_stay_apart():
    found = device_time.by_device(
        table(
            schema.GPU_ACTIVITY,
            [
                kernel(0, 10, 1, rank=1),
                kernel(0, 20, 1, rank=0),
                kernel(0, 30, 1, rank=0, device=3),
            ],
        ),
        table(schema.CUDA_CALL, [launch(-5, -4, 1, rank=1), launch(-9, -8, 1, rank=0)]),
    )
    assert [(a.rank, a.device, a.end_ns, a.call_start_ns.tolist()) for a in found] == [
        (0, 0, 20, [-9]),
        (0, 3, 30, [-9]),
        (1, 0, 10, [-5]),
    ]


def test_no_activity_no_device():
    assert device_time.by_device(table(schema.GPU_ACTIVITY, []), None) == []


def test_a_million_activities_take_no_loop():
    n = 1_000_000
    start = np.arange(n, dtype=np.int64) * 10
    columns = dict.fromkeys(schema.GPU_ACTIVITY.column_names)
    columns |= {
        "start_ns": start,
        "duration_ns": np.full(n, 7),
        "device": np.zeros(n, dtype=np.int32),
        "kind": pa.array(["kernel"] * n),
        "correlation_id": np.arange(n),
    }
    declared = schema.GPU_ACTIVITY.arrow_schema()
    activity = pa.table(
        [
            pa.nulls(n, f.type) if columns[f.name] is None else pa.array(columns[f.name], f.type)
            for f in declared
        ],
        schema=declared,
    )
    (found,) = device_time.by_device(activity, None)
    assert device_time.usage(found).busy_ns == 7 * n
    assert len(device_time.gaps(found).spans) == n - 1
