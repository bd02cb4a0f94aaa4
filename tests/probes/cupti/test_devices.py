"""CUDA's numbers of devices against those of the machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from probes.cupti.devices import device_indices
from probes.cupti.ring import HEADER

UUIDS = ("11111111-0000-4000-8000-00000000000a", "22222222-0000-4000-8000-00000000000b")


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """Two GPUs as the driver lists them, by their place on the bus."""
    for place, uuid in zip(("0000:03:00.0", "0000:41:00.0"), UUIDS, strict=True):
        folder = tmp_path / "gpus" / place
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t Test\nGPU UUID: \t GPU-{uuid}\n")
    return tmp_path / "gpus"


@pytest.fixture
def restricted() -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        env={"CUDA_VISIBLE_DEVICES": "1,0"},
    )
    yield process
    process.kill()
    process.wait()


def header(*uuids: str) -> np.void:
    found = np.zeros(1, HEADER)
    found["n_devices"] = len(uuids)
    for index, uuid in enumerate(uuids):
        found["uuid"][0][index] = np.frombuffer(bytes.fromhex(uuid.replace("-", "")), "u1")
    return found[0]


def test_devices_are_known_by_their_uuid_where_the_driver_lists_it(driver: Path) -> None:
    other = "33333333-0000-4000-8000-00000000000c"
    assert device_indices(1, header(UUIDS[1], other, UUIDS[0]), driver) == [1, -1, 0]


def test_else_the_variable_of_the_program_tells(
    restricted: subprocess.Popen, tmp_path: Path
) -> None:
    for _ in range(100):
        found = device_indices(restricted.pid, header(UUIDS[0]), tmp_path / "none")
        if found is not None:
            break
    assert found == [1, 0]


def test_more_devices_than_there_is_room_for_are_not_read(driver: Path) -> None:
    odd = header(UUIDS[0])
    odd["n_devices"] = 0xFFFFFFFF
    indices = device_indices(1, odd, driver)
    assert indices is not None
    assert indices[0] == 0
    assert len(indices) == 16
