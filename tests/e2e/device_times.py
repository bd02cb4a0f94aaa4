"""Scenarios with device times: ``python -m tests.e2e.device_times [--scenario X] [--docs]``.

Each scenario runs once under ``tracer record --cupti``. Printed are how far the recorded device
times are from the simulated device's own (of all activities that ended while they were collected),
how many are missing, and, with the device times and from the same recording without what CUPTI
told: the verdict, the share of the time of which the budget does not know what the device did, and
how far its busy share is from the true one. Where nothing is wrong and the device really worked for
85 % of the time, ``device.compute_bound`` is as right as ``healthy``. At the end comes a summary;
``--docs`` puts both into docs/cupti.md. Exits with 1 when times disagree by more than the limit or
an activity is missing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis import attribute, open_session
from analysis.device_coverage import load_coverage
from analysis.intervals import assign, intersect, make, total, union
from analysis.timeline import Session
from tracer.errors import RequirementError
from tracer.simulated.device import TRUTH, DeviceError, SimulatedDevice
from tracer.simulated.performance import RunOptions, perform
from tracer.simulated.scenarios.judgement import judge
from tracer.simulated.scenarios.registry import SCENARIOS, find
from tracer.simulated.scenarios.scenario import Scenario
from tracer.simulated.stage import Stage

DOCS = Path(__file__).parents[2] / "docs" / "cupti.md"
BEGIN, END = "<!-- device times: begin -->\n", "<!-- device times: end -->\n"
#: Everything that CUPTI adds to a session.
FROM_CUPTI = ("gpu_activity", "annotation", "memory_operation")
#: What is asked of the agreement of the clocks, ns.
LIMIT_NS = 1_000
#: Kinds of the simulated device's activities that are device times (not waits and records).
_KINDS = (1, 2, 3, 4, 5, 6, 7)
#: A graph that a collective cuts is several activities there, and one record here.
_GRAPHS = (2, 7)


#: States of the budget in which the device is known to work.
_BUSY = ("hung", "other_process", "compute", "collective", "copy")
#: Where nothing is wrong and the device really worked for this share of the time or more, it is the
#: limit: then "device.compute_bound" is as right as "healthy".
_LIMIT_PCT = 85.0
#: How often the device's own account is read; it keeps its newest activities only.
_READ_S = 0.25


class Truth:
    """Reads what the device really did, from the begin of a scenario on."""

    def __init__(self) -> None:
        self.has_gap = False
        self._parts: list[npt.NDArray[np.void]] = []
        self._device: SimulatedDevice | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def begin(self, stage: Stage) -> None:
        """Follow the device of a stage."""
        self._device = stage.device
        self._thread.start()

    def end(self, _: Stage) -> None:
        """Read the rest."""
        self._is_over.set()
        self._thread.join()
        self._read()

    @property
    def rows(self) -> npt.NDArray[np.void]:
        """Activities in the order of their ends."""
        found = [part for part in self._parts if len(part)]
        return np.concatenate(found) if found else np.empty(0, TRUTH)

    def _follow(self) -> None:
        while not self._is_over.wait(_READ_S):
            self._read()

    def _read(self) -> None:
        assert self._device is not None
        try:
            self._parts.append(self._device.truth())
        except DeviceError:
            self.has_gap = True


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
    truth = _work(truth)
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


def _work(truth: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """What of the device's account has device times."""
    work: npt.NDArray[np.void] = truth[np.isin(truth["kind"], _KINDS) & (truth["flags"] & 2 == 0)]
    return work


