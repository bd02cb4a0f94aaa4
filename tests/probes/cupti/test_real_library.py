"""NVIDIA's own libcupti from its wheels: symbols, and what it says without a driver of its own."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from probes.cupti.build import NATIVE
from tests.probes.cupti.conftest import Collection
from tests.probes.cupti.test_layouts import WHEELS
from tests.real_libraries import unpacked
from tests.tracer.simulated.conftest import Machine
from tracer.simulated.build import exported_names


def real(major: int) -> Path:
    return sorted(unpacked(WHEELS[major], (".so", ".h")).rglob(f"libcupti.so.{major}"))[0]


@pytest.mark.parametrize("major", (12, 13))
def test_the_real_library_has_every_function_that_is_used(major: int) -> None:
    library = ctypes.CDLL(str(real(major)))
    names = re.findall(r"F\((cupti\w+),", (NATIVE / "abi.h").read_text())
    assert len(names) > 10
    assert [name for name in names if not hasattr(library, name)] == []


@pytest.mark.parametrize("major", (12, 13))
def test_the_simulated_library_exports_the_functions_of_the_real_one(major: int) -> None:
    library = ctypes.CDLL(str(real(major)))
    missing = [n for n in exported_names(f"libcupti.so.{major}") if not hasattr(library, n)]
    assert not missing


@pytest.mark.parametrize("major", (12, 13))
def test_its_refusal_is_told_and_the_program_runs_on(
    machine: Machine, tmp_path: Path, major: int
) -> None:
    collection = Collection(machine, tmp_path, str(real(major)))
    collection.launch(f"cudart={major}", "launches=100", "rate=1000")
    assert collection.status == 0, collection.out
    (event,) = collection.events("source_lost")
    assert event["detail"].startswith("No device times and no named ranges (NVTX): ")
    assert not collection.rows("gpu_activity")
