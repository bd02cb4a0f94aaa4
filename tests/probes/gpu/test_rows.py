"""What the sampler of NVML sends, and what is made of it, without a sampler."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.schema import GPU_INSTANCE_SAMPLE, GPU_SAMPLE
from probes.clocks import ClockAnchors
from probes.gpu.driver import number
from probes.gpu.inventory import unique_uuids
from probes.gpu.nvml_slow import SlowSampler
from probes.gpu.rows import buffer_rows, clean, process_rows, sample_batch
from tests.probes.test_clocks import FakeClocks, S


@pytest.mark.parametrize("change", ["step -20", "step 1118", "suspend"])
def test_the_drivers_samples_keep_their_order_when_the_wall_clock_is_moved(change: str) -> None:
    """Each second ten samples come with the wall clock's times, of the second before."""
    clocks = FakeClocks()
    anchors = ClockAnchors(clocks.readers())
    anchors.read()
    began = clocks.now
    found: list[tuple[int, float]] = []
    truth: list[tuple[int, float]] = []
    value = 0.0
    for second in range(60):
        if second == 30:
            if change == "suspend":
                clocks.slept += 3600 * S
                clocks.wall_offset += 3600 * S
            else:
                clocks.wall_offset += int(change.split()[1]) * S
            anchors.read()
        samples = []
        for _ in range(10):
            clocks.now += S // 10
            value += 1
            samples.append((clocks.wall() // 1000, value))
            truth.append((clocks.now, value))
        if second % 5 == 4:
            anchors.read()
        rows, n_dropped = buffer_rows(
            [(0, "util_pct", samples)], anchors.to_monotonic_array, began, clocks.now
        )
        assert n_dropped == 0
        found += [(row["time_ns"], row["util_pct"]) for row in rows]
    assert [value for _, value in sorted(found)] == [value for _, value in truth]
    assert max(abs(a - b) for (a, _), (b, _) in zip(found, truth, strict=True)) < 10_000_000


def test_a_stamp_of_no_time_is_dropped_and_counted() -> None:
    clocks = FakeClocks()
    anchors = ClockAnchors(clocks.readers())
    anchors.read()
    samples = [(2**64 - 1, 1.0), (-5, 2.0), (clocks.wall() // 1000, 3.0)]
    mapping = anchors.to_monotonic_array
    rows, n_dropped = buffer_rows([(0, "util_pct", samples)], mapping, 0, clocks.now)
    assert [row["util_pct"] for row in rows] == [3.0] and n_dropped == 2


def test_what_cannot_be_true_is_null_and_never_a_number() -> None:
    garbage = {"util_pct": 255, "power_mw": 2**32 - 1, "memory_used_bytes": 2**64 - 1}
    garbage |= {"temperature_celsius": -5, "sm_clock_mhz": 2**31, "energy_mj": 2**62}
    row = {"time_ns": 1, "device": 0, "source": "nvml", **garbage}
    [found] = sample_batch([row]).rows.to_pylist()
    assert {name: found[name] for name in garbage} == dict.fromkeys(garbage)
    assert set(found) == set(GPU_SAMPLE.column_names)
    assert clean("util_pct", 100) == 100


class Nobody:
    """Names no process but 7."""

    def name(self, pid: int) -> str | None:
        return "python" if pid == 7 else None

    def container(self, pid: int, name: str) -> tuple[None, None]:
        return None, None


def test_garbage_among_pids_and_shares() -> None:
    shares = {
        0: (1, 50, 50),
        7: (1, 2**32 - 16, 130),
        2**32 - 1: (1, 1, 1),
        -3: (1, 1, 1),
    }
    listed = [(7, 2**64 - 1), (0, 5), (4_000_000_000, None)]
    rows, unseen = process_rows([(9, 0, listed, None, [], shares)], Nobody(), {7})
    [row] = rows
    assert (row["pid"], row["type"], row["is_target"]) == (7, "C", True)
    assert (row["memory_bytes"], row["sm_util_pct"], row["memory_util_pct"]) == (None, None, 100.0)
    assert unseen == {0, 4_000_000_000}


def test_what_is_odd_of_one_gpu_does_not_end_the_sampling_of_the_others() -> None:
    """A driver that returns something else than its header says, also at every call."""
    stop = threading.Event()
    told: list[tuple[str, Any]] = []

    class OddDriver:
        def __init__(self) -> None:
            self.nvml = None
            self.errors: Counter[str] = Counter()

        def call(self, function: str, device: int, *args: Any, **more: Any) -> Any:
            if device == 1 and "Temperature" in function:
                told.append(("asked", function))
                if len(told) > 3:
                    stop.set()
            return object() if device == 0 else None

    driver = OddDriver()
    sampler = SlowSampler(driver, {0: None, 1: None}, lambda *_: None, 1_000_000)
    sampler.run(stop, lambda _: False, lambda *_: None)
    assert len(told) > 3
    assert sum(driver.errors.values()) > 3
    assert any("GPU 0" in text for text in driver.errors)


def test_garbage_of_one_number_does_not_end_the_source() -> None:
    row = {"time_ns": 1, "device": 0, "source": "nvml", "gpu_instance": 2**63, "instance_uuid": "x"}
    [told] = sample_batch([row], GPU_INSTANCE_SAMPLE).rows.to_pylist()
    assert told["gpu_instance"] is None
    value = SimpleNamespace(dVal=float("nan"), uiVal=7)
    assert (number(0, value), number(1, value), number(99, value)) == (None, 7, None)
    for limit in (2**64 - 1, -1):
        assert clean("memory_bytes", limit) is None and clean("numa_node", limit) is None


def test_a_uuid_names_a_gpu_only_where_it_is_its_own() -> None:
    told = {0: "GPU-a", 1: "GPU-b", 2: "GPU-b", 3: "", 4: None, 5: "N/A"}
    gpus = {index: {"uuid": uuid} for index, uuid in told.items()}
    assert unique_uuids(gpus) == {0: "GPU-a", **dict.fromkeys(range(1, 6))}
