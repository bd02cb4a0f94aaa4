"""What device times cost: per launch in the program, and per record in the collector and reader.

A C program launches short kernels as fast as it goes on the simulated device: bare, with the
library loaded and nobody recording, with collection always on, and in windows of a tenth. Figures
are medians over alternating rounds of the process's CPU time per launch, the helper thread's
included. The simulated libcupti plays NVIDIA's, so its part of the cost is not NVIDIA's: on a GPU
run ``pytest tests/gpu``.

A range of NVTX is timed alike, at 200,000 a second: bare, with the variable set and nobody
recording, and recorded.

Then a producer hands the collector one million records a second: while the reader drains its ring,
while it makes rows of the records too, each also three times as long, and while nobody reads. Peak
memory of both sides shows whether it is bounded. At last the reader alone turns records into rows.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from probes.cupti import ring
from probes.cupti.activities import ActivityTables
from probes.cupti.probe import CuptiOptions, CuptiProbe
from probes.cupti.rendezvous import Rendezvous
from probes.cupti.ring import RingFile
from probes.targets import TargetTree
from tests.probes.cupti.producing import build_producer, build_ranges, figures
from tracer.simulated.device import SimulatedDevice

ROUNDS = 5
LAUNCHES = 1_500_000
N_RECORDS = 2_000_000
#: Records handed to the reader at once.
CHUNK = 50_000
#: Time between two drains, and the launches in it at 20,000 a second.
PERIOD_NS = CuptiProbe.period_ns
DRAINED = 20_000 * PERIOD_NS // 1_000_000_000
WINDOW = {"window_ns": 100_000_000, "every_ns": 1_000_000_000}
MODES: dict[str, dict[str, int] | None] = {"bare": None, "off": None, "on": {}, "windowed": WINDOW}

#: CPU time of the helper thread per launch in ns, by mode.
HELPER_NS: dict[str, list[float]] = {mode: [] for mode in MODES}


def cost_of_launch(device: SimulatedDevice, folder: Path, mode: str) -> float:
    """CPU time per launch in ns of the whole process."""
    meeting = Rendezvous.create(folder / f"{mode}-{time.monotonic_ns()}")
    environment = {**os.environ, **device.env()}
    if mode != "bare":
        environment |= meeting.environment()
    meeting.close(remove=False)
    options = MODES[mode]
    probe, tree = None, TargetTree([])
    if options is not None:
        probe = CuptiProbe(tree, CuptiOptions(meeting.directory, **options))
        probe.start()
    process = subprocess.Popen(
        [str(device.libraries.launcher), f"launches={LAUNCHES}", "kernel_us=0.2"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    tree.add_root(process.pid)
    while probe is not None and process.poll() is None:
        for _ in probe.drain(time.monotonic_ns()):
            pass
        time.sleep(0.05)
    told = figures(process.communicate()[0].splitlines()[-1])
    if probe is not None:
        list(probe.stop())
        for facts in (probe.report().details or {})["processes"]:
            HELPER_NS[mode].append(facts["helper_cpu_ns"] / told["launches"])
    return told["cpu_us"] * 1000 / told["launches"]


def launches() -> None:
    """Print the cost of each way."""
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        with SimulatedDevice(folder / "machine") as device:
            for _ in range(ROUNDS):
                for mode in MODES:
                    found[mode].append(cost_of_launch(device, folder, mode))
    bare = statistics.median(found["bare"])
    for mode, values in found.items():
        value = statistics.median(values)
        print(f"cupti_launch_{mode} {value:.0f} ns {bare:.0f} {value / bare:.3f}", flush=True)
    for mode in ("off", "on", "windowed"):
        added = statistics.median(found[mode]) - bare
        print(f"cupti_added_per_launch_{mode} {added:.0f} ns - -")
    print(f"cupti_helper_per_launch {statistics.median(HELPER_NS['on']):.0f} ns - -", flush=True)


RANGES = """
import ctypes, sys, time
nvtx = ctypes.CDLL(sys.argv[1])
if sys.argv[2] == "cuda":
    assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    time.sleep(0.5)
spent, n = 0, 1000
for _ in range(300):
    begin = time.thread_time_ns()
    nvtx.many(b"forward", n)
    spent += time.thread_time_ns() - begin
    time.sleep(0.005)
