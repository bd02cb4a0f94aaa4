"""What a killed stage leaves is removed by the next one; what lives, or is not ours, stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tracer.simulated.device import MEMORY, MEMORY_PREFIX
from tracer.simulated.leftovers import PREFIX, StageFolder, sweep

HOUR_S = 3600.0

STAGE = """
import sys, time
from tracer.simulated.stage import Stage
stage = Stage()
print(stage.folder, stage.device.path.readlink(), flush=True)
time.sleep(600)
"""


def test_a_killed_stage_is_swept_and_a_living_one_is_not(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", STAGE], stdout=subprocess.PIPE, text=True, env=environment
    ) as stage:
        assert stage.stdout is not None
        folder, memory = (Path(word) for word in stage.stdout.readline().split())
        later = time.time() + HOUR_S
        assert sweep(tmp_path, later) == 0
        assert folder.exists() and memory.exists()
        stage.send_signal(signal.SIGKILL)
    assert sweep(tmp_path) == 0, "it may be about to be locked"
    assert sweep(tmp_path, later) == 1
    assert not folder.exists() and not memory.exists()


def test_removing_twice_is_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = StageFolder()
    (folder.path / "sub").mkdir()
    folder.remove()
    folder.remove()
    assert not list(tmp_path.iterdir())


def test_a_link_to_something_else_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / f"{MEMORY_PREFIX}precious"
    precious.write_text("mine")
    folder = tmp_path / f"{PREFIX}1"
    folder.mkdir()
    (folder / "device").symlink_to(precious)
    other = tmp_path / f"{PREFIX}2"
    other.mkdir()
    (other / "device").symlink_to(MEMORY / "..")
    link = tmp_path / f"{PREFIX}3"
    link.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    assert sweep(tmp_path, time.time() + HOUR_S) == 2
    assert precious.read_text() == "mine"
    assert (tmp_path / "elsewhere").exists() and MEMORY.exists()
