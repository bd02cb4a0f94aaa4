"""The driver's stamps when the wall clock is moved, and how often lost devices are tried."""

from __future__ import annotations

from itertools import pairwise

import pytest

from probes.gpu.losses import FIRST_PAUSE_NS, LONGEST_PAUSE_NS, DeviceLosses
from probes.gpu.since import AHEAD_US, Since

S_US = 1_000_000
S_NS = 1_000_000_000


class Driver:
    """Keeps the last 14 s of samples, ten a second, with the wall clock's stamps."""

    def __init__(self) -> None:
        self.true_us = 10**15
        self.moved_us = 0
        self.kept: list[tuple[int, int]] = []

    def wall_us(self) -> int:
        return self.true_us + self.moved_us

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds * 10)):
            self.true_us += S_US // 10
            self.kept = [*self.kept, (self.wall_us(), self.true_us)][-140:]

    def newer(self, since: int) -> list[tuple[int, int]]:
        return [item for item in self.kept if item[0] > since]


@pytest.mark.parametrize("moved_s", [-0.5, -5, -13, -20, -1118, 20, 1118])
def test_no_sample_is_told_twice_and_a_step_costs_at_most_two_seconds(moved_s: float) -> None:
    driver = Driver()
    since = Since(driver.wall_us)
    told: list[int] = []
    for second in range(60):
        if second == 30:
            driver.run(0.5)
            driver.moved_us = int(moved_s * S_US) + 12_345
            driver.run(0.5)
        else:
            driver.run(1)
        new = since.take("util", driver.newer(since.ask_from("util")))
        told.extend(true for _, true in new)
    assert len(set(told)) == len(told)
    assert 580 <= len(told) <= 600
    assert all(-S_US < after - before <= 2 * S_US for before, after in pairwise(told))
    assert (moved_s > -1 and moved_s < 0) or told == sorted(told)


def test_a_stamp_of_no_time_holds_nothing_up() -> None:
    driver = Driver()
    since = Since(driver.wall_us)
    driver.run(1)
    garbage = (driver.wall_us() + 10**14, 0)
    assert len(since.take("util", [garbage, *driver.newer(since.ask_from("util"))])) == 10
    driver.run(1)
    assert len(since.take("util", [(0, 0), *driver.newer(since.ask_from("util"))])) == 10
    assert since.last("util") == driver.wall_us()
    assert since.last("other") is None


def test_a_clock_that_is_set_back_before_the_first_sample() -> None:
    driver = Driver()
    since = Since(driver.wall_us)
    driver.moved_us = -1118 * S_US
    driver.run(1)
    assert len(since.take("util", driver.newer(since.ask_from("util")))) == 10
    assert AHEAD_US > 0


def due_after(losses: DeviceLosses, now_ns: int) -> int:
    """Time until the one planned retry is due."""
    for pause in range(0, 2 * LONGEST_PAUSE_NS, S_NS):
        if losses.take_due(now_ns + pause):
            return pause
    raise AssertionError("nothing is planned")


def test_pauses_double_and_begin_anew_after_a_long_time_without_a_loss() -> None:
    losses, now = DeviceLosses(), 0
    pauses = []
    for _ in range(8):
        losses.retry_later([1], now)
        pauses.append(due_after(losses, now))
        now += pauses[-1]
    assert pauses[:4] == [
        FIRST_PAUSE_NS,
        2 * FIRST_PAUSE_NS,
        4 * FIRST_PAUSE_NS,
        8 * FIRST_PAUSE_NS,
    ]
    assert pauses[-1] == LONGEST_PAUSE_NS
    now += 2 * LONGEST_PAUSE_NS
    losses.retry_later([1], now)
    assert due_after(losses, now) == FIRST_PAUSE_NS


def test_a_device_is_planned_once_however_often_it_is_lost() -> None:
    losses = DeviceLosses()
    losses.retry_later([1], 0)
    losses.retry_later([1], 0)
    losses.retry_later([0, 1], 0)
    losses.retry_later([], 0)
    assert losses.take_due(FIRST_PAUSE_NS) == [[1], [0]]
    losses.retry_later(None, 0)
    losses.retry_later(None, 0)
    assert losses.take_due(FIRST_PAUSE_NS) == [None]
