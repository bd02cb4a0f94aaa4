"""The imported recordings against figures that others computed (``reference_numbers.jsonl``)."""

import json
from collections import Counter

import numpy as np
import pytest

from analysis.intervals import make, total
from tests.probes.recorded.tables import read_all

FILES = [
    "nsys/h100_2gpu_1s.sqlite",
    "nsys/healthy_1pct.sqlite",
    "nsys/mfu_2gpu_before.sqlite",
    "kineto/nccl_parser_config__nccl_data.json.gz",
    "kineto/trace_diff__test__test.json.gz",
    "kineto/ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "kineto/b200__eager_trace.json.gz",
    "kineto/h100__google_owlv2-large-patch14-ensemble__1016001.json.gz",
    "kineto/h100__facebook_timesformer-base-finetuned-k400__1016002.json.gz",
    "kineto/inference__vllm_decode_full__graph_execution.json.gz",
    "kineto/inference__vllm_prefilldecode_piecewise__graph_execution.json.gz",
    "kineto/num_workers_0__worker0.1623143089861.pt.trace.json.gz",
    "kineto/num_workers_4__worker0.1623212756351.pt.trace.json.gz",
    *(f"kineto/dlrm_8rank/worker{rank}_step_12" for rank in range(8)),
]


def reference_of(shared_data, name):
    for line in (shared_data / "reference_numbers.jsonl").read_text().splitlines():
        expected = json.loads(line)
        if name.rsplit("/", 1)[-1] in expected["file"]:
            return expected
    raise AssertionError(f"no reference for {name}")


def busy_share(start, duration, chosen, span_ns):
    return 100 * total(make(start[chosen], start[chosen] + duration[chosen])) / span_ns


@pytest.mark.parametrize("name", FILES)
def test_device_times_agree_with_the_reference(shared_data, name):
    path = next(shared_data.glob(name + "*"))
    expected = reference_of(shared_data, name)
    _, tables = read_all(path)
    activity = tables["gpu_activity"]
    assert activity.num_rows == expected["gpu_events"]
    column = {key: activity[key].to_numpy(zero_copy_only=False) for key in activity.column_names}
    devices = sorted(int(key[3:]) for key in expected if key.startswith("dev"))
    assert sorted(set(activity["device"].to_pylist())) == devices
    for device in devices:
        want = expected[f"dev{device}"]
        on = column["device"] == device
        start, duration = column["start_ns"][on], column["duration_ns"][on]
        kind, collective = column["kind"][on], column["is_collective"][on]
        span_ns = int((start + duration).max() - start.min())
        assert span_ns / 1e6 == pytest.approx(want["span_ms"], rel=1e-4)
        everything = np.ones(len(start), bool)
        is_compute = (kind == "kernel") & ~collective
        is_comm = (kind == "kernel") & collective
        shares = {
            "busy_pct": busy_share(start, duration, everything, span_ns),
            "compute_pct": busy_share(start, duration, is_compute, span_ns),
            "comm_pct": busy_share(start, duration, is_comm, span_ns),
            "mem_pct": busy_share(start, duration, kind != "kernel", span_ns),
        }
        if name.startswith("kineto/b200"):
            # The reference knows collectives by names that begin with nccl and counts 73 runs of
            # multimem_all_reduce_kernel as compute (docs/definitions.md).
            del shares["compute_pct"], shares["comm_pct"]
            assert collective.sum() == 74
        for key, share in shares.items():
            assert share == pytest.approx(want[key], rel=0.01, abs=0.02), key
        assert len(set(column["stream"][on])) == want["streams"]


@pytest.mark.parametrize("name", FILES)
def test_launches_are_found_by_process_and_correlation(shared_data, name):
    path = next(shared_data.glob(name + "*"))
    expected = reference_of(shared_data, name)["launch_api_of_gpu_events"]
    _, tables = read_all(path)
    calls, activity = tables["cuda_call"], tables["gpu_activity"]
    keys = zip(
        *(calls[key].to_pylist() for key in ("pid", "correlation_id", "function")), strict=True
    )
    function = {(pid, correlation): name for pid, correlation, name in keys}
    found = Counter(
        function.get(key, "<none>")
        for key in zip(
            activity["pid"].to_pylist(), activity["correlation_id"].to_pylist(), strict=True
        )
    )
    without_versions = Counter()
    for key, count in expected.items():
        without_versions[key.split("_v")[0]] += count
    assert found == without_versions
