"""The probe on the simulated device, through the real ``nvidia-ml-py``."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any

import pytest

from analysis.schema import GPU_SAMPLE
from probes.gpu.nvml import NvmlProbe, inventory
from tracer.simulated.build import BuildError, build


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Folder of the simulated ``libnvidia-ml.so.1``, and the environment of two idle GPUs."""
    try:
        folder = build().driver
    except BuildError as error:
        pytest.skip(f"the simulated device cannot be built: {error}")
    state = tmp_path_factory.mktemp("sim") / "state"
    library = ctypes.CDLL(str(folder / "libtracersim.so"))
    library.sim_create.restype = ctypes.c_void_p
    assert library.sim_create(str(state).encode(), 2, 1024)
    return folder, {"TRACER_SIM_STATE": str(state)}


def test_it_says_that_it_is_simulated(device: tuple[Path, dict[str, str]]) -> None:
    found = inventory(*device)
    assert found.is_simulated
    assert [gpu["index"] for gpu in found.gpus] == [0, 1]
    assert len({gpu["uuid"] for gpu in found.gpus}) == 2


def test_idle_gpus_are_sampled_without_a_complaint(device: tuple[Path, dict[str, str]]) -> None:
    probe = NvmlProbe(library_dir=device[0], env=device[1], interval_ns=20_000_000)
    probe.start()
    time.sleep(1.5)
    batches = [*probe.drain(time.monotonic_ns()), *probe.stop()]
    assert {batch.table for batch in batches} == {GPU_SAMPLE}
    rows: list[dict[str, Any]] = [row for batch in batches for row in batch.rows.to_pylist()]
    nvml = [row for row in rows if row["source"] == "nvml"]
    assert {row["device"] for row in nvml} == {0, 1}
    assert len(nvml) > 40
    for row in nvml:
        assert row["util_pct"] == 0
        assert 0 < row["power_mw"] < 700_000
        assert row["clock_reasons"] == 1
    told = [row for row in nvml if row["memory_used_bytes"] is not None]
    assert {row["device"] for row in told} == {0, 1}
    assert all(0 <= row["memory_used_bytes"] < row["memory_total_bytes"] for row in told)
    energies = [row["energy_mj"] for row in nvml if row["device"] == 0]
    assert energies == sorted(energies) and energies[-1] > energies[0]
    details = probe.report().details
    assert details and details["errors"] == {}
