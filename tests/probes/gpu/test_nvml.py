from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.manifest import Gpu
from analysis.schema import EVENT, GPU_INSTANCE_SAMPLE, GPU_PROCESS, GPU_SAMPLE
from probes.gpu import nvml
from probes.gpu.nvml import NvmlProbe, inventory
from probes.gpu.rows import ToMonotonic
from probes.probe import Batch, ProbeError

Faults = Callable[..., Path]
Row = dict[str, Any]
MS = 1_000_000


class Targets:
    def pids(self) -> set[int]:
        return {os.getpid()}


class Recording:
    """Rows of a probe by table."""

    def __init__(self, probe: NvmlProbe) -> None:
        self.probe = probe
        self.samples: list[Row] = []
        self.instances: list[Row] = []
        self.processes: list[Row] = []
        self.events: list[Row] = []

    def drain(self) -> None:
        began = time.monotonic()
        self.add(list(self.probe.drain(time.monotonic_ns())))
        assert time.monotonic() - began < 1.0

    def add(self, batches: list[Batch]) -> None:
        for batch in batches:
            assert batch.rows.schema.equals(batch.table.arrow_schema())
            place = {
                GPU_SAMPLE: self.samples,
                GPU_INSTANCE_SAMPLE: self.instances,
                GPU_PROCESS: self.processes,
                EVENT: self.events,
            }
            place[batch.table].extend(batch.rows.to_pylist())

    def until(self, condition: Callable[[], bool], timeout_s: float = 10) -> bool:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            self.drain()
            if condition():
                return True
            time.sleep(0.05)
        return False

    def of(self, device: int, source: str = "nvml") -> list[Row]:
        return [row for row in self.samples if (row["device"], row["source"]) == (device, source)]

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events]


@contextmanager
def recording(mock: Path, faults: Path, **more: Any) -> Iterator[Recording]:
    env = {"MOCK_NVML": str(faults), "MOCK_COMPUTE": f"{os.getpid()}", **more.pop("env", {})}
    options = {"interval_ns": 20 * MS, "slow_interval_ns": 100 * MS, "deadline_ns": 400 * MS}
    options.update(more)
    probe = NvmlProbe(Targets(), library_dir=mock, env=env, **options)
    result = Recording(probe)
    probe.start()
    try:
        yield result
    finally:
        result.add(list(probe.stop()))


def test_what_is_sampled(mock_nvml: Path, faults: Faults) -> None:
    with recording(mock_nvml, faults()) as rec:
        assert rec.until(lambda: len(rec.of(0)) > 20 and len(rec.of(1)) > 20)
        assert rec.until(lambda: any(row["nvlink_tx_bytes_per_s"] for row in rec.of(0)))
    assert not rec.events
    row = next(row for row in rec.of(1) if row["temperature_celsius"] is not None)
    expected = {
        "util_pct": 43.0,
        "memory_util_pct": 7.0,
        "power_mw": 310_000,
        "power_instant_mw": 420_000,
        "energy_mj": 5_000_000_000,
        "power_limit_mw": 700_000,
        "power_limit_requested_mw": 650_000,
        "power_limit_default_mw": None,
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 2619,
        "sm_clock_max_mhz": 1980,
        "clock_reasons": 4,
        "temperature_celsius": 61,
        "memory_used_bytes": 20 << 30,
        "memory_total_bytes": 80 << 30,
    }
    assert {name: row[name] for name in expected} == expected
    assert row["query_ns"] > 0
    times = [row["time_ns"] for row in rec.of(0)]
    assert times == sorted(times)
    assert len(set(times)) == len(times)
    report = rec.probe.report()
    assert report.n_rows == len(rec.samples) + len(rec.instances) + len(rec.processes)
    assert report.cost_ns and report.cost_ns > 0
    assert report.details and report.details["driver_version"] == "590.48.01"


def test_slow_values_come_once_and_settings_hold(mock_nvml: Path, faults: Faults) -> None:
    with recording(mock_nvml, faults()) as rec:
        assert rec.until(lambda: len(rec.of(0)) > 40)
    rows = rec.of(0)
    generations = [row["pcie_link_gen"] for row in rows]
    assert 5 in generations
    assert generations.count(None) > len(rows) / 2
    assert next(row["pcie_link_width"] for row in rows if row["pcie_link_gen"]) == 16
    rates = {row["pcie_tx_bytes_per_s"] for row in rows} - {None}
    assert rates == {1_024_000.0}
    links = [row["nvlink_tx_bytes_per_s"] for row in rows if row["nvlink_tx_bytes_per_s"]]
    assert all(0.5e6 < rate < 2e6 for rate in links)  # 1 KiB a millisecond
    first = next(i for i, row in enumerate(rows) if row["power_limit_mw"])
    assert all(row["power_limit_mw"] == 700_000 for row in rows[first:])


