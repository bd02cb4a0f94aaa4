from __future__ import annotations

from probes.host.pacing import Pacer


def test_a_steady_beat_without_bursts() -> None:
    pacer = Pacer(100)
    asked = [1000, 1050, 1100, 1190, 1210, 1550, 1560, 1650]
    assert [pacer.is_due(now) for now in asked] == [
        True, False, True, False, True, True, False, True,
    ]  # fmt: skip


def test_begin_waits_a_whole_interval() -> None:
    pacer = Pacer(100)
    pacer.begin(1000)
    assert not pacer.is_due(1099)
    assert pacer.is_due(1100)
