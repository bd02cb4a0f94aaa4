"""Off-CPU intervals of a real launching thread: preempted, sleeping, woken, inside which call."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probes.cuda.calls import CudaCalls
from probes.probe import ProbeError
from probes.scheduler.offcpu import OffCpu
from probes.targets import TargetTree
from tests.probes.traced import build_library, build_program, recording, started

pytestmark = pytest.mark.root

LAUNCH = "cudaLaunchKernel(A(0x1000), g, b, 0, 77, A(0x99));"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("offcpu")


@pytest.fixture(scope="module")
def library(folder: Path) -> Path:
    return build_library(folder)


def drain_for(found, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
        found.drain()


def test_a_hog_on_the_same_cpu_is_named_as_the_taker(folder, library):
    cpu = max(os.sched_getaffinity(0))
    program = build_program(folder, library, f"{LAUNCH} for (;;);", "busy")
    pin = ("taskset", "-c", str(cpu))
    preempted: list[dict] = []
    with started(program, pin) as target, recording(target.pid, with_offcpu=True) as found:
        target.go()
        hog = subprocess.Popen([*pin, sys.executable, "-c", "while True: pass"])
        deadline = time.monotonic() + 20
        try:
            while time.monotonic() < deadline:
                drain_for(found, 0.3)
                # Others take the CPU too on a busy machine.
                rows = [row for row in found.rows("offcpu") if row["taker_tid"] == hog.pid]
                preempted = [row for row in rows if row["state"] == "running"]
                named = [row for row in preempted if row["taker_name"].startswith("python")]
                if len(named) >= 3 and any(row["occupant_tid"] == hog.pid for row in named):
                    break
        finally:
            hog.kill()
            hog.wait()
    assert len(preempted) >= 3
    for row in preempted:
        assert row["tid"] == target.pid and row["pid"] == target.pid
        assert row["runnable_ns"] == row["duration_ns"] > 0
        assert row["cpu_from"] == cpu
        assert row["waker_tid"] is None and row["call_id"] is None
    assert any(row["taker_name"].startswith("python") for row in preempted)
    assert any(row["occupant_tid"] == hog.pid for row in preempted)


def test_a_sleeping_thread_names_its_waker_and_its_call(folder, library):
    body = f"{LAUNCH} cudaDeviceSynchronize(); getchar(); {LAUNCH}"
    program = build_program(folder, library, body, "sleeper")
    options = {"SYNC": "150000"}
    with (
        started(program, **options) as target,
        recording(target.pid, with_offcpu=True) as found,
    ):
        target.go()
        drain_for(found, 0.4)
        target.go()
        target.wait_done()
        drain_for(found, 0.3)
    rows = [row for row in found.rows("offcpu") if row["state"] == "sleeping"]
    (sync,) = found.named("cudaDeviceSynchronize")
    inside = [row for row in rows if row["function"] == "cudaDeviceSynchronize"]
    longest = max(inside, key=lambda row: row["duration_ns"])
    assert longest["call_id"] == sync["call_id"]
    assert 140_000_000 < longest["duration_ns"] <= sync["duration_ns"]
    # A timer woke it: what the CPU did at that moment is no task of interest, but it is told.
    assert longest["runnable_ns"] < longest["duration_ns"]
    waiting = [row for row in rows if row["call_id"] is None and row["duration_ns"] > 10**8]
    assert waiting and waiting[-1]["waker_pid"] == os.getpid()
    assert waiting[-1]["runnable_ns"] < 50_000_000


def test_only_threads_that_launch_are_followed(folder, library):
    thread = "void *idle(void *x) { for (int i = 0; i < 20; i++) usleep(1000); return 0; }"
    body = (
        f"{thread} MAIN {LAUNCH} pthread_t t; pthread_create(&t, 0, idle, 0); pthread_join(t, 0);"
    )
    program = build_program(folder, library, body, "threads")
    with started(program) as target, recording(target.pid, with_offcpu=True) as found:
        target.run()
        drain_for(found, 0.2)
    assert {row["tid"] for row in found.rows("offcpu")} == {target.pid}


def test_it_does_not_run_without_the_calls():
    probe = OffCpu(CudaCalls(TargetTree([os.getpid()])))
    with pytest.raises(ProbeError, match="found by their CUDA calls"):
        probe.start()