def test_processes_and_their_shares(mock_nvml: Path, faults: Faults) -> None:
    parent = os.getppid()
    env = {"MOCK_COMPUTE": f"{os.getpid()},{parent},4194303", "MOCK_MPS": f"{parent}"}
    with recording(mock_nvml, faults(), env=env) as rec:
        assert rec.until(lambda: len(rec.processes) > 8)
    assert {row["pid"] for row in rec.processes} == {os.getpid(), parent}
    own = [row for row in rec.processes if row["pid"] == os.getpid()]
    assert {row["type"] for row in own} == {"C"}
    assert {row["sm_util_pct"] for row in own} == {100.0}
    assert {row["memory_util_pct"] for row in own} == {3.0}
    assert {row["memory_bytes"] for row in own} == {1 << 30}
    assert all(row["is_target"] for row in own)
    assert own[0]["name"] == Path("/proc/self/comm").read_text().strip()
    other = [row for row in rec.processes if row["pid"] == parent]
    assert {row["type"] for row in other} == {"M+C"}
    assert {row["memory_bytes"] for row in other} == {1 << 30}
    assert not any(row["is_target"] for row in other)
    assert "1 processes on the GPUs are not visible here" in rec.probe.report().note


def test_the_drivers_own_samples_are_mapped_to_monotonic(mock_nvml: Path, faults: Faults) -> None:
    shift_ns = 1118 * 10**9

    def mapping(shift_ns: int) -> ToMonotonic:
        offset = time.time_ns() - time.monotonic_ns() - shift_ns
        return lambda realtime_ns, _: (realtime_ns - offset, np.full(realtime_ns.size, 5000))

    with recording(mock_nvml, faults(), to_monotonic=mapping(0)) as rec:
        assert rec.until(lambda: len(rec.of(0, "nvml_buffer")) > 8)
    rows = rec.of(0, "nvml_buffer")
    assert {row["util_pct"] for row in rows} == {55.0}
    assert {row["memory_util_pct"] for row in rows} == {None}
    assert all(row["sample_ns"] == row["time_ns"] for row in rows)
    steps = [b["time_ns"] - a["time_ns"] for a, b in pairwise(rows)]
    assert all(abs(step - 100 * MS) < 2 * MS for step in steps)
    assert any(
        row["period_ns"] is not None and abs(row["period_ns"] - 100 * MS) < MS for row in rec.of(0)
    )

    with recording(mock_nvml, faults(), to_monotonic=mapping(shift_ns)) as shifted:
        assert shifted.until(lambda: len(shifted.of(0)) > 20)
        assert shifted.until(lambda: shifted.probe.report().n_lost > 0)
    assert not shifted.of(0, "nvml_buffer")


def test_what_is_not_supported_is_null(mock_nvml: Path, faults: Faults) -> None:
    path = faults(
        "nvmlDeviceGetTemperature * 3",
        "nvmlDeviceGetFieldValues * 13",
        "nvmlDeviceGetMemoryInfo 1 25",
        "nvmlDeviceGetClockInfo 1 999",
        "nvmlDeviceGetUtilizationRates 1 3",
        "nvmlDeviceGetComputeRunningProcesses_v3 * 2",
    )
    with recording(mock_nvml, path) as rec:
        assert rec.until(lambda: len(rec.of(1)) > 20)
    assert not rec.events
    row = rec.of(1)[-1]
    for name in ("temperature_celsius", "memory_used_bytes", "util_pct", "sm_clock_mhz"):
        assert row[name] is None, name
    assert row["power_mw"] == 300_000
    assert row["power_instant_mw"] is None
    details = rec.probe.report().details
    assert details and any("nvmlDeviceGetClockInfo" in name for name in details["errors"])


