"""Collectives beside the links of their devices, and what looks like it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis import attribute
from analysis.attribution import Attribution
from analysis.finding import Finding, Status
from analysis.manifest import Gpu, Source
from tests.analysis.builder import SessionBuilder
from tests.analysis.test_device_causes import MS, US, Program

S = 1_000 * MS
N_STEPS = 200
SLOW, FAST = 25 * MS, 2 * MS
OVER_PCIE = {"pcie": 1.1e9, "nvlink": 0.0}


def job(collective_ns: int = SLOW, late_ns: int = 0) -> list[Program]:
    """Four ranks of 20 ms of work and one collective a step; the last rank may enter late."""
    ranks = [Program(device, rank=device) for device in range(4)]
    for _ in range(N_STEPS):
        for rank in ranks:
            rank.launch(20 * MS + (late_ns if rank.rank == 3 else 0))
        end = max(rank.free for rank in ranks) + collective_ns
        for rank in ranks:
            more = {"name": "ncclDevKernel_AllReduce", "is_collective": True}
            rank.launch(end - max(rank.free, rank.now + 5 * US), **more)
            rank.sync()
    return ranks


def links(end: int, pcie: float | None, nvlink: float | None) -> list[dict[str, Any]]:
    return [
        {
            "time_ns": time,
            "device": device,
            "source": "nvml",
            "pcie_tx_bytes_per_s": pcie,
            "pcie_rx_bytes_per_s": pcie,
            "nvlink_tx_bytes_per_s": nvlink,
            "nvlink_rx_bytes_per_s": nvlink,
        }
        for time in range(S // 2, end, S // 2)
        for device in range(4)
    ]


def analysed(
    path: Path,
    ranks: list[Program],
    pcie: float | None,
    nvlink: float | None,
    n_links: int | None = 18,
    *,
    is_timed: bool = True,
) -> Attribution:
    end = max(rank.now for rank in ranks) + MS
    nvml = Source("nvml", "ok")
    if n_links is not None:
        counts = {str(device): n_links for device in range(4)}
        nvml.details["topology"] = {"n_nvlinks": counts}
    builder = SessionBuilder(
        path / "s",
        start_ns=0,
        end_ns=end,
        origin="record",
        gpus=[Gpu(device, "GPU") for device in range(4)],
        sources=[nvml],
    )
    for rank in ranks:
        names = {row["correlation_id"] for row in rank.activity if row.get("is_collective")}
        builder.add(
            "cuda_call",
            [
                {**row, "device": rank.device}
                | (
                    {"kind": "collective", "function": "ncclAllReduce"}
                    if row["correlation_id"] in names
                    else {}
                )
                for row in rank.calls
            ],
        )
        if is_timed:
            builder.add("gpu_activity", rank.activity)
    return attribute(builder.add("gpu_sample", links(end, pcie, nvlink)).write())


def of(attribution: Attribution) -> Finding:
    answers = (*attribution.findings, *attribution.checked)
    return next(item for item in answers if item.cause == "collective.misroute")


def test_collectives_beside_unused_links_take_half_of_the_time(tmp_path: Path) -> None:
    attribution = analysed(tmp_path, job(), **OVER_PCIE)
    finding = of(attribution)
    assert finding.status is Status.FOUND
    assert attribution.verdict.cause == "collective.misroute"
    assert finding.lost_share == pytest.approx(25 / 45, abs=0.03)
    numbers = {item.name: item.value for item in finding.evidence}
    assert numbers["nvlink_bytes_per_s"] == 0
    assert numbers["pcie_sent_per_s"] == 1.1e9


def test_without_device_times_or_the_number_of_links_it_is_suspected(tmp_path: Path) -> None:
    untimed = of(analysed(tmp_path / "a", job(), **OVER_PCIE, is_timed=False))
    assert untimed.status is Status.UNDECIDED
    assert "without device times" in untimed.undecided_because
    unknown = of(analysed(tmp_path / "b", job(), **OVER_PCIE, n_links=None))
    assert unknown.status is Status.UNDECIDED
    assert "whether the devices are linked" in unknown.undecided_because


@pytest.mark.parametrize(
    ("pcie", "nvlink", "n_links", "reason"),
    [
        (1.1e9, 2.1e10, 18, "NVLink carries 42.00 GB"),
        (1.1e9, 0.0, 0, "no NVLink"),
        (2e6, 0.0, 18, "hardly anything is exchanged"),
    ],
)
def test_links_in_use_or_absent_and_quiet_ranks_are_no_detour(
    tmp_path: Path, pcie: float, nvlink: float, n_links: int, reason: str
) -> None:
    finding = of(analysed(tmp_path, job(), pcie, nvlink, n_links))
    assert finding.status is Status.NOT_FOUND
    assert reason in finding.excluded[0].reason


def test_a_detour_that_costs_little_is_no_cause(tmp_path: Path) -> None:
    finding = of(analysed(tmp_path, job(collective_ns=FAST), **OVER_PCIE))
    assert finding.status is Status.NOT_FOUND
    assert "9 % of the time" in finding.excluded[0].reason


def test_ranks_that_wait_for_a_late_one_are_a_straggler(tmp_path: Path) -> None:
    attribution = analysed(tmp_path, job(collective_ns=FAST, late_ns=20 * MS), **OVER_PCIE)
    finding = of(attribution)
    assert finding.status is Status.UNDECIDED
    assert "late rank" in finding.undecided_because
    assert attribution.verdict.cause == "collective.straggler"


def test_a_counter_that_is_not_told_is_not_zero(tmp_path: Path) -> None:
    finding = of(analysed(tmp_path, job(), pcie=1.1e9, nvlink=None))
    assert finding.status is Status.NOT_APPLICABLE
    assert "not told of every device" in finding.undecided_because
