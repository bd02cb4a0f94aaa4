"""What recording every call costs, by how many calls a second the target makes.

The program of ``bench_budget`` computes, launches at a fixed rate, each launch with a driver call
inside, and tells how much it computed per second of CPU time: in turns before, during and after a
recording without a budget. Printed for each rate (calls per second, driver calls included): the
share of the target's CPU time that is missing (medians over the turns; good to about a percent on a
shared machine), the share that hits times the cost of a probe come to, and the CPU time of
``tracer record`` after its start as a share of one CPU.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from probes.cuda import calibration
from probes.cuda.loading import ModuleLoading
from probes.cuda.tracing import Tracing
from tests.benchmarks.bench_budget import Caller

RATES = (1_000, 10_000, 20_000, 50_000, 100_000)
TURNS = 3
TURN_S = 2.0
#: Turns outside a recording, before it and after it.
BARE_TURNS = 2


def speed(caller: Caller, rate: int) -> tuple[float, int, float]:
    """One turn: units computed per CPU second, calls made, CPU seconds."""
    caller.begin(rate // 2, TURN_S)
    units, launches, cpu_s = caller.end()
    return units, 2 * launches, cpu_s


def cpu_time_s(pid: int) -> float:
    """CPU time of a process so far, in s."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pair_cost_ns() -> float:
    """Cost of a probed entry and return here, as ``--budget`` measures it."""
    tracing = Tracing(ModuleLoading())
    try:
        cost = calibration.measure(tracing)["emulated"]
    finally:
        tracing.close()
    return cost.entry_ns + cost.return_ns


def measure(caller: Caller, rate: int, session: Path, pair_ns: float) -> tuple[float, float, float]:
    """Shares of the target's CPU time: missing, and counted; share of one CPU of the recorder."""
    bare = [speed(caller, rate)[0] for _ in range(BARE_TURNS)]
    command = [sys.executable, "-m", "tracer", "record", "--pid", str(caller.pid), "-o", session]
    recorder = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert recorder.stderr is not None
    for line in recorder.stderr:
        if line.startswith("Recording"):
            break
    time.sleep(0.5)
    begin_s, begin_cpu_s = time.monotonic(), cpu_time_s(recorder.pid)
    turns = [speed(caller, rate) for _ in range(TURNS)]
    busy = (cpu_time_s(recorder.pid) - begin_cpu_s) / (time.monotonic() - begin_s)
    recorder.terminate()
    recorder.communicate(timeout=60)
    bare += [speed(caller, rate)[0] for _ in range(BARE_TURNS)]
    missing = 1 - statistics.median(turn[0] for turn in turns) / statistics.median(bare)
    counted = statistics.median(calls / cpu_s for _, calls, cpu_s in turns) * pair_ns / 1e9
    return missing, counted, busy


def main() -> None:
    pair_ns = pair_cost_ns()
    with tempfile.TemporaryDirectory() as name:
        caller = Caller(Path(name))
        try:
            for rate in RATES:
                session = Path(name) / f"{rate}.tracer"
                missing, counted, busy = measure(caller, rate, session, pair_ns)
                where = f"rates_{rate // 1000}k"
                print(f"{where}_missing {100 * missing:.2f} % - -")
                print(f"{where}_counted {100 * counted:.2f} % - -")
                print(f"{where}_recorder {100 * busy:.2f} % - -", flush=True)
        finally:
            caller.close()


if __name__ == "__main__":
    main()
