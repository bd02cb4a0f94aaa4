from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from analysis.schema import HOST_SAMPLE
from probes.host import buffer
from probes.host.buffer import BeatProbe, Columns, ReadingBuffer, columns_of

TENTH = 10**8


class Costly(BeatProbe[int]):
    """Its samples take as much CPU time as it is told."""

    def __init__(self) -> None:
        super().__init__("costly", HOST_SAMPLE, TENTH, 0, clock=lambda: self.now)
        self.now = 0
        self.cost_ns = 0
        self.times: list[int] = []

    def sample(self, now_ns: int) -> list[int]:
        self.times.append(now_ns)
        end = time.thread_time_ns() + self.cost_ns
        while time.thread_time_ns() < end:
            pass
        return [now_ns]

    def to_columns(self, readings: Sequence[int]) -> Columns:
        return {"time_ns": readings, "scope": ["host"] * len(readings)}

    def run(self, n_beats: int) -> int:
        """Drain on the beat and return how many samples it took."""
        before = len(self.times)
        for _ in range(n_beats):
            self.now += TENTH
            list(self.drain(self.now))
        return len(self.times) - before


def test_a_sampler_that_costs_too_much_samples_less_often_and_recovers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffer, "SLOWEST_NS", 8 * TENTH)
    probe = Costly()
    # A busy machine may stretch one sample; at no CPU time of its own it always comes back.
    monkeypatch.setattr(buffer, "MAX_SHARE", 0.03)
    probe.cost_ns = 30_000_000
    probe.run(40)
    assert probe.run(40) == 5
    report = probe.report()
    assert report.details == {"interval_ns": 8 * TENTH}
    assert report.note == "there is much to look at, so it looks every 0.8 s"
    probe.cost_ns = 0
    monkeypatch.setattr(buffer, "MAX_SHARE", 1.0)
    probe.run(40)
    assert probe.run(40) == 40
    assert probe.report().note == ""


def test_the_last_sample_is_taken_at_the_stop_whatever_the_beat() -> None:
    probe = Costly()
    probe.run(1)
    [batch] = probe.stop()
    assert batch.rows.num_rows == 1
    assert len(probe.times) == 2


def test_readings_are_kept_back_as_long_as_told_and_made_into_rows_together() -> None:
    calls: list[list[int]] = []

    def to_columns(readings: Sequence[int]) -> Columns:
        calls.append(list(readings))
        return columns_of([{"time_ns": item, "scope": "host"} for item in readings if item < 3])

    readings = ReadingBuffer(HOST_SAMPLE, 100, to_columns)
    assert not readings.is_due(10**9)
    readings.add([1], 1000)
    assert not readings.is_due(1050)
    readings.add([2, 3], 1060)
    assert readings.is_due(1100)
    [batch] = readings.take(1130)
    assert batch.rows["time_ns"].to_pylist() == [1, 2] and batch.held_ns == 130
    assert calls == [[1, 2, 3]]
    assert readings.take(1140) == []
    assert readings.n_rows == 2


def test_columns_of_rows_that_lack_some() -> None:
    assert columns_of([{"a": 1}, {"b": 2, "a": 3}]) == {"a": [1, 3], "b": [None, 2]}
    assert columns_of([]) == {}
