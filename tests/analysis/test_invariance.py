"""A verdict depends on what happened, not on names, numbers, clocks or labels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis import attribute
from tests.analysis.builder import MS, S, Service, SessionBuilder
from tests.analysis.test_attribution import compile_gap, hang, neighbour

_TIMES = ("start_ns", "time_ns", "sample_ns")


def contention(service: Service) -> tuple[int, list[dict[str, Any]]]:
    while service.now < service.start + 10 * S:
        service.preempt(6 * MS)
        service.decode_step()
    return service.now, []


def compilation(service: Service) -> tuple[int, list[dict[str, Any]]]:
    service.decode_until(service.start + 3 * S)
    compile_gap(service, 3 * S)
    service.decode_until(service.now + 4 * S)
    return service.now, []


def hogging(service: Service) -> tuple[int, list[dict[str, Any]]]:
    service.decode_until(service.start + 5 * S)
    for _ in range(30):
        service.prefill_step(200 * MS, 2048)
    service.decode_until(service.now + 4 * S)
    return service.now, []


def sharing(service: Service) -> tuple[int, list[dict[str, Any]]]:
    service.decode_until(service.start + 5 * S)
    begin = service.now
    service.decode_until(service.start + 12 * S, slower=2.0)
    return service.now, neighbour(service, [(begin, service.now)], 50.0)


def hung(service: Service) -> tuple[int, list[dict[str, Any]]]:
    service.decode_until(service.start + 6 * S)
    return hang(service, 8), []


def well(service: Service) -> tuple[int, list[dict[str, Any]]]:
    service.decode_until(service.start + 8 * S)
    return service.now, []


STORIES = {
    "launch.cpu_delay": contention,
    "launch.first_use": compilation,
    "prefill.hogging": hogging,
    "contention.cross_process": sharing,
    "hang.kernel": hung,
    "healthy": well,
}


def rename(builder: SessionBuilder) -> None:
    for name, rows in builder._rows.items():
        for row in rows:
            for column in ("name", "taker_name", "occupant_name"):
                if isinstance(row.get(column), str) and name != "engine_sample":
                    row[column] = "p" + str(abs(hash(row[column])) % 1000)
            if row.get("kernel") is not None:
                row["kernel"] = int(row["kernel"]) * 7919 + 5
    for target in builder.manifest.targets:
        target.name = "renamed"


def shift(builder: SessionBuilder) -> None:
    offset = 17 * 3600 * S + 12345
    for rows in builder._rows.values():
        for row in rows:
            for column in _TIMES:
                if row.get(column) is not None:
                    row[column] += offset
    builder.manifest.start_ns += offset
    builder.manifest.end_ns += offset


def permute(builder: SessionBuilder) -> None:
    def other(pid: int) -> int:
        return pid if pid in (0, -1) else 50_000 - pid

    columns = ("pid", "tid", "parent_pid", "taker_pid", "taker_tid", "occupant_pid", "occupant_tid")
    for rows in builder._rows.values():
        for row in rows:
            for column in columns:
                if row.get(column) is not None:
                    row[column] = other(row[column])
    for target in builder.manifest.targets:
        target.pid = other(target.pid)


def simulate(builder: SessionBuilder) -> None:
    builder.manifest.is_simulated = not builder.manifest.is_simulated


@pytest.mark.parametrize("change", [rename, shift, permute, simulate])
@pytest.mark.parametrize("cause", STORIES)
def test_the_verdict_survives(
    tmp_path: Path, cause: str, change: Callable[[SessionBuilder], None]
) -> None:
    verdicts = []
    for index, altered in enumerate((None, change)):
        service = Service(seed=5)
        end, processes = STORIES[cause](service)
        builder = service.builder(tmp_path / f"session{index}", end)
        if processes:
            builder.add("gpu_process", processes)
        if altered is not None:
            altered(builder)
        attribution = attribute(builder.write())
        verdicts.append(
            (
                attribution.verdict.cause,
                attribution.verdict.confidence,
                [(item.cause, item.status, item.lost_ns) for item in attribution.findings],
                attribution.budgets[0].by_state(),
            )
        )
    assert verdicts[0][0] == cause
    assert verdicts[0] == verdicts[1]
