"""The device's time: order, queues, waits, turns, deaths; of real processes, by its truth."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time

import numpy as np
import pytest

from tests.tracer.simulated.conftest import Machine

KERNEL, GRAPH = 1, 2
ABORTED = 2


def durations_us(rows: np.ndarray) -> np.ndarray:
    return (rows["end_ns"] - rows["start_ns"]) / 1000


def wait_for(condition: object, timeout_s: float = 10) -> None:
    assert callable(condition)
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


@pytest.mark.parametrize("runtime", [12, 13])
@pytest.mark.parametrize("options", [(), ("twin=1",), ("stub=1",)])
def test_a_stream_is_in_order(machine: Machine, runtime: int, options: tuple[str, ...]) -> None:
    machine.launch(f"cudart={runtime}", "launches=500", "kernel_us=20", *options)
    rows = machine.device.truth()
    assert len(rows) == 500
    assert np.all(rows["kind"] == KERNEL)
    assert np.all(durations_us(rows) == 20)
    assert np.all(rows["start_ns"] >= rows["submit_ns"])
    assert np.all(rows["start_ns"][1:] >= rows["end_ns"][:-1])
    assert machine.device.kernel_name(int(rows["kernel"][0])) == "launcher_kernel"
    assert machine.device.totals().busy_ns == 500 * 20_000


def test_a_full_queue_blocks_the_launch(machine: Machine) -> None:
    machine.device.set("queue_depth", 64, device=0)
    end = machine.launch("launches=264", "kernel_us=1000", "end_sync=0")
    assert end["wall_us"] >= 190_000  # 264 launches, of which 64 fit
    machine.device.set("queue_depth", 1024, device=0)
    end = machine.launch("launches=264", "kernel_us=1000", "end_sync=0")
    assert end["wall_us"] < 150_000


@pytest.mark.parametrize(
    ("options", "variables", "spins"),
    [
        ((), {}, False),
        (("flags=1",), {}, True),
        (("flags=4",), {"TRACER_SIM_SYNC": "spin"}, False),
        ((), {"TRACER_SIM_SYNC": "spin"}, True),
        (("flags=2",), {}, True),
    ],
)
def test_waits_sleep_or_spin(
    machine: Machine, options: tuple[str, ...], variables: dict[str, str], spins: bool
) -> None:
    process = ("launches=20", "sync=1", "kernel_us=10000", *options)
    end = machine.launch(*process, **variables)
    assert end["wall_us"] >= 200_000
    # A spinning process on a busy machine may be kept off the CPU, but does not give it up.
    assert end["cpu_us"] > 60_000 if spins else end["cpu_us"] < 40_000


def two_at_once(machine: Machine, **variables: str) -> np.ndarray:
    options = ("launches=50", "kernel_us=7000", "share=0.5")
    processes = [machine.start(*options, **variables) for _ in range(2)]
    for process in processes:
        machine.finish(process)
    rows = machine.device.truth()
    pids = sorted({p.pid for p in processes})
    assert sorted(set(rows["pid"])) == pids
    begin = max(rows["start_ns"][rows["pid"] == pid].min() for pid in pids)
    end = min(rows["end_ns"][rows["pid"] == pid].max() for pid in pids)
    together: np.ndarray = rows[(rows["start_ns"] >= begin) & (rows["end_ns"] <= end)]
    assert len(together) > 20
    return together


def test_processes_take_turns(machine: Machine) -> None:
    together = two_at_once(machine)
    assert machine.device.totals().switches > 50
    # While one runs the other waits, so a kernel of several slices takes about twice as long.
    assert 12_000 < durations_us(together).mean() < 17_000


def test_processes_in_mps_overlap(machine: Machine) -> None:
    pipe = machine.device.path.with_name("mps")
    machine.device.start_mps(pipe)
    together = two_at_once(machine, CUDA_MPS_PIPE_DIRECTORY=str(pipe))
    assert machine.device.totals().switches == 0
    assert np.all(durations_us(together) == 7000)


def test_a_process_without_the_pipe_is_outside_mps(machine: Machine) -> None:
    machine.device.start_mps(machine.device.path.with_name("mps"))
    inside = machine.start(
        "launches=0",
        "rate=100",
        CUDA_MPS_PIPE_DIRECTORY=str(machine.device.path.with_name("mps")),
    )
    outside = machine.start("launches=0", "rate=100", CUDA_MPS_PIPE_DIRECTORY="/nowhere")
    clients = {c.pid: c.is_in_mps for c in machine.device.clients()}
    assert clients == {inside.pid: True, outside.pid: False}
    machine.device.set_mps(outside.pid, True)
    assert all(c.is_in_mps for c in machine.device.clients())


@pytest.mark.parametrize(("share", "takes_us"), [(0.25, 1000), (1, 4000)])
def test_streams_share_the_device(machine: Machine, share: float, takes_us: int) -> None:
    machine.launch("launches=80", "streams=4", "kernel_us=1000", f"share={share}")
    rows = machine.device.truth()
    middle = rows[8:-8]
    assert len(set(rows["stream"])) == 4
    assert np.median(durations_us(middle)) == pytest.approx(takes_us, rel=0.02)


def test_captured_launches_run_only_when_replayed(machine: Machine) -> None:
    machine.launch("launches=20", "graph=30", "kernel_us=10", "sync=1")
    rows = machine.device.truth()
    assert len(rows) == 20
    assert np.all(rows["kind"] == GRAPH)
    assert np.all(rows["count"] == 30)
    assert np.all(durations_us(rows) == 300)


def test_slow_clock_and_slow_memory(machine: Machine) -> None:
    machine.device.set("clock_factor", 0.5, device=0)
    machine.launch("launches=10", "kernel_us=1000", "memory_us=400")
    assert set(durations_us(machine.device.truth())) == {2000}
    machine.device.set("clock_factor", 1, device=0)
    machine.device.set("memory_factor", 0.1, device=0)
    machine.launch("launches=10", "kernel_us=1000", "memory_us=400")
    assert set(durations_us(machine.device.truth())) == {4000}


def test_a_hung_kernel_holds_the_wait_until_released(machine: Machine) -> None:
    process = machine.start("launches=10", "kernel_us=100", "hang=5")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.7)
    assert len(machine.device.truth()) == 4
    busy = machine.device.totals().busy_ns
    assert busy > 400_000_000  # a kernel that hangs keeps the device busy
    machine.device.release_hangs()
    machine.finish(process)
    assert len(machine.device.truth()) == 6


def test_a_killed_process_leaves_the_others_running(machine: Machine) -> None:
    victim = machine.start("launches=10", "kernel_us=100", "hang=5")
    survivor = machine.start("launches=0", "rate=200", "kernel_us=500", "sync=1")
    wait_for(lambda: survivor.pid in set(machine.device.truth()["pid"]))
    victim.send_signal(signal.SIGKILL)
    victim.wait(10)
    wait_for(lambda: [c.pid for c in machine.device.clients()] == [survivor.pid])
    rows = machine.device.truth()
    dead = rows[rows["pid"] == victim.pid]
    assert list(dead["flags"] & ABORTED) == [ABORTED]
    time.sleep(0.1)
    assert set(machine.device.truth()["pid"]) == {survivor.pid}


def test_kills_at_any_moment(machine: Machine) -> None:
    survivor = machine.start("launches=0", "kernel_us=50", "sync=4")
    for seed in range(8):
        victim = machine.start("launches=0", "kernel_us=1", "cudart=13")
        time.sleep(0.02 + 0.01 * random.Random(seed).random())
        victim.kill()
        victim.wait(10)
        with contextlib.suppress(Exception):
            machine.device.truth()
    machine.device.truth()
    wait_for(lambda: [c.pid for c in machine.device.clients()] == [survivor.pid])
    time.sleep(0.1)
    assert set(machine.device.truth()["pid"]) == {survivor.pid}


def test_the_stub_can_launch_faster_than_any_real_one(machine: Machine) -> None:
    end = machine.launch("launches=200000", "kernel_us=0.1")
    assert end["launches"] / end["cpu_us"] > 0.1  # a tenth of what a quiet machine does


def test_devices_are_independent(two_devices: Machine) -> None:
    machine = two_devices
    for device in (0, 1):
        machine.launch("launches=50", "kernel_us=100", f"device={device}")
    assert [machine.device.totals(d).busy_ns for d in (0, 1)] == [5_000_000, 5_000_000]
    assert list(machine.device.truth()["device"]) == [0] * 50 + [1] * 50


def test_without_a_machine_there_is_no_device(machine: Machine) -> None:
    done = machine.python(
        "import ctypes; print(ctypes.CDLL('libcudart.so.12').cudaSetDevice(0))",
        TRACER_SIM_STATE="/nowhere",
    )
    assert done.stdout.strip() == "100"
    assert "no simulated device" in done.stderr