def test_a_lost_gpu_is_one_event_and_a_gap_and_the_other_goes_on(
    mock_nvml: Path, faults: Faults
) -> None:
    with recording(mock_nvml, faults(), retry_ns=1500 * MS) as rec:
        assert rec.until(lambda: len(rec.of(1)) > 3)
        faults("* 1 15")
        assert rec.until(lambda: bool(rec.events))
        n_lost, n_other = len(rec.of(1)), len(rec.of(0))
        assert rec.until(lambda: len(rec.of(0)) > n_other + 20)
        assert len(rec.of(1)) == n_lost
        faults()
        assert rec.until(lambda: "source_recovered" in rec.kinds())
        assert rec.until(lambda: len(rec.of(1)) > n_lost)
    assert rec.kinds() == ["source_lost", "source_recovered"]
    assert rec.events[0]["name"] == "nvml gpu 1"
    assert "GPU is lost" in rec.events[0]["detail"]


@pytest.mark.parametrize("code", [1, 9, 18])
def test_a_driver_that_goes_is_told_and_found_again(
    mock_nvml: Path, faults: Faults, code: int
) -> None:
    with recording(mock_nvml, faults(), retry_ns=400 * MS) as rec:
        assert rec.until(lambda: len(rec.of(0)) > 3 and len(rec.of(1)) > 3)
        faults(f"* * {code}")
        assert rec.until(lambda: rec.kinds().count("source_lost") == 3)
        assert "did not answer at the end" in rec.probe.report().note
        n_before = len(rec.samples)
        assert not rec.until(lambda: len(rec.samples) > n_before, timeout_s=1.0)
        faults()
        assert rec.until(lambda: rec.kinds().count("source_recovered") == 3)
    assert sorted(event["name"] for event in rec.events[:3]) == ["nvml", "nvml gpu 0", "nvml gpu 1"]
    assert all("nvml" in event["detail"] and "says:" in event["detail"] for event in rec.events[:3])
    assert rec.probe.report().note == ""


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeRunningProcesses_v3"]
)
def test_a_call_that_never_returns_costs_one_device_a_gap(
    mock_nvml: Path, faults: Faults, function: str
) -> None:
    with recording(mock_nvml, faults(), retry_ns=1500 * MS) as rec:
        assert rec.until(lambda: len(rec.of(1)) > 3 and len(rec.of(0)) > 3)
        faults(f"{function} 1 hang")
        assert rec.until(lambda: bool(rec.events))
        assert rec.kinds() == ["source_lost"]
        assert f"{function} has not returned for" in rec.events[0]["detail"]
        n_lost, n_other = len(rec.of(1)), len(rec.of(0))
        assert rec.until(lambda: len(rec.of(0)) > n_other + 20)
        assert len(rec.of(1)) == n_lost
        faults()
        assert rec.until(lambda: "source_recovered" in rec.kinds())
        assert rec.until(lambda: len(rec.of(1)) > n_lost)
    assert rec.kinds() == ["source_lost", "source_recovered"]
    assert rec.probe.report().n_lost == 0


def test_a_library_that_hangs_at_once_does_not_hold_up_anything(
    mock_nvml: Path, faults: Faults
) -> None:
    began = time.monotonic()
    with recording(mock_nvml, faults("nvmlInit_v2 * hang", "nvmlInitWithFlags * hang")) as rec:
        assert time.monotonic() - began < 2
        assert rec.until(lambda: bool(rec.events))
        assert "nvmlInit has not returned" in rec.events[0]["detail"]
        assert rec.events[0]["name"] == "nvml"
    assert rec.kinds() == ["source_lost"]
    assert "NVML did not answer" in rec.probe.report().note


def test_a_sampler_that_is_killed_is_replaced(mock_nvml: Path, faults: Faults) -> None:
    with recording(mock_nvml, faults(), retry_ns=100 * MS) as rec:
        assert rec.until(lambda: len(rec.of(0)) > 3)
        [sampler] = rec.probe._samplers
        os.kill(sampler.pid, 9)
        assert rec.until(lambda: rec.kinds().count("source_recovered") == 2)
    assert rec.kinds() == ["source_lost"] * 2 + ["source_recovered"] * 2
    assert "exit code -9" in rec.events[0]["detail"]


def test_gpm_where_there_is_it_each_metric_by_itself(mock_nvml: Path, faults: Faults) -> None:
    with recording(mock_nvml, faults()) as rec:
        assert rec.until(lambda: len(rec.of(0, "gpm")) > 3)
    assert not rec.of(1, "gpm")
    row = rec.of(0, "gpm")[-1]
    expected = {
        "sm_active_pct": 87.5,
        "sm_occupancy_pct": 31.0,
        "tensor_active_pct": None,
        "dram_active_pct": None,
        "pcie_tx_bytes_per_s": 2.0 * 2**20,
        "n_context_switches": 500,
        "context_switch_active_pct": 1.5,
        "util_pct": None,
    }
    assert {name: row[name] for name in expected} == expected
    assert 50 * MS < row["period_ns"] < 2000 * MS


