"""Clocks, memory, drafts, adapters and faults of the device, each beside its look-alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis import attribute
from analysis.attribution import Attribution
from analysis.finding import Status
from analysis.manifest import Gpu
from tests.analysis.builder import MS, S, Service
from tests.analysis.scrapes import Scrapes, finding, gpu_rows

THERMAL, POWER_CAP = 0x20, 0x4


def clocked(
    path: Path, slower: float, low_mhz: int, reasons: int, *, from_begin: bool = False
) -> Attribution:
    """Decodes that take so many times as long in the second half (or all along)."""
    service = Service(seed=2, has_nvml=False, running=4)
    half = service.start + 10 * S
    service.decode_until(half, slower if from_begin else 1.0)
    service.decode_until(half + 10 * S, slower)
    rows: list[dict[str, Any]] = gpu_rows(service.start, 20, util_pct=92.0, sm_clock_max_mhz=1_980)
    for row in rows:
        is_low = from_begin or row["time_ns"] > half
        row["sm_clock_mhz"] = low_mhz if is_low else 1_900
        row["clock_reasons"] = reasons if is_low else 0
    builder = service.builder(path / "session", gpus=[Gpu(0, "GPU", sm_clock_max_mhz=1_980)])
    return attribute(builder.add("gpu_sample", rows).write())


def test_lowered_clocks_with_longer_steps_are_throttling(tmp_path: Path) -> None:
    attribution = clocked(tmp_path, 2.0, 950, THERMAL)
    throttle = finding(attribution, "power.throttle")
    assert throttle.status is Status.FOUND
    assert attribution.verdict.cause == "power.throttle"
    assert throttle.lost_share == pytest.approx(0.25, abs=0.06)
    assert "thermal" in throttle.summary


@pytest.mark.parametrize(
    ("slower", "low_mhz", "reasons"),
    [(1.0, 1_880, POWER_CAP), (1.0, 950, POWER_CAP), (2.0, 1_900, 0)],
    ids=["a flag alone", "a lower clock that limits nothing", "longer steps alone"],
)
def test_what_is_not_throttling(tmp_path: Path, slower: float, low_mhz: int, reasons: int) -> None:
    attribution = clocked(tmp_path, slower, low_mhz, reasons)
    assert finding(attribution, "power.throttle").status is Status.NOT_FOUND


def test_a_device_throttled_all_along_is_not_called_healthy(tmp_path: Path) -> None:
    attribution = clocked(tmp_path, 2.0, 800, THERMAL, from_begin=True)
    assert finding(attribution, "power.throttle").status is Status.UNDECIDED
    assert attribution.verdict.cause == "unknown"
    assert attribution.verdict.candidates[0] == "power.throttle"


def told_by_tokens(path: Path, factor: float, **after: float) -> Attribution:
    """Half a minute at 2,100 MHz, then at 1,050 with the power-cap bit; only the engine tells how
    long work takes: so many times as long, at the load of before or another.
    """
    load = {"requests_running": 4, "prompt_tokens": 200, "kv_usage": 0.3, "preemptions": 0}
    engine = Scrapes().play(30, **load, generation_tokens=160)
    engine.play(30, **(load | after), generation_tokens=160 / factor)
    rows = gpu_rows(engine.start, 60, util_pct=97.0, sm_clock_max_mhz=2_100)
    for index, row in enumerate(rows):
        row["sm_clock_mhz"] = 2_100 if index < 30 else 1_050
        row["clock_reasons"] = 0 if index < 30 else POWER_CAP
    builder = engine.builder(path / "session", gpus=[Gpu(0, "GPU")])
    return attribute(builder.add("gpu_sample", rows).write())


def test_tokens_that_follow_the_clock_at_like_load_are_throttled(tmp_path: Path) -> None:
    attribution = told_by_tokens(tmp_path, 2.0)
    throttle = finding(attribution, "power.throttle")
    assert throttle.status is Status.FOUND
    assert throttle.lost_share == pytest.approx(0.25, abs=0.03)
    assert "token" in throttle.summary
    assert attribution.verdict.cause == "power.throttle"


@pytest.mark.parametrize(
    ("factor", "after", "status"),
    [
        (1.0, {}, Status.NOT_FOUND),
        (2.0, {"requests_running": 12}, Status.UNDECIDED),
        (2.0, {"prompt_tokens": 900}, Status.UNDECIDED),
        (2.0, {"kv_usage": 0.9}, Status.UNDECIDED),
        (2.0, {"preemptions": 3}, Status.UNDECIDED),
        (2.0, {"prompt_tokens": 100}, Status.FOUND),
    ],
    ids=["as fast", "more running", "more prompts", "longer", "preempted", "fewer prompts"],
)
def test_tokens_tell_of_the_clock_only_at_like_load(
    tmp_path: Path, factor: float, after: dict[str, float], status: Status
) -> None:
    attribution = told_by_tokens(tmp_path, factor, **after)
    assert finding(attribution, "power.throttle").status is status


def loaded(path: Path, n_waiting: int = 3, n_running: int = 4, **columns: Any) -> Attribution:
    engine = Scrapes().play(
        20, requests_running=n_running, requests_waiting=n_waiting, generation_tokens=300
    )
    builder = engine.builder(path / "session", gpus=[Gpu(0, "GPU")])
    return attribute(builder.add("gpu_sample", gpu_rows(engine.start, 20, **columns)).write())


@pytest.mark.parametrize(
    ("dram", "sm", "status"),
    [(91.0, 35.0, Status.FOUND), (70.0, 35.0, Status.UNDECIDED), (40.0, 90.0, Status.NOT_FOUND)],
)
def test_memory_bandwidth(tmp_path: Path, dram: float, sm: float, status: Status) -> None:
    attribution = loaded(
        tmp_path, util_pct=98.0, dram_active_pct=dram, sm_active_pct=sm, tensor_active_pct=sm / 4
    )
    answer = finding(attribution, "memory_bandwidth")
    assert answer.status is (Status.UNDECIDED if status is Status.UNDECIDED else status)


@pytest.mark.parametrize(
    ("n_running", "util", "dram"),
    [(1, 91.0, 91.0), (1, 98.0, 75.0), (6, 98.0, 91.0)],
    ids=["time left", "memory below its limit", "a batch that gets what it asks"],
)
def test_a_device_that_gives_what_is_asked_is_healthy_whatever_its_limit(
    tmp_path: Path, n_running: int, util: float, dram: float
) -> None:
    columns = {"util_pct": util, "dram_active_pct": dram, "sm_active_pct": 35.0}
    attribution = loaded(tmp_path, n_waiting=0, n_running=n_running, **columns)
    assert finding(attribution, "memory_bandwidth").status is Status.NOT_FOUND
    assert attribution.verdict.cause == "healthy"


def test_a_memory_that_one_request_saturates_is_the_limit_also_where_nobody_waits(
    tmp_path: Path,
) -> None:
    columns = {"util_pct": 98.0, "dram_active_pct": 91.0, "sm_active_pct": 35.0}
    attribution = loaded(tmp_path, n_waiting=0, n_running=1, **columns)
    answer = finding(attribution, "memory_bandwidth")
    assert answer.status is Status.FOUND
    assert answer.lost_ns == 0
    queued = loaded(tmp_path / "queue", n_waiting=3, n_running=1, **columns)
    assert answer.confidence < finding(queued, "memory_bandwidth").confidence
    assert "No request waited" in attribution.verdict.text


def capped(path: Path, faster: float, drawn: float = 1.17, **after: float) -> Attribution:
    """A power limit of 210 W that is reached, then one of 330: what the tokens make of it."""
    load = {"requests_running": 1, "prompt_tokens": 0}
    engine = Scrapes().play(30, **load, generation_tokens=23.0)
    engine.play(30, **(load | after), generation_tokens=23.0 * faster)
    rows = gpu_rows(engine.start, 60, util_pct=99.0)
    for index, row in enumerate(rows):
        row["power_limit_mw"] = 210_000 if index < 30 else 330_000
        row["power_mw"] = 205_000 if index < 30 else int(205_000 * drawn)
    builder = engine.builder(path / "session", gpus=[Gpu(0, "GPU")])
    return attribute(builder.add("gpu_sample", rows).write())


def test_tokens_that_more_power_does_not_move_are_suspected_of_the_memory(tmp_path: Path) -> None:
    attribution = capped(tmp_path, 1.01)
    answer = finding(attribution, "memory_bandwidth")
    assert answer.status is Status.UNDECIDED
    assert attribution.verdict.candidates == ("memory_bandwidth",)
    assert "DRAM" in answer.settled_by


@pytest.mark.parametrize(
    ("faster", "drawn", "after", "status"),
    [
        (1.12, 1.17, {}, Status.NOT_FOUND),
        (1.01, 1.02, {}, Status.NOT_APPLICABLE),
        (1.01, 1.17, {"requests_running": 2}, Status.NOT_APPLICABLE),
    ],
    ids=["tokens follow", "no more power", "another load"],
)
def test_power_that_says_nothing_of_the_memory(
    tmp_path: Path, faster: float, drawn: float, after: dict[str, float], status: Status
) -> None:
    attribution = capped(tmp_path, faster, drawn, **after)
    assert finding(attribution, "memory_bandwidth").status is status


def test_tokens_that_slow_down_with_their_context_wait_for_memory(tmp_path: Path) -> None:
    engine = Scrapes()
    for step in range(20):
        gap = 0.014 + 0.001 * step
        engine.play(1, requests_running=1, requests_waiting=0, inter_token_seconds=(gap, 1 / gap))
    rows = gpu_rows(engine.start, 20, util_pct=98.0, dram_active_pct=91.0, sm_active_pct=35.0)
    builder = engine.builder(tmp_path / "session", gpus=[Gpu(0, "GPU")])
    attribution = attribute(builder.add("gpu_sample", rows).write())
    assert finding(attribution, "memory_bandwidth").status is Status.FOUND


@pytest.mark.parametrize(
    ("accepted", "util", "status"),
    [
        (30.0, 98.0, Status.FOUND),
        (2_600.0, 98.0, Status.NOT_FOUND),
        (30.0, 40.0, Status.NOT_FOUND),
        (700.0, 98.0, Status.UNDECIDED),
    ],
    ids=["rejected", "accepted", "room on the device", "in between"],
)
def test_speculation(tmp_path: Path, accepted: float, util: float, status: Status) -> None:
    engine = Scrapes().play(
        20,
        requests_running=8,
        requests_waiting=0,
        generation_tokens=500,
        drafted_tokens=4_000,
        accepted_tokens=accepted,
    )
    builder = engine.builder(tmp_path / "session", gpus=[Gpu(0, "GPU")])
    rows = gpu_rows(engine.start, 20, util_pct=util)
    attribution = attribute(builder.add("gpu_sample", rows).write())
    assert finding(attribution, "speculation.loss").status is status


def adapted(path: Path, size: int) -> Attribution:
    service = Service(seed=4)
    engine = Scrapes().play(5, adapters_running=8, adapters_waiting=0)
    service.decode_until(service.start + 5 * S)
    engine.play(20, adapters_running=8, adapters_waiting=6)
    while service.now < service.start + 25 * S:
        if size:
            service.call("cudaMemcpyAsync", "copy", 9 * MS, copy_kind="h2d", size_bytes=size)
        service.decode_step()
    return attribute(service.builder(path / "session").add("engine_sample", engine.rows).write())


def test_adapters_copied_at_every_batch_are_thrashed(tmp_path: Path) -> None:
    assert finding(adapted(tmp_path, 200 << 20), "adapter.thrash").status is Status.FOUND


def test_waiting_for_adapters_without_copies_is_something_else(tmp_path: Path) -> None:
    assert finding(adapted(tmp_path, 0), "adapter.thrash").status is Status.NOT_FOUND


def faulty(path: Path, xid: int, *, stops: bool, **event: str) -> Attribution:
    service = Service(seed=5, has_engine=False)
    service.decode_until(service.start + 6 * S)
    event = {
        "time_ns": service.now,
        "kind": "xid",
        "pid": service.pid,
        "name": f"xid {xid}",
        "detail": f"Xid {xid} on GPU 0, told by NVML",
        **event,
    }
    end = service.now + 10 * S
    if not stops:
        service.decode_until(end)
    return attribute(service.builder(path / "session", end).add("event", [event]).write())


def test_nothing_after_a_hardware_fault_is_its_doing(tmp_path: Path) -> None:
    attribution = faulty(tmp_path, 79, stops=True)
    assert attribution.verdict.cause == "hang.hardware"


LOST = "GPU 0 cannot be sampled: nvmlDeviceGetUtilizationRates says: GPU is lost."


@pytest.mark.parametrize(
    ("detail", "stops", "is_found"),
    [
        (LOST, True, True),
        (LOST.replace("is lost", "requires restart"), True, True),
        (LOST, False, False),
        ("GPU 0 cannot be sampled: nvmlDeviceGetName has not returned for 2.0 s.", True, False),
        ("GPU 0 cannot be sampled: the sampler of NVML ended (exit code -9).", True, False),
    ],
)
def test_a_gpu_that_the_driver_calls_lost_is_a_fault_without_an_xid(
    tmp_path: Path, detail: str, stops: bool, is_found: bool
) -> None:
    event = {"kind": "source_lost", "name": "nvml gpu 0", "detail": detail}
    found = finding(faulty(tmp_path, 0, stops=stops, **event), "hang.hardware")
    assert (found.status is Status.FOUND) is is_found
    assert found.status in (Status.FOUND, Status.NOT_FOUND)


@pytest.mark.parametrize(("xid", "stops"), [(31, True), (79, False)])
def test_faults_that_stop_nothing_or_are_the_programs(
    tmp_path: Path, xid: int, stops: bool
) -> None:
    attribution = faulty(tmp_path, xid, stops=stops)
    assert finding(attribution, "hang.hardware").status is Status.NOT_FOUND


def test_utilisation_without_an_active_unit_is_suspect(tmp_path: Path) -> None:
    service = Service(seed=6, has_nvml=False)
    service.decode_until(service.start + 20 * S)
    rows = gpu_rows(service.start, 20, util_pct=100.0, sm_active_pct=0.0)
    attribution = attribute(service.builder(tmp_path / "s").add("gpu_sample", rows).write())
    assert finding(attribution, "telemetry.suspect").status is Status.FOUND


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_page_that_stands_still_while_steps_go_on(tmp_path: Path, is_frozen: bool) -> None:
    service = Service(seed=7, has_engine=False)
    service.decode_until(service.start + 30 * S)
    engine = Scrapes()
    level = {"requests_running": 4, "requests_waiting": 0}
    engine.play(10, **level, generation_tokens=400, iteration_tokens=(4, 100))
    rate = 0 if is_frozen else 1
    engine.play(20, **level, generation_tokens=400 * rate, iteration_tokens=(4, 100 * rate))
    builder = service.builder(tmp_path / "session").add("engine_sample", engine.rows)
    answer = finding(attribute(builder.write()), "telemetry.suspect")
    assert answer.status is (Status.FOUND if is_frozen else Status.NOT_FOUND)


def copying(path: Path, size: int, copy_ns: int, kind: str = "h2d_pageable") -> Attribution:
    """Training steps with a batch that is copied in before each, by a call that waits for it."""
    service = Service(seed=8, has_engine=False, has_nvml=False)
    while service.now < service.start + 15 * S:
        if size:
            service.call("cudaMemcpyAsync", "copy", copy_ns, copy_kind=kind, size_bytes=size)
        service.decode_step()
    util = 100 * 8 / (9 + copy_ns / MS * bool(size))
    rows = gpu_rows(service.start, 15, util_pct=util, pcie_link_gen=4, pcie_link_width=16)
    return attribute(service.builder(path / "session").add("gpu_sample", rows).write())


@pytest.mark.parametrize(
    ("size", "copy_ns", "status"),
    [
        (500_000_000, 20 * MS, Status.FOUND),
        (20_000_000, 20 * MS, Status.NOT_FOUND),
        (0, 0, Status.NOT_FOUND),
    ],
    ids=["at the link's rate", "slow for another reason", "no copies"],
)
def test_copies_over_the_host_link(tmp_path: Path, size: int, copy_ns: int, status: Status) -> None:
    assert finding(copying(tmp_path, size, copy_ns), "transfer.host_link").status is status


@pytest.mark.parametrize("copy_ms", [12, 20])
@pytest.mark.parametrize(
    ("kind", "status"),
    [("h2d_pageable", Status.FOUND), ("h2d", Status.UNDECIDED)],
    ids=["pageable", "pinned"],
)
def test_pageable_copies_below_the_links_rate_hold_their_caller(
    tmp_path: Path, copy_ms: int, kind: str, status: Status
) -> None:
    attribution = copying(tmp_path, 8_000_000 * copy_ms, copy_ms * MS, kind)
    assert finding(attribution, "transfer.host_link").status is status


def test_the_time_before_a_neighbour_came_is_time_alone(tmp_path: Path) -> None:
    service = Service(seed=9, has_engine=False, has_nvml=False)
    half = service.start + 10 * S
    service.decode_until(half)
    service.decode_until(half + 10 * S, slower=2.0)
    listed = [
        {
            "time_ns": service.start + index * S,
            "device": 0,
            "pid": pid,
            "type": "C",
            "name": name,
            "is_target": pid == service.pid,
            "sm_util_pct": share,
        }
        for index in range(1, 21)
        for pid, name, share in ((service.pid, "engine", None), (7_000, "trainer", 15.0))
        if pid == service.pid or index > 10
    ]
    rows = gpu_rows(service.start, 20, util_pct=80.0)
    builder = service.builder(tmp_path / "s").add("gpu_sample", rows).add("gpu_process", listed)
    attribution = attribute(builder.write())
    assert attribution.verdict.cause == "contention.cross_process"
    assert finding(attribution, "contention.cross_process").confidence > 0.9


def test_clocks_of_a_device_of_which_nothing_else_is_known_prove_nothing(tmp_path: Path) -> None:
    engine = Scrapes().play(30, requests_running=0)
    rows = gpu_rows(engine.start, 30, sm_clock_max_mhz=2_100)
    for index, row in enumerate(rows):
        row["sm_clock_mhz"] = 2_100 if index < 15 else 1_050
        row["clock_reasons"] = 0 if index < 15 else POWER_CAP
    builder = engine.builder(tmp_path / "session", gpus=[Gpu(0, "GPU")])
    attribution = attribute(builder.add("gpu_sample", rows).write())
    assert not [note for note in attribution.notes if "failed" in note]
    assert finding(attribution, "power.throttle").status is Status.NOT_FOUND