print(f"pair_ns={spent / 300 / n:.1f}")
"""


def ranges() -> None:
    """Print the CPU time of a range in its thread: without us, with nobody recording, recorded."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        library = build_ranges(folder)
        bare = 0.0
        with SimulatedDevice(folder / "machine") as device:
            for mode in ("bare", "off", "on"):
                meeting = Rendezvous.create(folder / mode)
                environment = {**os.environ, **device.env()}
                environment |= {} if mode == "bare" else meeting.environment()
                meeting.close(remove=False)
                tree = TargetTree([])
                probe = CuptiProbe(tree, CuptiOptions(folder / mode))
                if mode == "on":
                    probe.start()
                process = subprocess.Popen(
                    [sys.executable, "-c", RANGES, str(library), "cuda" if mode == "on" else ""],
                    env=environment,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                tree.add_root(process.pid)
                while process.poll() is None:
                    for _ in probe.drain(time.monotonic_ns()):
                        pass
                    time.sleep(0.05)
                value = figures(process.communicate()[0])["pair_ns"]
                bare = bare or value
                ratio = value / bare
                print(f"cupti_range_{mode} {value:.0f} ns {bare:.0f} {ratio:.2f}", flush=True)
                for _ in probe.stop():
                    pass


def million_a_second(
    case: str, n_records: int, take: Callable[[RingFile], int], *, is_paired: bool = False
) -> None:
    """Print what the collector loses and both sides hold at a million records a second.

    Args:
        case: Ending of the names of the figures.
        n_records: How many records there are.
        take: Takes what lies in the ring and returns how many records it took.
        is_paired: Every other record is the call of the kernel after it.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        meeting = Rendezvous.create(folder / "meeting")
        meeting.close(remove=False)
        command = [str(build_producer(folder)), str(meeting.directory), str(n_records), "1000000"]
        command += ["pairs"] if is_paired else []
        before = most = _resident_mb()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        read = 0
        rings: list[RingFile] = []
        while process.poll() is None or not rings:
            rings = rings or [RingFile(path) for path in meeting.directory.glob("ring-*")]
            read += sum(take(one) for one in rings)
            most = max(most, _resident_mb())
            time.sleep(0.05)
        read += take(rings[0])
        rings[0].close(remove=True)
        assert process.stdout is not None
        told = figures(process.stdout.read())
    rate, lost = told["made"] / told["wall_ms"] * 1000, told["made"] - read
    print(f"cupti_records_made{case} {rate:.0f} records/s - -")
    print(
        f"cupti_records_lost{case} {lost:.0f} records {told['made']:.0f} {lost / told['made']:.6f}"
    )
    print(f"cupti_collector_memory{case} {told['peak_kb'] / 1024:.1f} MB - -")
    print(f"cupti_reader_memory_added{case} {most - before:.1f} MB - -")
    print(f"cupti_collector_record{case} {told['drain_ns']:.1f} ns - -", flush=True)


def drained(one: RingFile) -> int:
    """Only copy the records."""
    return len(one.drain())


def converted() -> Callable[[RingFile], int]:
    """Make rows of the records, as a recorder does."""
    tables = ActivityTables(1, lambda _: "_Z4axpyPfS_i")

    def take(one: RingFile) -> int:
        records = one.drain()
        for _ in tables.add(records, time.monotonic_ns()):
            pass
        return len(records)

    return take


def _resident_mb() -> float:
    """Memory that this process holds, MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def reader() -> None:
    """Print how fast records become rows, each with its call."""
    records = np.zeros(2 * CHUNK, ring.RECORD)
    records["kind"][0::2], records["kind"][1::2] = ring.CALL, ring.KERNEL
    at = np.arange(CHUNK, dtype=np.uint64) * 1000 + 1_000_000_000
    for part in (0, 1):
        records["start_ns"][part::2], records["end_ns"][part::2] = at, at + 900
        records["correlation"][part::2] = np.arange(CHUNK) + 1
    records["name"] = 8
    tables = ActivityTables(1, lambda _: "_Z4axpyPfS_i")
    begin = time.thread_time()
    rounds = 10
    for index in range(rounds):
        records["correlation"] += np.uint32(CHUNK)
        now = 1_000_000_000 + (index + 1) * CHUNK * 1000
        for _ in tables.add(records, now):
            pass
        records["start_ns"] += np.uint64(CHUNK * 1000)
        records["end_ns"] += np.uint64(CHUNK * 1000)
    spent = time.thread_time() - begin
    print(f"cupti_rows {rounds * CHUNK / spent:.0f} rows/s - -")
    tables = ActivityTables(1, lambda _: "_Z4axpyPfS_i")
    records = records[: 2 * DRAINED]
    now, begin = int(records["end_ns"].max()), time.thread_time()
    for _ in range(200):
        for _ in tables.add(records, now):
            pass
        records["correlation"] += np.uint32(DRAINED)
        records["start_ns"] += np.uint64(PERIOD_NS)
        records["end_ns"] += np.uint64(PERIOD_NS)
        now += PERIOD_NS
    share = (time.thread_time() - begin) / (200 * PERIOD_NS / 1e9)
    print(f"cupti_reader_at_20k {100 * share:.1f} % - -", flush=True)


def main() -> None:
    """Run all; a thread of the reader is not needed, so that its CPU time is its own."""
    assert threading.active_count() == 1
    launches()
    ranges()
    million_a_second("", N_RECORDS, drained)
    million_a_second("_3x", 3 * N_RECORDS, drained)
    million_a_second("_rows", N_RECORDS, converted(), is_paired=True)
    million_a_second("_rows_3x", 3 * N_RECORDS, converted(), is_paired=True)
    million_a_second("_unread", N_RECORDS, lambda one: 0)
    reader()


if __name__ == "__main__":
    main()
