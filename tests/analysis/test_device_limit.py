"""The device as the limit: of what was asked, and beside a queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.causes.device_work import find_compute_bound
from analysis.conclusion import rank
from analysis.facts import Facts
from analysis.finding import Finding, Status
from analysis.manifest import Source
from tests.analysis.builder import SessionBuilder
from tests.analysis.test_device_causes import US, Program

S = 1_000_000_000


@pytest.mark.parametrize(("length", "status"), [(S, Status.FOUND), (4 * S, Status.NOT_FOUND)])
def test_a_device_that_is_given_nothing_any_more_is_not_the_limit(
    tmp_path: Path, length: int, status: Status
) -> None:
    # Busy all the time from its first to its last activity; the process then hands over nothing,
    # while its engine tells of running requests.
    program = Program()
    while program.free < S:
        program.launch(100 * US)
    builder = SessionBuilder(
        tmp_path / "s", start_ns=0, end_ns=length, sources=[Source("cupti", "ok")]
    )
    pid = program.calls[0]["pid"]
    told = {"kind": "device_times", "pid": pid, "name": "cupti", "time_ns": 0, "duration_ns": S}
    sample = {"endpoint": "e", "engine": "vllm", "metric": "requests_running", "kind": "gauge"}
    times = range(0, length + 1, S // 4)
    facts = Facts(
        builder.add("gpu_activity", program.activity)
        .add("cuda_call", program.calls)
        .add("event", [told])
        .add(
            "engine_sample",
            [{**sample, "time_ns": time, "raw_name": "r", "value": 4.0} for time in times],
        )
        .write()
    )
    finding = find_compute_bound(facts)
    assert finding.status is status
    assert any("3.0 s more" in item.reason for item in finding.excluded) == (length > S)


def test_what_limits_an_overloaded_service_is_not_its_root() -> None:
    limits = ("memory_bandwidth", "device.compute_bound")
    found = [
        Finding(cause, Status.FOUND, confidence=0.88, lost_ns=4 * S)
        for cause in (*limits, "launch.cpu_delay")
    ]
    overload = Finding("queue.overload", Status.FOUND, confidence=0.6, lost_ns=S)
    ranked = [item.cause for item in rank([*found, overload])]
    assert ranked == ["launch.cpu_delay", "queue.overload", *limits]
    assert overload.symptoms == sorted(limits)
    assert [item.cause for item in rank(found)][:2] == list(limits)
