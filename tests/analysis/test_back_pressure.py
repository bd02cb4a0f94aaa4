"""Launches held up by a full queue of the device, told from launches that are slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.back_pressure import back_pressure
from tests.analysis.builder import SessionBuilder
from tests.analysis.test_device_causes import US, Program, about, analysed, numbers

FULL, QUEUE = "Command Buffer Full", 16


def launch_long(program: Program, length: int) -> None:
    """Launch a kernel of 100 us in a call that takes so long."""
    program.launch(100 * US)
    program.calls[-1]["duration_ns"] += length
    program.now += length


def full_queue() -> Program:
    """Each launch waits until fewer than `QUEUE` of 100 us are queued, as the driver tells."""
    program = Program()
    for _ in range(300):
        held = max(program.free - program.now - QUEUE * 100 * US, 0)
        if held:
            span = {"start_ns": program.now, "duration_ns": held, "pid": program.pid}
            told = {"tid": program.pid, "category": "overhead", "name": FULL, "rank": None}
            program.ranges.append(span | told)
        launch_long(program, held)
    return program


def slow_launches() -> Program:
    """Each launch takes longer than its kernel, and the device runs dry meanwhile."""
    program = Program()
    for _ in range(300):
        program.launch(40 * US)
        program.calls[-1]["duration_ns"] += 200 * US
        program.now += 200 * US
    return program


def test_a_full_queue_is_back_pressure_and_a_slow_launch_is_not(tmp_path: Path) -> None:
    held = analysed(tmp_path / "full", full_queue())
    assert held.verdict.cause == "device.compute_bound"
    finding = about(held, "device.compute_bound")
    told = next(item for item in finding.evidence if item.name == "held_by_full_queue")
    assert told.value == pytest.approx(300 * 100 * US, rel=0.2)
    assert told.n is not None and told.n > 200
    assert "back-pressure, not slow launching" in finding.summary
    slow = analysed(tmp_path / "slow", slow_launches())
    assert slow.verdict.cause != "device.compute_bound"
    assert "held_by_full_queue" not in numbers(about(slow, "device.compute_bound"))


def test_only_full_queues_of_the_processes_that_count(tmp_path: Path) -> None:
    rows = [
        {"start_ns": start, "duration_ns": 10, "pid": pid, "category": category, "name": name}
        for start, pid, category, name in (
            (100, 1, "overhead", "command buffer full"),
            (105, 1, "overhead", FULL),
            (200, 2, "overhead", FULL),
            (300, 1, "user", FULL),
            (400, 1, "overhead", "module loading"),
        )
    ]
    session = SessionBuilder(tmp_path / "s", start_ns=0, end_ns=1000).add("annotation", rows)
    opened = session.write()
    assert (back_pressure(opened).n, back_pressure(opened).total_ns) == (3, 25)
    own = back_pressure(opened, {1})
    assert own.spans.tolist() == [[100, 115]]
    assert back_pressure(opened, {3}).n == 0
