"""What NVML says of the device, through the real ``nvidia-ml-py``."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.tracer.simulated.conftest import Machine

READ = """
import json, time, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
def pids(f): return sorted(p.pid for p in f(h))
u = n.nvmlDeviceGetUtilizationRates(h)
def per_process():
    try: return {p.pid: p.smUtil for p in n.nvmlDeviceGetProcessUtilization(h, 0)}
    except n.NVMLError as e: return e.value
e0 = n.nvmlDeviceGetTotalEnergyConsumption(h); time.sleep(0.3)
e1 = n.nvmlDeviceGetTotalEnergyConsumption(h)
field = n.nvmlDeviceGetFieldValues(h, [n.NVML_FI_DEV_POWER_AVERAGE, 7])
print(json.dumps(dict(
    driver=n.nvmlSystemGetDriverVersion(), name=n.nvmlDeviceGetName(h), util=u.gpu, memory=u.memory,
    bus=n.nvmlDeviceGetPciInfo(h).busId, count=n.nvmlDeviceGetCount(),
    watts=n.nvmlDeviceGetPowerUsage(h) / 1000, energy_watts=(e1 - e0) / 300,
    clock=n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM),
    most=n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM),
    reasons=n.nvmlDeviceGetCurrentClocksEventReasons(h),
    used=n.nvmlDeviceGetMemoryInfo(h).used, total=n.nvmlDeviceGetMemoryInfo(h).total,
    compute=pids(n.nvmlDeviceGetComputeRunningProcesses),
    mps=pids(n.nvmlDeviceGetMPSComputeRunningProcesses_v3), share=per_process(),
    samples=[s.sampleValue.uiVal for s in
             n.nvmlDeviceGetSamples(h, n.NVML_GPU_UTILIZATION_SAMPLES, 0)[1]][-5:],
    average_mw=field[0].value.uiVal, unknown_field=field[1].nvmlReturn,
    temperature=n.nvmlDeviceGetTemperature(h, 0),
)))
"""


def read(machine: Machine) -> dict[str, Any]:
    done = machine.python(READ)
    assert done.returncode == 0, done.stderr
    reading: dict[str, Any] = json.loads(done.stdout)
    return reading


def test_an_idle_device(machine: Machine) -> None:
    time.sleep(0.3)
    idle = read(machine)
    assert (idle["driver"], idle["name"], idle["count"]) == ("simulated", "Simulated GPU", 1)
    assert idle["util"] == idle["memory"] == 0
    assert idle["watts"] == pytest.approx(70, abs=1)
    assert (idle["clock"], idle["reasons"]) == (345, 1)
    assert idle["compute"] == idle["mps"] == []
    assert idle["share"] == 6  # NVML_ERROR_NOT_FOUND, as the real one without samples
    assert idle["unknown_field"] == 3


def test_a_busy_device(machine: Machine) -> None:
    process = machine.start("launches=0", "kernel_us=1000", "memory_us=500")
    time.sleep(1.5)
    busy = read(machine)
    assert busy["util"] >= 99
    assert 45 <= busy["memory"] <= 55
    assert busy["samples"][-1] >= 99
    assert busy["watts"] == pytest.approx(650, rel=0.03)
    assert busy["energy_watts"] == pytest.approx(650, rel=0.15)
    assert busy["average_mw"] == pytest.approx(650_000, rel=0.03)
    assert busy["clock"] == busy["most"] and busy["reasons"] == 0
    assert busy["compute"] == [process.pid] and busy["mps"] == []
    assert busy["share"][str(process.pid)] >= 99
    assert busy["temperature"] > 40
    assert busy["used"] > 400e6 and busy["total"] == 80_000_000_000


def test_a_device_half_used_for_less_power(machine: Machine) -> None:
    machine.start("launches=0", "kernel_us=5000", "rate=100")
    time.sleep(1.5)
    half = read(machine)
    assert 40 <= half["util"] <= 60
    assert 300 < half["watts"] < 430


def test_a_hung_kernel_is_busy_at_low_power(machine: Machine) -> None:
    machine.start("launches=1", "hang=1")
    time.sleep(1.4)
    hung = read(machine)
    assert hung["util"] == 100
    assert 70 < hung["watts"] < 300


def test_throttling_shows_clock_and_reason(machine: Machine) -> None:
    machine.device.set("clock_factor", 0.5, device=0)
    machine.device.set("clock_reasons", 0x40, device=0)
    machine.start("launches=0", "kernel_us=1000")
    time.sleep(0.2)
    slow = read(machine)
    assert slow["clock"] * 2 == slow["most"]
    assert slow["reasons"] == 0x40


def test_who_is_in_mps(machine: Machine) -> None:
    pipe = machine.device.path.with_name("mps")
    machine.device.start_mps(pipe)
    inside = machine.start("launches=0", "rate=10", CUDA_MPS_PIPE_DIRECTORY=str(pipe))
    outside = machine.start("launches=0", "rate=10", CUDA_MPS_PIPE_DIRECTORY="/nowhere")
    now = read(machine)
    assert now["compute"] == sorted([inside.pid, outside.pid])
    assert now["mps"] == [inside.pid]


GPM = """
import time, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
assert n.nvmlGpmQueryDeviceSupport(h).isSupportedDevice
a, b = n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()
n.nvmlGpmSampleGet(h, a); time.sleep(0.3); n.nvmlGpmSampleGet(h, b)
m = n.c_nvmlGpmMetricsGet_t()
m.version, m.numMetrics, m.sample1, m.sample2 = 1, 3, a, b
for i, metric in enumerate((2, 10, 5)): m.metrics[i].metricId = metric
n.nvmlGpmMetricsGet(m)
print(*(round(m.metrics[i].value) for i in range(3)))
"""


def test_gpm_counts_units_and_memory(machine: Machine) -> None:
    machine.start("launches=0", "kernel_us=1000", "memory_us=250", "share=0.5")
    time.sleep(0.1)
    done = machine.python(GPM)
    assert done.returncode == 0, done.stderr
    units, memory, tensor = (int(x) for x in done.stdout.split())
    assert 48 <= units <= 51
    assert 11 <= memory <= 14
    assert 24 <= tensor <= 26


ONE_CALL = """
import pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
print("ready", flush=True); input()
try: print(n.nvmlDeviceGetUtilizationRates(h).gpu)
except n.NVMLError as e: print("error", e.value)
print(n.nvmlDeviceGetPowerUsage(h) > 0)
"""


def start_reader(machine: Machine) -> subprocess.Popen[str]:
    reader = subprocess.Popen(
        [sys.executable, "-c", ONE_CALL],
        env=machine.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    machine.processes.append(reader)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "ready\n"
    return reader


@pytest.mark.parametrize("fault", [3, 15])
def test_a_function_can_fail(machine: Machine, fault: int) -> None:
    reader = start_reader(machine)
    machine.device.fail_nvml(fault, "nvmlDeviceGetUtilizationRates")
    out, error = reader.communicate("\n", timeout=10)
    assert out.split() == ["error", str(fault), "True"], error


def test_a_call_can_block_until_released(machine: Machine) -> None:
    reader = start_reader(machine)
    machine.device.fail_nvml(1)
    assert reader.stdin is not None
    reader.stdin.write("\n")
    reader.stdin.flush()
    with pytest.raises(subprocess.TimeoutExpired):
        reader.wait(0.5)
    machine.device.fail_nvml(0)
    out, _ = reader.communicate(timeout=10)
    assert out.split() == ["0", "True"]


def test_a_lost_device(machine: Machine) -> None:
    reader = start_reader(machine)
    machine.device.set("lost", 1, device=0)
    out, error = reader.communicate("\n", timeout=10)
    assert out.split()[:2] == ["error", "15"]
    assert "GPU is lost" in error
    done = machine.python("import ctypes; print(ctypes.CDLL('libcudart.so.12').cudaSetDevice(0))")
    assert done.stdout.split() == ["0"]
