"""Every scenario with many seeds: ``python -m tests.e2e.acceptance --runs 10 [--scenario X]``.

Each run is a ``tracer demo`` of its own process. A wrong verdict of a run that something disturbed
which was not staged (waits for the CPU, stolen time) does not count: the run is repeated, at most
``RETRIES`` times. Prints one line a scenario: right verdicts of the counted runs, and how many were
disturbed. Exits with 1 when a verdict was wrong or a seed never counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracer.simulated.scenarios.registry import SCENARIOS, find
from tracer.simulated.scenarios.scenario import Scenario

RETRIES = 3
TIMEOUT_S = 120


@dataclass(frozen=True)
class Run:
    """One counted run."""

    seed: int
    is_right: bool
    said: str
    text: str
    n_disturbed: int
    is_disturbed: bool


def run_once(scenario: str, seed: int, duration: str, folder: Path) -> dict[str, Any]:
    """Run one demo; its JSON, or a JSON with the error it ended with."""
    session = folder / f"{scenario}-{seed}-{time.monotonic_ns()}.tracer"
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "tracer", "demo", scenario, "--seed", str(seed)),
            *("--duration", duration, "-o", str(session), "--json"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        try:
            output, errors = demo.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            demo.kill()
            output, errors = "", f"no answer within {TIMEOUT_S} s"
    try:
        result: dict[str, Any] = json.loads(output)
    except ValueError:
        last = (errors.strip().splitlines() or ["no output"])[-1]
        result = {"is_right": False, "cause": "error", "status": "none", "judgement": last}
    return result


def run_counted(scenario: str, seed: int, duration: str, folder: Path) -> Run:
    """Run until a run counts: it was right, or nothing disturbed it; give up after the retries."""
    n_disturbed = 0
    while True:
        result = run_once(scenario, seed, duration, folder)
        is_disturbed = bool(result.get("is_disturbed")) and not result["is_right"]
        if not is_disturbed or n_disturbed == RETRIES:
            break
        n_disturbed += 1
    said = f"{result['cause']} ({result['status']})"
    text = result["judgement"]
    return Run(seed, result["is_right"], said, text, n_disturbed, is_disturbed)


def report(scenario: Scenario, runs: list[Run]) -> str:
    """One line: right of all, disturbed runs, and what was said where it was wrong."""
    right = sum(run.is_right for run in runs)
    counted = sum(not run.is_disturbed for run in runs)
    disturbed = sum(run.n_disturbed for run in runs)
    wrong = "; ".join(f"seed {run.seed}: {run.text}" for run in runs if not run.is_right)
    expected = scenario.expected.cause
    line = f"{scenario.name:<22} {expected:<26} {right:>3}/{counted:<3} {disturbed:>9}"
    return f"{line}  {wrong}".rstrip()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--scenario", action="append")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first run")
    parser.add_argument("--duration", default="8s")
    parser.add_argument("--keep", type=Path, help="folder to keep the sessions in")
    arguments = parser.parse_args()
    chosen = [find(name) for name in arguments.scenario] if arguments.scenario else SCENARIOS
    print(f"{'scenario':<22} {'expected':<26} {'right':>7} {'disturbed':>9}  wrong", flush=True)
    is_right = True
    with tempfile.TemporaryDirectory(prefix="tracer-acceptance-") as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for scenario in chosen:
            seeds = range(arguments.seed, arguments.seed + arguments.runs)
            runs = [run_counted(scenario.name, seed, arguments.duration, folder) for seed in seeds]
            print(report(scenario, runs), flush=True)
            is_right &= all(run.is_right for run in runs)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
