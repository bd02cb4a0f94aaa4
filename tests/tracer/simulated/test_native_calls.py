"""Calls of one process: events, copies, memory, the default stream, first use, collectives."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.tracer.simulated.conftest import Machine

COPY_IN, COPY_OUT, COPY_LOCAL, COLLECTIVE = 3, 4, 5, 7

PRELUDE = """
import ctypes, os, time
from ctypes import byref, c_void_p, c_float, c_int, c_size_t, c_uint, c_ulonglong
from tracer.simulated.cuda import Cuda, Grid
cuda = Cuda(12)
rt, sim = cuda._runtime, ctypes.CDLL("libtracersim.so")
grid = Grid(1, 32)
cuda.set_device(0, 4)
kernel = cuda.register(["k"])["k"]
stream = cuda.stream()
"""


def run(machine: Machine, code: str, **variables: str) -> list[str]:
    done = machine.python(PRELUDE + code, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_events_measure_the_device(machine: Machine) -> None:
    out = run(
        machine,
        """
a, b = c_void_p(), c_void_p()
rt.cudaEventCreate(byref(a)); rt.cudaEventCreate(byref(b))
rt.cudaEventRecord(a, c_void_p(stream))
cuda.launch(kernel, grid, stream, 20_000_000)
rt.cudaEventRecord(b, c_void_p(stream))
print(rt.cudaEventQuery(b), rt.cudaStreamQuery(c_void_p(stream)))
print(rt.cudaEventSynchronize(b), rt.cudaEventQuery(b))
ms = c_float(); rt.cudaEventElapsedTime(byref(ms), a, b); print(ms.value)
""",
    )
    assert out[:4] == ["600", "600", "0", "0"]
    assert 20 <= float(out[4]) < 25


def test_a_stream_waits_for_an_event_of_another(machine: Machine) -> None:
    run(
        machine,
        """
other = cuda.stream()
cuda.launch(kernel, grid, stream, 5_000_000)
e = c_void_p(); rt.cudaEventCreateWithFlags(byref(e), c_uint(2))
rt.cudaEventRecord(e, c_void_p(stream))
rt.cudaStreamWaitEvent(c_void_p(other), e, c_uint(0))
cuda.launch(kernel, grid, other, 1_000_000)
cuda.synchronize(other)
""",
    )
    first, second = machine.device.truth()
    assert second["stream"] != first["stream"]
    assert second["start_ns"] >= first["end_ns"]


def test_the_default_stream_orders_blocking_streams(machine: Machine) -> None:
    run(
        machine,
        """
blocking = c_void_p(); rt.cudaStreamCreate(byref(blocking))
cuda.launch(kernel, grid, blocking.value, 3_000_000)
cuda.launch(kernel, grid, 0, 1_000_000)
cuda.launch(kernel, grid, blocking.value, 2_000_000)
cuda.launch(kernel, grid, stream, 500_000)
rt.cudaDeviceSynchronize()
""",
    )
    rows = machine.device.truth()
    ordered = rows[rows["stream"] != rows["stream"][rows["end_ns"].argmin()]]
    assert len(rows) == 4 and len(ordered) == 3
    ordered = ordered[np.argsort(ordered["submit_ns"])]
    assert np.all(ordered["start_ns"][1:] >= ordered["end_ns"][:-1])


def test_copies_take_the_link_and_give_zeros(machine: Machine) -> None:
    out = run(
        machine,
        """
size = 50_000_000
device, pinned = cuda.malloc(size), cuda.malloc_host(size)
pageable = ctypes.create_string_buffer(b"x" * 100, 100)
cuda.copy(device, pinned, size, 1, stream)
cuda.copy(device, device + 1024, 1024, 3, stream)
cuda.synchronize(stream)
cuda.copy_and_wait(ctypes.addressof(pageable), device, 100, 2)
print(set(pageable.raw) == {0})
""",
    )
    assert out == ["True"]
    rows = machine.device.truth()
    assert list(rows["kind"]) == [COPY_IN, COPY_LOCAL, COPY_OUT]
    seconds = 50e6 / machine.device.get("link_bandwidth", 0)
    assert (rows["end_ns"] - rows["start_ns"])[0] == pytest.approx(seconds * 1e9, rel=0.01)
    assert machine.device.totals().rx_bytes == pytest.approx(50e6, rel=0.01)


def test_memory_is_counted_and_ends(machine: Machine) -> None:
    out = run(
        machine,
        """
free, total = c_size_t(), c_size_t()
def left():
    rt.cudaMemGetInfo(byref(free), byref(total)); return free.value
before = left()
p = c_void_p(); print(rt.cudaMalloc(byref(p), c_size_t(1 << 30)), before - left())
q = c_void_p(); print(rt.cudaMalloc(byref(q), c_size_t(80_000_000_000)))
print(rt.cudaGetLastError(), rt.cudaGetLastError())
print(rt.cudaFree(p), before - left())
""",
    )
    assert out == ["0", str(1 << 30), "2", "2", "0", "0", "0"]


def test_errors_are_the_real_ones(machine: Machine) -> None:
    out = run(
        machine,
        """