def test_it_backs_off_when_the_driver_is_slow(mock_nvml: Path, faults: Faults) -> None:
    with recording(mock_nvml, faults("nvmlDeviceGetUtilizationRates * slow")) as rec:
        assert rec.until(lambda: "asked less often" in rec.probe.report().note, 15)
    assert not rec.events
    assert any(row["query_ns"] > 25 * MS for row in rec.of(0))


def test_an_xid_is_an_event(mock_nvml: Path, faults: Faults) -> None:
    with recording(mock_nvml, faults(), env={"MOCK_XID": "79"}) as rec:
        assert rec.until(lambda: bool(rec.events))
    [event] = rec.events
    assert (event["kind"], event["name"]) == ("xid", "xid 79")
    assert "GPU 1" in event["detail"]


def test_an_xid_is_an_event_where_another_gpu_is_lost(mock_nvml: Path, faults: Faults) -> None:
    """Neither a GPU that takes no registration nor a wait that fails ends the waiting."""
    losing = faults("nvmlDeviceRegisterEvents 0 15", "nvmlEventSetWait_v2 * 15", "calm 1 1")
    with recording(mock_nvml, losing, env={"MOCK_XID": "79"}) as rec:
        assert rec.until(lambda: len(rec.of(1)) > 20)
        faults()
        assert rec.until(lambda: "xid" in rec.kinds())
    [event] = [event for event in rec.events if event["kind"] == "xid"]
    assert event["name"] == "xid 79" and "GPU 1" in event["detail"]


def test_after_a_reset_a_gpu_is_found_by_who_initialises_the_library_anew(
    mock_nvml: Path, faults: Faults
) -> None:
    with recording(mock_nvml, faults(), retry_ns=300 * MS) as rec:
        assert rec.until(lambda: len(rec.of(1)) > 3)
        faults("reset 1 1")
        assert rec.until(lambda: "source_lost" in rec.kinds())
        n_lost, n_other = len(rec.of(1)), len(rec.of(0))
        assert rec.until(lambda: "source_recovered" in rec.kinds())
        assert rec.until(lambda: len(rec.of(1)) > n_lost + 3 and len(rec.of(0)) > n_other + 3)
    assert rec.kinds() == ["source_lost", "source_recovered"]
    times = [row["time_ns"] for row in rec.of(0)]
    assert max(after - before for before, after in pairwise(times)) < 1000 * MS
    assert {row["util_pct"] for row in rec.of(1)} == {43}


def test_when_all_gpus_are_lost_each_is_told_once_and_found_again(
    mock_nvml: Path, faults: Faults
) -> None:
    with recording(mock_nvml, faults(), retry_ns=300 * MS) as rec:
        assert rec.until(lambda: len(rec.of(1)) > 3)
        faults("* 0 15", "* 1 15")
        assert rec.until(lambda: rec.kinds().count("source_lost") == 2)
        assert not rec.until(lambda: len(rec.events) > 2, timeout_s=1.0)
        faults()
        assert rec.until(lambda: rec.kinds().count("source_recovered") == 2)
    assert sorted(event["name"] for event in rec.events) == ["nvml gpu 0"] * 2 + ["nvml gpu 1"] * 2


def test_a_gpu_keeps_its_number_when_another_is_gone_from_the_bus(
    mock_nvml: Path, faults: Faults
) -> None:
    """The library of a new sampler numbers those that are left from 0 on."""
    with recording(mock_nvml, faults(), retry_ns=300 * MS, env={"MOCK_XID": "79"}) as rec:
        assert rec.until(lambda: len(rec.of(1)) > 3 and "xid" in rec.kinds())
        faults("gone 0 1", "* 0 15")
        for sampler in rec.probe._samplers:
            os.kill(sampler.pid, 9)
        n_before = len(rec.of(1))
        assert rec.until(lambda: len(rec.of(1)) > n_before + 3)
        assert rec.until(lambda: [e["detail"] for e in rec.events].count(XID_79) == 2)
        assert {row["util_pct"] for row in rec.of(0)} == {42}
        assert {row["util_pct"] for row in rec.of(1)} == {43}
        n_lost = len(rec.of(0))
        faults()
        assert rec.until(lambda: len(rec.of(0)) > n_lost, 20)
    assert [event["name"] for event in rec.events].count("nvml gpu 0") == 2
    gpus = {gpu["index"]: gpu["uuid"] for gpu in (rec.probe.report().details or {})["gpus"]}
    assert gpus == {0: "GPU-mock-0", 1: "GPU-mock-1"}


