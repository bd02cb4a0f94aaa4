"""Fault injection: ``python -m tests.e2e.faults [--short] [--fault NAME]``.

Each fault is done to a recorder that runs; what it leaves must open, miss at most the last five
seconds (of what it was still able to write), and say what is missing. Prints one line a fault:
runs, sessions that could not be read, the most seconds missing, and what else was seen. Exits with
1 when a session was unreadable, missed more, or did not say what was lost.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.e2e.disk_faults import disk_full, disk_gone, min_free, quota, read_only
from tests.e2e.fault_cases import Outcome
from tests.e2e.recorder_faults import kill, out_of_memory, power_cut, reloads, stop_in_time
from tests.e2e.source_faults import (
    clock_step,
    endpoint_gone,
    nvml_gone,
    restarts,
    ring_overflow,
    source_gone,
)

#: Every fault, how often in the long form, and in the short one.
FAULTS: Sequence[tuple[Callable[[Path, int, int], Outcome], int, int]] = (
    (kill, 200, 6),
    (power_cut, 100, 8),
    (disk_full, 8, 1),
    (quota, 6, 0),
    (disk_gone, 3, 0),
    (out_of_memory, 6, 1),
    (min_free, 3, 1),
    (read_only, 6, 2),
    (clock_step, 2, 0),
    (source_gone, 3, 0),
    (nvml_gone, 4, 0),
    (restarts, 3, 0),
    (endpoint_gone, 3, 0),
    (ring_overflow, 3, 0),
    (stop_in_time, 5, 0),
    (reloads, 3, 0),
)


def run(fault: Callable[[Path, int, int], Outcome], n_runs: int, seed: int) -> Outcome:
    """Do one fault in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="tracer-faults-"))
    try:
        return fault(folder, n_runs, seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="the few runs that CI does")
    parser.add_argument("--fault", action="append", help="only these, by the name of the function")
    parser.add_argument("--runs", type=int, help="so many of each")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(
        f"    {'fault':<20} {'runs':>4} {'unreadable':>10} {'missing s':>9}  seed {arguments.seed}"
    )
    is_good = True
    for fault, n_long, n_short in FAULTS:
        if arguments.fault and fault.__name__ not in arguments.fault:
            continue
        n_runs = arguments.runs or (n_short if arguments.short else n_long)
        if n_runs:
            outcome = run(fault, n_runs, arguments.seed)
            print(outcome.line(), flush=True)
            is_good &= outcome.is_good
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
