"""Device times on a node with a real GPU: ``pytest tests/gpu -s``. They print what they learnt.

The same checks run on the simulated device everywhere, which proves the checks and not the GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from analysis import attribute, open_session
from tests.gpu.workload import ALLOCATED, N_LAUNCHES, N_SETS, N_SYNCS
from tests.real_libraries import library, unpacked
from tracer.simulated.build import build
from tracer.simulated.device import SimulatedDevice

pytestmark = pytest.mark.root

#: How far CUPTI's mapping of the device's clock to the host's may be off, ns.
CLOCK_ERROR_NS = 20_000
ROUNDS = 3
#: Ways to run the workload: not recorded; recorded without, with, and with windows of device times.
MODES: dict[str, list[str] | None] = {
    "bare": None,
    "calls only": [],
    "always": ["--cupti"],
    "windows": ["--cupti", "--window", "300ms", "--every", "1s"],
}


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.gpu)])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment of the workload; TRACER_TEST_CUDART names the runtime to load."""
    if request.param == "real":
        runtime = library("nvidia-cuda-runtime-cu12", "libcudart.so.12")
        found = sorted(unpacked("nvidia-cuda-cupti-cu12", (".so", ".h")).rglob("libcupti.so.12"))
        path = f"{found[0].parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        yield {**os.environ, "LD_LIBRARY_PATH": path, "TRACER_TEST_CUDART": str(runtime)}
        return
    with SimulatedDevice(tmp_path / "state") as device:
        runtime = build().libcudart12
        yield {**os.environ, **device.env(), "TRACER_TEST_CUDART": str(runtime)}


def run(environment: dict[str, str], session: Path, options: list[str] | None) -> float:
    """Run the workload one way; return the time of a launch in ns."""
    command = [sys.executable, "-m", "tests.gpu.workload", environment["TRACER_TEST_CUDART"]]
    if options is not None:
        record = [sys.executable, "-m", "tracer", "record", "--force", "-o", str(session)]
        command = [*record, *options, "--", *command]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return told["launches_ns"] / N_LAUNCHES


def test_every_activity_has_its_times_and_its_call(
    environment: dict[str, str], tmp_path: Path
) -> None:
    session = tmp_path / "s.tracer"
    run(environment, session, ["--cupti"])
    opened = open_session(session)
    (source,) = [source for source in opened.manifest.sources if source.name == "cupti"]
    print("cupti:", source.note, source.details)
    assert source.n_lost == 0
    found = opened.frame("gpu_activity")
    assert (found.kind == "kernel").sum() == N_LAUNCHES
    assert (found.kind == "set").sum() == N_SETS + N_SYNCS
    assert (found.duration_ns > 0).all()
    assert found.call_start_ns.notna().all()
    delay = (found.start_ns - found.call_start_ns).astype("int64")
    print(f"start after the call's entry: median {median(delay)} ns, least {delay.min()} ns")
    assert delay.min() > -CLOCK_ERROR_NS, "the clocks agree"
    waits = opened.frame("cuda_call")
    waits = waits[waits.function == "cudaDeviceSynchronize"]
    last = found.sort_values("start_ns")
    before = np.searchsorted(last.start_ns, waits.start_ns + waits.duration_ns) - 1
    ends = (last.start_ns + last.duration_ns).to_numpy(dtype="int64")[before]
    late = ends - (waits.start_ns + waits.duration_ns).to_numpy(dtype="int64")
    print(f"end of the work against the return of the sync: {np.median(-late):.0f} ns before")
    assert late.max() < CLOCK_ERROR_NS, "nothing runs after the sync that waited for it"
    memory = opened.frame("memory_operation")
    memory = memory[memory.address.isin(memory[memory.size_bytes == ALLOCATED].address)]
    print("memory:", memory.to_dict("records"))
    assert memory.kind.tolist()[:2] == ["allocation", "release"]
    assert (memory.memory_kind == "device").all()
    (totals,) = attribute(opened).to_json()["budget_totals"]
    assert totals["is_timed"]


@pytest.mark.gpu
def test_cost_of_a_launch_each_way(environment: dict[str, str], tmp_path: Path) -> None:
    """Alternating runs; prints the time of a launch bare and recorded each way."""
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(ROUNDS):
        for mode, options in MODES.items():
            found[mode].append(run(environment, tmp_path / "s.tracer", options))
    times = {mode: round(median(values)) for mode, values in found.items()}
    print("time of a launch in ns:", times)
    assert all(value > 0 for value in times.values())
