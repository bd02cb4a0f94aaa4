"""Scenarios with device times: ``python -m tests.e2e.device_times [--scenario X] [--seed N]``.

Each scenario runs once under ``tracer record --cupti``. Printed are how far the recorded device
times are from the simulated device's own (of all activities that ended while they were collected),
how many are missing, and the verdict with the device times and, from the same recording, without
them. Exits with 1 when times disagree by more than the limit or an activity is missing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from analysis import attribute, open_session
from analysis.device_coverage import load_coverage
from analysis.intervals import assign
from analysis.timeline import Session
from tracer.simulated.device import DeviceError
from tracer.simulated.performance import RunOptions, perform
from tracer.simulated.scenarios.judgement import judge
from tracer.simulated.scenarios.registry import SCENARIOS, find
from tracer.simulated.scenarios.scenario import Scenario
from tracer.simulated.stage import Stage

#: What is asked of the agreement of the clocks, ns.
LIMIT_NS = 1_000
#: Kinds of the simulated device's activities that are device times (not waits and records).
_KINDS = (1, 2, 3, 4, 5, 6, 7)
#: A graph that a collective cuts is several activities there, and one record here.
_GRAPHS = (2, 7)


@dataclass(frozen=True)
class Agreement:
    """How recorded and true device times agree.

    Attributes:
        n: Activities that both have.
        n_missing: True activities in covered time that were not recorded.
        worst_ns: Largest difference of a start or an end.
    """

    n: int
    n_missing: int
    worst_ns: int


def compare(session: Session, truth: npt.NDArray[np.void]) -> Agreement:
    """Compare a session with what the device really did, activity by activity."""
    rows = session.table("gpu_activity", columns=["start_ns", "duration_ns", "pid"]).to_pandas()
    coverage = load_coverage(session) or {}
    truth = truth[np.isin(truth["kind"], _KINDS) & (truth["flags"] & 2 == 0)]
    n, n_missing, worst = 0, 0, 0
    for pid, own in rows.groupby("pid"):
        mine = np.sort(truth[truth["pid"] == pid], order="start_ns")
        start = np.sort(own["start_ns"].to_numpy())
        end = np.sort((own["start_ns"] + own["duration_ns"]).to_numpy())
        covered = coverage.get(int(pid))
        if covered is None or len(mine) == 0:
            continue
        inside = (assign(mine["start_ns"], covered) >= 0) & (assign(mine["end_ns"], covered) >= 0)
        for values, wanted in ((start, mine["start_ns"][inside]), (end, mine["end_ns"][inside])):
            near = _nearest(values, np.sort(wanted))
            is_part = np.isin(mine["kind"][inside], _GRAPHS) & (near > LIMIT_NS)
            n_missing += int(((near > LIMIT_NS) & ~is_part).sum())
            worst = max(worst, int(near[near <= LIMIT_NS].max(initial=0)))
        n += int(inside.sum())
    return Agreement(n, n_missing, worst)


def _nearest(values: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Distance of each wanted time to the nearest of some sorted times."""
    if len(values) == 0:
        return np.full(len(wanted), np.iinfo(np.int64).max)
    at = np.searchsorted(values, wanted)
    left = np.abs(values[np.maximum(at - 1, 0)] - wanted)
    right = np.abs(values[np.minimum(at, len(values) - 1)] - wanted)
    nearest: npt.NDArray[np.int64] = np.minimum(left, right)
    return nearest


def run(scenario: Scenario, seed: int, duration_ns: int, folder: Path) -> bool:
    """Run one scenario and print its line; return whether its times agree."""
    path = folder / f"{scenario.name}.tracer"
    found: list[npt.NDArray[np.void]] = []

    def look(stage: Stage) -> None:
        # The device keeps its newest activities only: of a busy run there is nothing to compare.
        with suppress(DeviceError):
            found.append(stage.device.truth())

    options = RunOptions(path, seed, duration_ns, force=True, has_device_times=True)
    performance = perform(scenario, options, lambda _: None, look)
    session = open_session(path)
    has_both = bool(found) and session.has("gpu_activity")
    agreement = compare(session, found[0]) if has_both else Agreement(0, 0, 0)
    words = []
    for view in (session, session.without(("gpu_activity",))):
        told = judge(scenario.expected, attribute(view).to_json(), performance.culprits)
        words.append(f"{'right' if told.is_right else 'WRONG'} {told.cause}")
    is_disturbed = performance.disturbance.excuses(scenario.has_cpu_contention)
    print(
        f"{scenario.name:<20} {agreement.n:>7} {agreement.n_missing:>7} {agreement.worst_ns:>8}  "
        f"{words[0]:<32} {words[1]:<32} {'disturbed' if is_disturbed else ''}".rstrip(),
        flush=True,
    )
    return agreement.n_missing == 0


def main() -> int:
    """Run the scenarios that were asked for, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenario", action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--duration", type=float, default=8.0, help="s")
    arguments = parser.parse_args()
    chosen = [find(name) for name in arguments.scenario] if arguments.scenario else SCENARIOS
    print(
        f"{'scenario':<20} {'compared':>7} {'missing':>7} {'worst ns':>8}  "
        f"{'with device times':<32} {'without':<32}"
    )
    is_right = True
    with tempfile.TemporaryDirectory(prefix="tracer-device-times-") as name:
        for scenario in chosen:
            duration_ns = round(arguments.duration * 1e9)
            is_right &= run(scenario, arguments.seed, duration_ns, Path(name))
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
