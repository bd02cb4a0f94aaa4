"""Clock anchors: error bounds, steps, suspend and the mapping of foreign times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probes.clocks import (
    Anchor,
    ClockAnchors,
    ClockReaders,
    anchor_batch,
    change_batch,
    read_anchor,
)

S = 1_000_000_000


class FakeClocks:
    """A machine whose clocks are moved by hand; each reading takes 100 ns."""

    def __init__(self) -> None:
        self.now, self.wall_offset, self.slept = 100 * S, 1_700_000_000 * S, 0

    def _tick(self) -> int:
        self.now += 100
        return self.now

    def readers(self) -> ClockReaders:
        return ClockReaders(
            monotonic=self._tick,
            realtime=lambda: self._tick() + self.wall_offset,
            boottime=lambda: self._tick() + self.slept,
        )

    def wall(self) -> int:
        return self.now + self.wall_offset


def to_monotonic(
    anchors: ClockAnchors, realtime_ns: int, near_ns: int | None = None
) -> tuple[int, int]:
    """Map a single time."""
    near = None if near_ns is None else np.array([near_ns])
    times, errors = anchors.to_monotonic_array(np.array([realtime_ns]), near)
    return int(times[0]), int(errors[0])


def test_anchor_is_the_middle_of_its_bracket():
    clocks = FakeClocks()
    anchor = read_anchor(clocks.readers())
    assert anchor.error_ns == 300
    assert abs(anchor.realtime_ns - clocks.wall_offset - anchor.monotonic_ns) <= anchor.error_ns


def test_real_clocks_give_a_small_error():
    anchor = read_anchor(ClockReaders())
    assert 0 <= anchor.error_ns < 50_000_000


def test_an_interrupted_reading_is_not_taken():
    stalls = iter([0, 0, 0, 5 * S] + [0] * 100)
    clocks = FakeClocks()

    def monotonic() -> int:
        clocks.now += next(stalls)
        return clocks._tick()

    base = clocks.readers()
    anchor = read_anchor(ClockReaders(monotonic, base.realtime, base.boottime))
    assert anchor.error_ns < 1000


@pytest.mark.parametrize("step_s", [-20, 1118])
def test_step_is_reported_and_does_not_reorder(step_s):
    clocks = FakeClocks()
    anchors = ClockAnchors(clocks.readers())
    stamps, truth, changes = [], [], []
    for second in range(60):
        if second == 30:
            clocks.wall_offset += step_s * S
        if second % 5 == 0:
            changes += anchors.read()[1]
        clocks.now += S
        stamps.append(clocks.wall())
        truth.append(clocks.now)
    assert [change.kind for change in changes] == ["clock_step"]
    assert abs(changes[0].change_ns - step_s * S) < 1_000_000
    times, errors = anchors.to_monotonic_array(np.array(stamps), np.array(truth))
    assert (np.abs(times - np.array(truth)) <= errors + 1).all()
    assert (np.diff(times) > 0).all()


@pytest.mark.parametrize("step_s", [-20.0, 1118.0, -0.02])
def test_a_step_since_the_last_anchor_is_found_before_anything_is_mapped(step_s):
    """Anchors are seconds apart; what is received in between must not wait for the next."""
    clocks = FakeClocks()
    anchors = ClockAnchors(clocks.readers())
    anchors.read()
    told = []
    for turn in range(200):
        clocks.now += S // 10
        if turn == 105:
            clocks.wall_offset += int(step_s * S)
        truth, wall = clocks.now, clocks.wall()
        clocks.now += S // 100
        times, errors = anchors.map_received(np.array([wall]), np.array([clocks.now]))
        assert (
            abs(int(times[0]) - truth) <= int(errors[0]) + abs(min(step_s, 0)) * (step_s > -1) * S
        )
        if turn % 50 == 49:
            told += anchors.read()[1]
    [change] = told
    assert change.kind == "clock_step"
    assert change.change_ns == pytest.approx(step_s * S, abs=1_000)
    assert 111 * S < change.time_ns < 112 * S
    assert len(anchors._stretches) == 2


def test_looks_keep_nothing_where_nothing_jumps():
    clocks = FakeClocks()
    anchors = ClockAnchors(clocks.readers())
    anchors.look()
    for _ in range(1000):
        clocks.now += S
        anchors.look()
    assert [len(stretch) for stretch in anchors._stretches] == [1]


def test_backward_step_without_receipt_time_owns_up_to_the_ambiguity():
    clocks = FakeClocks()
    anchors = ClockAnchors(clocks.readers())
    anchors.read()
    clocks.now += 30 * S
    stamp, truth = clocks.wall(), clocks.now
    clocks.now += 5 * S
    anchors.read()
    clocks.wall_offset -= 20 * S
    anchors.read()
    clocks.now += 60 * S
    anchors.read()
    time_ns, error_ns = to_monotonic(anchors, stamp)
    assert time_ns > truth, "without a receipt time the later instant is taken"
    assert abs(time_ns - truth) <= error_ns
    time_ns, error_ns = to_monotonic(anchors, stamp, near_ns=truth + 1000)
    assert abs(time_ns - truth) <= error_ns < 1_000_000


def test_a_time_that_the_clock_never_showed_gets_an_error_that_says_so():
    clocks = FakeClocks()
    anchors = ClockAnchors(clocks.readers())
    anchors.read()
    clocks.now += 5 * S
    anchors.read()
    clocks.wall_offset += 1118 * S
    anchors.read()
    clocks.now += 5 * S
    anchors.read()
    _, error_ns = to_monotonic(anchors, clocks.wall() - 500 * S)
    assert error_ns > 400 * S


def test_suspend_is_told_from_a_step():
    clocks = FakeClocks()
    anchors = ClockAnchors(clocks.readers())
    anchors.read()
    clocks.now += S
    clocks.slept += 3600 * S
    clocks.wall_offset += 3600 * S
    _, changes = anchors.read()
    assert [(change.kind, round(change.change_ns / S)) for change in changes] == [("suspend", 3600)]
    clocks.slept += 60 * S
    clocks.wall_offset += 40 * S
    _, changes = anchors.read()
    assert [(change.kind, round(change.change_ns / S)) for change in changes] == [
        ("suspend", 60),
        ("clock_step", -20),
    ]
    rows = change_batch(changes).rows.to_pylist()
    assert [row["kind"] for row in rows] == ["suspend", "clock_step"]
    assert rows[1]["duration_ns"] is None and "-20.000 s" in rows[1]["detail"]


def test_slew_is_no_step_and_stays_inside_the_error():
    clocks = FakeClocks()
    anchors = ClockAnchors(clocks.readers())
    stamps, truth = [], []
    for second in range(100):
        if second % 5 == 0:
            assert anchors.read()[1] == []
        clocks.now += S
        clocks.wall_offset += 400_000
        stamps.append(clocks.wall())
        truth.append(clocks.now)
    times, errors = anchors.to_monotonic_array(np.array(stamps))
    assert (np.abs(times - np.array(truth)) <= errors + 1).all()


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.integers(-30 * S, 30 * S), min_size=0, max_size=4),
    ages=st.lists(st.integers(0, 3 * S), min_size=1, max_size=20),
)
def test_mapping_stays_inside_its_bound(steps, ages):
    clocks = FakeClocks()
    anchors = ClockAnchors(clocks.readers())
    stamps, truth = [], []
    for step in [0, *steps]:
        clocks.wall_offset += step
        anchors.read()
        for age in ages:
            clocks.now += age + 1000
            stamps.append(clocks.wall())
            truth.append(clocks.now)
        anchors.read()
    times, errors = anchors.to_monotonic_array(np.array(stamps), np.array(truth))
    assert (np.abs(times - np.array(truth)) <= errors + 1).all()


def test_mapping_needs_an_anchor():
    with pytest.raises(ValueError, match="no clock anchor"):
        to_monotonic(ClockAnchors(), 5)


def test_memory_stays_bounded_over_days():
    anchors = ClockAnchors()
    for index in range(20_000):
        anchors.add(Anchor(index * 5 * S, index * 5 * S + 77, index * 5 * S, 100))
    assert sum(len(stretch) for stretch in anchors._stretches) < 5000
    assert to_monotonic(anchors, 12_345 * S + 77)[0] == 12_345 * S


def test_anchor_becomes_a_row():
    assert anchor_batch(Anchor(1, 2, 3, 4)).rows.to_pylist() == [
        {"time_ns": 1, "realtime_ns": 2, "boottime_ns": 3, "error_ns": 4}
    ]