from tracer.simulated.cuda import _Dim3
args = (c_void_p * 1)()
one = _Dim3(1, 1, 1)
print(rt.cudaLaunchKernel(c_void_p(12345), one, one, args, 0, None))
print(rt.cudaLaunchKernel(c_void_p(kernel), one, _Dim3(2048, 1, 1), args, 0, None))
print(rt.cudaLaunchKernel(c_void_p(kernel), _Dim3(0, 1, 1), one, args, 0, None))
print(rt.cudaSetDevice(7))
""",
    )
    assert out == ["98", "9", "9", "101"]


def test_a_fork_of_a_cuda_process_has_no_device(machine: Machine) -> None:
    out = run(
        machine,
        """
pid = os.fork()
if pid == 0:
    os._exit(rt.cudaDeviceSynchronize())
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
cuda.launch(kernel, grid, stream, 1000); cuda.synchronize(stream); print("alive")
""",
    )
    assert out == ["3", "alive"]


def test_first_use_burns_cpu_once(machine: Machine) -> None:
    machine.device.set("module_load_ns", 40e6)
    machine.device.set("function_load_ns", 10e6)
    out = run(
        machine,
        """
def cost():
    t = time.thread_time_ns(); cuda.launch(kernel, grid, stream, 1000)
    return (time.thread_time_ns() - t) // 1_000_000
print(cost(), cost())
kernel = cuda.register(["second"])["second"]
print(cost())
""",
    )
    first, again, other_module = (int(x) for x in out)
    assert 50 <= first < 100 and again == 0 and 50 <= other_module < 100


def test_capture_records_and_forbids_waiting(machine: Machine) -> None:
    out = run(
        machine,
        """
cuda.begin_capture(stream)
cuda.launch(kernel, grid, stream, 1000)
status = c_int(); rt.cudaStreamIsCapturing(c_void_p(stream), byref(status))
print(status.value, rt.cudaStreamSynchronize(c_void_p(stream)))
graph = cuda.end_capture(stream)
print(rt.cudaStreamSynchronize(c_void_p(stream)))
""",
    )
    assert out == ["1", "900", "0"]
    assert len(machine.device.truth()) == 0


def test_a_collective_waits_for_the_last_rank(two_devices: Machine) -> None:
    run(
        two_devices,
        """
sim.tracer_sim_next_collective.argtypes = (ctypes.c_uint64, ctypes.c_uint32)
streams = {0: stream}
rt.cudaSetDevice(1); streams[1] = cuda.stream()
for device, late in ((0, 1_000_000), (1, 30_000_000)):
    rt.cudaSetDevice(device)
    cuda.launch(kernel, grid, streams[device], late)
    sim.tracer_sim_next(c_ulonglong(2_000_000), c_ulonglong(0))
    sim.tracer_sim_next_collective(77, 2)
    cuda._launch(kernel, grid.grid, grid.block, cuda._arguments, 0, streams[device])
for device in (0, 1):
    rt.cudaSetDevice(device); cuda.synchronize(streams[device])
""",
    )
    rows = two_devices.device.truth()
    ranks = rows[rows["kind"] == COLLECTIVE]
    assert sorted(ranks["device"]) == [0, 1]
    assert ranks["end_ns"][0] == ranks["end_ns"][1]
    assert ranks["start_ns"].max() - ranks["start_ns"].min() > 20_000_000
    assert ranks["end_ns"][0] - ranks["start_ns"].max() == 2_000_000


PROGRAM = r"""
#include <cstdio>
__global__ void scale(float *p, float k) { p[threadIdx.x] *= k; }
int main() {
    float *p;
    cudaStream_t s;
    cudaMalloc(&p, 1 << 20);
    cudaStreamCreate(&s);
    for (int i = 0; i < 10; i++) scale<<<4, 256, 64, s>>>(p, 2.f);
    cudaDeviceProp d;
    cudaGetDeviceProperties(&d, 0);
    printf("%d %s %d %d\n", cudaStreamSynchronize(s), d.name, d.multiProcessorCount, d.major);
}
"""


def test_a_program_of_the_real_compiler_runs(machine: Machine, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("there is no nvcc here")
    source = tmp_path / "program.cu"
    source.write_text(PROGRAM)
    command = [nvcc, "-cudart", "shared", str(source), "-o", str(tmp_path / "program")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    done = subprocess.run(
        [str(tmp_path / "program")],
        env=machine.environment(),
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stdout == "0 Simulated GPU 132 9\n"
    rows = machine.device.truth()
    assert len(rows) == 10
    assert machine.device.kernel_name(int(rows["kernel"][0])) == "_Z5scalePff"
