from __future__ import annotations

import time
from typing import Any

import pytest

from analysis.schema import HOST_SAMPLE
from probes.host import buffer
from probes.host.buffer import BeatProbe, RowBuffer

TENTH = 10**8


class Costly(BeatProbe):
    """Its samples take as much CPU time as it is told."""

    def __init__(self) -> None:
        super().__init__("costly", HOST_SAMPLE, TENTH, 0, clock=lambda: self.now)
        self.now = 0
        self.cost_ns = 0
        self.times: list[int] = []

    def sample(self, now_ns: int) -> list[dict[str, Any]]:
        self.times.append(now_ns)
        end = time.thread_time_ns() + self.cost_ns
        while time.thread_time_ns() < end:
            pass
        return [{"time_ns": now_ns, "scope": "host"}]

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


def test_rows_are_kept_back_as_long_as_told() -> None:
    rows = RowBuffer(HOST_SAMPLE, hold_ns=100)
    rows.add([{"time_ns": 1, "scope": "host"}], 1000)
    assert rows.take(1050) == []
    rows.add([{"time_ns": 2, "scope": "host"}], 1060)
    [batch] = rows.take(1100)
    assert batch.rows["time_ns"].to_pylist() == [1, 2]
    assert rows.take(1101, is_last=True) == []
    assert rows.n_rows == 2
