"""Checks for a node with a real GPU: ``pytest tests/gpu -s``. They print what they learnt.

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

import pytest

from analysis import open_session
from tests.gpu.workload import N_LAUNCHES, N_SETS, N_SYNCS
from tests.real_libraries import library
from tracer.simulated.build import build
from tracer.simulated.device import SimulatedDevice

pytestmark = pytest.mark.root


@pytest.fixture(
    params=["simulated", pytest.param("real", marks=pytest.mark.gpu)],
)
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Environment of the workload; TRACER_TEST_CUDART names the runtime to load."""
    if request.param == "real":
        runtime = library("nvidia-cuda-runtime-cu12", "libcudart.so.12")
        yield {**os.environ, "TRACER_TEST_CUDART": str(runtime)}
        return
    with SimulatedDevice(tmp_path / "state") as device:
        runtime = build().libcudart12
        yield {**os.environ, **device.env(), "TRACER_TEST_CUDART": str(runtime)}


def command(environment: dict[str, str]) -> list[str]:
    return [sys.executable, "-m", "tests.gpu.workload", environment["TRACER_TEST_CUDART"]]


def recording(session: Path, environment: dict[str, str]) -> list[str]:
    options = ["record", "-o", str(session)]
    return [sys.executable, "-m", "tracer", *options, "--", *command(environment)]


def test_every_call_is_counted_and_the_launch_path_is_seen(
    environment: dict[str, str], tmp_path: Path
) -> None:
    session_path = tmp_path / "s.tracer"
    done = subprocess.run(
        recording(session_path, environment),
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    calls = open_session(session_path).frame("cuda_call")
    outer = calls[calls.depth == 0].function.value_counts().to_dict()
    assert outer.get("cuLaunchKernel") == N_LAUNCHES
    assert outer.get("cudaMemsetAsync") == N_SETS + N_SYNCS
    assert outer.get("cudaDeviceSynchronize") == N_SYNCS
    inner = calls[calls.depth > 0].groupby(["function"]).size().to_dict()
    print("driver calls seen inside runtime calls:", inner)
    waits = calls[calls.function == "cudaDeviceSynchronize"].duration_ns
    session = open_session(session_path)
    asleep = session.frame("offcpu") if session.has("offcpu") else None
    n_asleep = 0 if asleep is None else int((asleep.function == "cudaDeviceSynchronize").sum())
    print(f"syncs: median {median(waits)} ns, off-CPU intervals inside them: {n_asleep}")


def test_cost_of_a_recorded_launch(environment: dict[str, str], tmp_path: Path) -> None:
    """Alternating runs; prints the added time per launch, of which none may be missed."""
    plain, recorded = [], []
    for turn in range(3):
        done = subprocess.run(
            command(environment), env=environment, capture_output=True, text=True, timeout=60
        )
        plain.append(json.loads(done.stdout)["launches_ns"] / N_LAUNCHES)
        done = subprocess.run(
            recording(tmp_path / f"{turn}.tracer", environment),
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        recorded.append(json.loads(done.stdout.splitlines()[-1])["launches_ns"] / N_LAUNCHES)
        calls = open_session(tmp_path / f"{turn}.tracer").frame("cuda_call")
        assert (calls.function == "cuLaunchKernel").sum() == N_LAUNCHES
    print(f"launch {median(plain):.0f} ns, recorded {median(recorded):.0f} ns")