def _nearest(values: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Distance of each wanted time to the nearest of some sorted times."""
    if len(values) == 0:
        return np.full(len(wanted), np.iinfo(np.int64).max)
    at = np.searchsorted(values, wanted)
    left = np.abs(values[np.maximum(at - 1, 0)] - wanted)
    right = np.abs(values[np.minimum(at, len(values) - 1)] - wanted)
    nearest: npt.NDArray[np.int64] = np.minimum(left, right)
    return nearest


@dataclass(frozen=True)
class View:
    """What one analysis of a recording says.

    Attributes:
        cause: First cause of its verdict.
        is_right: Whether that is what was staged.
        unknown_pct: Share of the time of which it does not know what the devices did.
        busy_error_pct: Distance of its busy share from the true one, points; None where the truth
            is not whole, a kernel never ended or others worked on the device.
    """

    cause: str
    is_right: bool
    unknown_pct: float | None
    busy_error_pct: float | None


@dataclass(frozen=True)
class Outcome:
    """One scenario: how its device times agree, and the verdict with and without them."""

    name: str
    agreement: Agreement
    with_times: View
    without: View
    is_disturbed: bool

    def row(self) -> str:
        """Return its row of the table."""
        a, with_times, without = self.agreement, self.with_times, self.without
        verdicts = [
            f"{'' if view.is_right else '**wrong:** '}{view.cause}"
            for view in (with_times, without)
        ]
        pairs = [
            f"{_number(getattr(with_times, name))} / {_number(getattr(without, name))}"
            for name in ("unknown_pct", "busy_error_pct")
        ]
        cells = [self.name + (" (disturbed)" if self.is_disturbed else "")]
        cells += [f"{a.n:,}", str(a.n_missing), str(a.worst_ns) if a.n else "-", *verdicts, *pairs]
        return f"| {' | '.join(cells)} |"


HEADER = (
    "| scenario | compared | missing | worst, ns | verdict with | without | unknown, % | "
    "busy off by, points |\n|---|---|---|---|---|---|---|---|"
)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


@dataclass(frozen=True)
class Busy:
    """In what share of the recording the devices really worked, %; None where it is not known.

    Attributes:
        all_pct: For anybody.
        recorded_pct: None also where processes worked that were not recorded: the budget is about
            those that were.
    """

    all_pct: float | None = None
    recorded_pct: float | None = None


def true_busy(session: Session, truth: Truth, n_devices: int) -> Busy:
    """Return how busy the devices were by their own account."""
    rows, whole = _work(truth.rows), make([session.start_ns], [session.end_ns])
    rows = rows[(rows["end_ns"] > session.start_ns) & (rows["start_ns"] < session.end_ns)]
    if truth.has_gap:
        return Busy()
    recorded: Sequence[int] = ()
    if session.has("cuda_call"):
        recorded = session.table("cuda_call", columns=["pid"])["pid"].unique().to_pylist()
    busy = sum(
        total(intersect(union(make(own["start_ns"], own["end_ns"])), whole))
        for own in (rows[rows["device"] == device] for device in range(n_devices))
    )
    pct = 100 * busy / (session.duration_ns * n_devices)
    return Busy(pct, pct if np.isin(rows["pid"], recorded).all() else None)


def look(scenario: Scenario, view: Session, culprits: dict[str, int], truth: Busy) -> View:
    """Analyse a recording, or a part of its tables."""
    told: dict[str, Any] = attribute(view).to_json()
    verdict = judge(scenario.expected, told, culprits)
    totals = told["budget_totals"]
    unknown = busy = None
    if totals:
        unknown = 100 * statistics.mean(item["unknown"] for item in totals)
        busy = 100 * statistics.mean(sum(item[state] for state in _BUSY) for item in totals)
    true_pct = truth.recorded_pct
    error = None if busy is None or true_pct is None else abs(busy - true_pct)
    is_limit = truth.all_pct is not None and truth.all_pct >= _LIMIT_PCT
    is_said_so = verdict.cause == "device.compute_bound" and scenario.expected.cause == "healthy"
    return View(verdict.cause, verdict.is_right or (is_limit and is_said_so), unknown, error)


def run(scenario: Scenario, seed: int, duration_ns: int, folder: Path) -> Outcome:
    """Run one scenario and return how its device times agree and what they tell."""
    path = folder / f"{scenario.name}.tracer"
    truth = Truth()

    def prepare(stage: Stage) -> object:
        truth.begin(stage)
        return scenario.prepare(stage)

    options = RunOptions(path, seed, duration_ns, force=True, has_device_times=True)
    performance = perform(replace(scenario, prepare=prepare), options, lambda _: None, truth.end)
    session = open_session(path)
    has_times = session.has("gpu_activity")
    agreement = compare(session, truth.rows) if has_times else Agreement(0, 0, 0)
    is_endless = scenario.expected.cause.startswith("hang.")
    busy = Busy() if is_endless else true_busy(session, truth, scenario.n_devices)
    with_times, without = (
        look(scenario, view, dict(performance.culprits), busy)
        for view in (session, session.without(FROM_CUPTI))
    )
    is_disturbed = performance.disturbance.excuses(scenario.has_cpu_contention)
    return Outcome(scenario.name, agreement, with_times, without, is_disturbed)


def summary(outcomes: Sequence[Outcome], seed: int, wall_s: float) -> str:
    """Return what all together say, in words."""
    informed = [item for item in outcomes if item.agreement.n]
    agreeing = [item for item in informed if not item.agreement.n_missing]
    n = sum(item.agreement.n for item in informed)
    worst = max((item.agreement.worst_ns for item in informed), default=0)
    silent = [item.name for item in outcomes if not item.agreement.n]
    lines = [
        f"Seed {seed}, {len(outcomes)} scenarios in {wall_s / 60:.1f} minutes. Device times agree "
        f"within {LIMIT_NS:,} ns in {len(agreeing)} of {len(informed)} scenarios with device work "
        f"in covered time ({n:,} activities, the farthest {worst} ns off)"
        + (f"; in {', '.join(silent)} there was none." if silent else ".")
    ]
    for words, chosen in (
        ("all runs", outcomes),
        ("runs that nothing disturbed", [item for item in outcomes if not item.is_disturbed]),
    ):
        right = [sum(view.is_right for view in views) for views in _views(chosen)]
        lines.append(
            f"Verdicts right, {words}: {right[0]} of {len(chosen)} with device times, "
            f"{right[1]} without."
        )
    for name, words in (
        ("unknown_pct", "Unknown share of the budget, mean"),
        ("busy_error_pct", "Busy share of the devices off by, mean"),
    ):
        both = [
            (one, other)
            for item in outcomes
            if (one := getattr(item.with_times, name)) is not None
            and (other := getattr(item.without, name)) is not None
        ]
        if both:
            means = [statistics.mean(values) for values in zip(*both, strict=True)]
            unit = "%" if name == "unknown_pct" else "points"
            lines.append(
                f"{words} of {len(both)}: {means[0]:.1f} {unit} with device times, "
                f"{means[1]:.1f} without."
            )
    return "\n".join(f"* {line}" for line in lines)


def _views(outcomes: Sequence[Outcome]) -> tuple[list[View], list[View]]:
    return [item.with_times for item in outcomes], [item.without for item in outcomes]


def write_docs(text: str) -> None:
    """Put the figures between their marks in docs/cupti.md.

    Raises:
        ValueError: the marks are missing.
    """
    page = DOCS.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    DOCS.write_text(before + BEGIN + text + END + after, encoding="utf-8")


def main() -> int:
    """Run the scenarios that were asked for, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenario", action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--duration", type=float, default=8.0, help="s")
    parser.add_argument("--docs", action="store_true", help="write the figures to docs/cupti.md")
    arguments = parser.parse_args()
    chosen = [find(name) for name in arguments.scenario] if arguments.scenario else SCENARIOS
    outcomes: list[Outcome] = []
    begin = time.monotonic()
    print(HEADER)
    with tempfile.TemporaryDirectory(prefix="tracer-device-times-") as name:
        for scenario in chosen:
            try:
                duration_ns = round(arguments.duration * 1e9)
                outcomes.append(run(scenario, arguments.seed, duration_ns, Path(name)))
            except RequirementError as error:
                print(f"{scenario.name} left out: {error}", file=sys.stderr)
                continue
            print(outcomes[-1].row(), flush=True)
    told = summary(outcomes, arguments.seed, time.monotonic() - begin)
    print(f"\n{told}")
    if arguments.docs:
        write_docs("\n".join((told, "", HEADER, *(item.row() for item in outcomes))) + "\n")
    return int(any(item.agreement.n_missing for item in outcomes))


if __name__ == "__main__":
    sys.exit(main())