XID_79 = "Xid 79 on GPU 1, told by NVML"


def test_topology_and_instances_are_told(mock_nvml: Path, faults: Faults) -> None:
    with recording(mock_nvml, faults()) as rec:
        assert rec.until(lambda: bool(rec.samples))
        assert rec.until(lambda: bool((rec.probe.report().details or {})["mig_instances"]))
    details = rec.probe.report().details
    assert details is not None
    assert details["topology"]["ancestor_level"] == {"0-1": 30}
    assert details["health"]["1"]["mig_mode"] == 1
    [instance] = details["mig_instances"]["1"]
    assert instance["gpu_instance"] == 9
    assert instance["memory_used_bytes"] == 20 << 30


@pytest.mark.parametrize("has_gpm", [False, True])
def test_instances_of_a_gpu_are_sampled_apart_from_it(
    mock_nvml: Path, faults: Faults, has_gpm: bool
) -> None:
    env = {"MOCK_MIG_GPM": "1"} if has_gpm else {}
    with recording(mock_nvml, faults(), retry_ns=1500 * MS, env=env) as rec:
        assert rec.until(lambda: len(rec.instances) > 4)
        faults("* 1 15")
        assert rec.until(lambda: bool(rec.events))
        rec.instances.clear()
        n_other = len(rec.of(0))
        assert rec.until(lambda: len(rec.of(0)) > n_other + 10)
        assert rec.instances == []
        faults()
        assert rec.until(lambda: len(rec.of(1)) > 0)
    rows = [row for row in rec.of(1) if row["sm_active_pct"] is not None]
    assert rows == []


def test_what_an_instance_tells(mock_nvml: Path, faults: Faults) -> None:
    for env in ({}, {"MOCK_MIG_GPM": "1"}):
        with recording(mock_nvml, faults(), env=env) as rec:
            assert rec.until(lambda rec=rec: len(rec.instances) > 4)
        row = rec.instances[-1]
        expected = {
            "device": 1,
            "gpu_instance": 9,
            "instance_uuid": "GPU-mock-1",
            "memory_used_bytes": 20 << 30,
            "memory_total_bytes": 80 << 30,
            "source": "gpm" if env else "nvml",
            "sm_active_pct": 87.5 if env else None,
            "sm_occupancy_pct": 31.0 if env else None,
            "dram_active_pct": None,
        }
        assert {name: row[name] for name in expected} == expected
        assert (row["period_ns"] is not None) is bool(env)


def test_inventory_fits_the_manifest(mock_nvml: Path, faults: Faults) -> None:
    found = inventory(mock_nvml, {"MOCK_NVML": str(faults())})
    assert [Gpu(**gpu) for gpu in found.gpus] == [
        Gpu(index, f"Mock {index}", f"GPU-mock-{index}", 80 << 30, 700_000, 1980)
        for index in range(2)
    ]
    assert found.driver_version == "590.48.01"
    assert not found.is_simulated


def test_without_the_library_it_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    with pytest.raises(ProbeError, match="nvidia-smi"):
        NvmlProbe(library_dir=tmp_path, env={"LD_LIBRARY_PATH": str(tmp_path)}).start()
    with pytest.raises(ProbeError, match="nvidia-smi"):
        nvml.gpus(tmp_path)


def test_no_child_is_left_behind(mock_nvml: Path, faults: Faults) -> None:
    with recording(mock_nvml, faults()) as rec:
        assert rec.until(lambda: bool(rec.samples))
        [sampler] = rec.probe._samplers
        pid = sampler.pid
    end = time.monotonic() + 5
    while sampler.exit_code is None and time.monotonic() < end:
        time.sleep(0.02)
    details = rec.probe.report().details
    assert details and details["n_hanging"] == 0
    assert not Path(f"/proc/{pid}").exists()


def test_garbage_pids_do_not_heap_up() -> None:
    probe = NvmlProbe()
    for turn in range(100):
        pids = [(4_200_000 + turn * 500 + i, None) for i in range(500)]
        frame = {"processes": [(1, 0, pids, None, None, {})]}
        probe._take(SimpleNamespace(devices=set()), [frame], 1, [])
    assert 10_000 <= len(probe._unseen) < 11_000
