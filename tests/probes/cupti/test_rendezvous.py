"""The place where recorder and program meet: what it holds, and when it goes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from probes.cupti import rendezvous
from probes.cupti.rendezvous import Rendezvous
from probes.probe import ProbeError

MINUTE_NS = 60_000_000_000


def place(beat_ns: int, *, has_library: bool = False) -> Path:
    meeting = Rendezvous.create()
    meeting.beat(beat_ns)
    if has_library:
        meeting.add_library()
    meeting.close(remove=False)
    return meeting.directory


def test_places_of_killed_recorders_go_with_the_next_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "_MEMORY", tmp_path)
    now_ns = time.monotonic_ns()
    long_ago = max(now_ns - 2 * MINUTE_NS, 1)
    prepared = place(long_ago, has_library=True)
    killed, running, new = place(long_ago), place(now_ns), place(0)
    monkeypatch.setattr(rendezvous.time, "monotonic_ns", lambda: now_ns + MINUTE_NS // 2)
    other = place(0)
    if long_ago > 1:
        assert not killed.exists()
    assert [path.exists() for path in (prepared, running, new, other)] == [True] * 4


def test_a_place_that_was_not_prepared_is_refused_with_the_way_to(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="tracer cupti"):
        Rendezvous(tmp_path)
    (tmp_path / "control").write_bytes(b"other".ljust(4096, b"\0"))
    with pytest.raises(ProbeError, match="another version"):
        Rendezvous(tmp_path)


def test_switching_is_seen_by_another_reader(tmp_path: Path) -> None:
    first = Rendezvous.create(tmp_path / "meeting")
    second = Rendezvous(tmp_path / "meeting")
    assert not second.is_on
    first.switch(True, time.monotonic_ns())
    assert second.is_on
    second.close(remove=False)
    first.close(remove=True)
    assert not (tmp_path / "meeting").exists()


def test_a_control_file_that_is_cut_short_does_not_end_the_recorder(tmp_path: Path) -> None:
    meeting = Rendezvous.create(tmp_path / "meeting")
    os.truncate(meeting.directory / "control", 0)
    assert not meeting.is_on
    meeting.switch(True, time.monotonic_ns())
    meeting.beat(time.monotonic_ns())
    assert meeting.is_on
    meeting.close(remove=True)
