"""``tracer analyze --json`` of sessions of one to ten million calls: the curve, and what it takes.

Each run is a process of its own, interpreter and libraries included, whose CPU time and largest
memory the kernel tells. Times are medians of the turns, memory the largest. Baselines at ten
million calls are the goals: 5 s, and 1 GB (1,000,000,000 bytes).

``analyze.N`` counts all calls of an hour's session, each with the driver's inside; in
``analyze.outermost`` none is inside another, so that twice as many are looked at. ``linearity`` is
the CPU time that a call adds from half of the largest session on, over that which it adds before:
1 is linear, more is worse.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SIZES = (1_000_000, 2_500_000, 5_000_000, 10_000_000)
TURNS = 3
GOAL_S, GOAL_MB = 5.0, 1000.0


@dataclass(frozen=True)
class Run:
    """What one command took."""

    elapsed_s: float
    cpu_s: float
    peak_mb: float


def run(*arguments: str) -> Run:
    """Run a command of the product.

    Raises:
        RuntimeError: it failed.
    """
    began = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "tracer", *arguments], stdout=subprocess.DEVNULL
    )
    _pid, status, used = os.wait4(child.pid, 0)
    elapsed = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"tracer {arguments[0]} ended with {child.returncode}")
    return Run(elapsed, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6)


def measure(name: str, session: Path, *arguments: str, has_goal: bool) -> float:
    """Print what a command takes on a session, and return its CPU time in s."""
    runs = [run(*arguments, str(session)) for _ in range(TURNS)]
    cpu = statistics.median(item.cpu_s for item in runs)
    for figure, value, unit, goal in (
        ("elapsed", statistics.median(item.elapsed_s for item in runs), "s", GOAL_S),
        ("cpu", cpu, "s", None),
        ("peak", max(item.peak_mb for item in runs), "MB", GOAL_MB),
    ):
        compared = f"{goal:.2f} {goal / value:.2f}" if has_goal and goal else "- -"
        print(f"{name}.{figure} {value:.2f} {unit} {compared}", flush=True)
    return cpu


def build(folder: Path, n_calls: int, *options: str) -> None:
    """Write a session in a process of its own: its memory must not count."""
    command = [sys.executable, "-m", "tests.benchmarks.large_session", str(folder), str(n_calls)]
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        session = Path(temporary) / "large.tracer"
        times = []
        for n_calls in SIZES:
            shutil.rmtree(session, ignore_errors=True)
            build(session, n_calls)
            name, is_largest = f"analyze.{n_calls / 1e6:g}M", n_calls == SIZES[-1]
            times.append(measure(name, session, "analyze", "--json", has_goal=is_largest))
        late = (times[-1] - times[-2]) / (SIZES[-1] - SIZES[-2])
        early = (times[-2] - times[0]) / (SIZES[-2] - SIZES[0])
        print(f"analyze.linearity {late / early:.2f} x 1 {early / late:.2f}", flush=True)
        measure("analyze.by_mark", session, "analyze", "--json", "--by-mark", has_goal=False)
        shutil.rmtree(session)
        build(session, SIZES[-1], "--outermost")
        measure("analyze.outermost.10M", session, "analyze", "--json", has_goal=True)


if __name__ == "__main__":
    main()
