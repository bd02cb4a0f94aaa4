"""Sources contradict each other: a gauge is frozen, stale or wrong."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis import engine as words
from analysis import intervals
from analysis.causes.declaration import Cause, Needs
from analysis.engine import Series, gauge_at
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where

Ints = npt.NDArray[np.int64]

SUSPECT = "telemetry.suspect"

#: Samples that contradict each other, and their share of all.
N_SAMPLES = 10
MOST = 0.5
#: Utilisation in % from which a device is said to work, and activity under which it is not.
WORKS_PCT = 90.0
RESTS_PCT = 0.5
#: Scrapes without any change while the process goes on stepping, and how long, ns.
N_SCRAPES = 5
FROZEN_NS = 5_000_000_000
#: Steps in a frozen stretch that show that work goes on.
N_STEPS = 50


def find_suspect(facts: Facts) -> Finding:
    """Return whether sources that measure one thing contradict each other."""
    finding = Finding(SUSPECT, Status.NOT_FOUND, confidence=0.8)
    for look in (_frozen_engine, _idle_but_utilised):
        answer = look(facts)
        if answer is not None:
            return answer
    finding.excluded.append(Exclusion(SUSPECT, "no two sources contradict each other"))
    return finding


def _idle_but_utilised(facts: Facts) -> Finding | None:
    """Utilisation at its top while the same device's units were never active."""
    gpu = facts.gpu
    if gpu is None:
        return None
    for device in gpu.devices:
        used, active = gpu.quantity(device, "util_pct"), gpu.quantity(device, "sm_active_pct")
        if used is None or active is None or len(active) < N_SAMPLES:
            continue
        edges = np.unique(np.concatenate((active.begin[:1], active.end)))
        told, works = active.per_window(edges), used.per_window(edges)
        known = np.isfinite(told) & np.isfinite(works)
        odd = known & (works >= WORKS_PCT) & (told <= RESTS_PCT)
        n = int(odd.sum())
        if n < N_SAMPLES or n < MOST * known.sum():
            continue
        n_launches = 0
        if facts.calls is not None:
            spans = intervals.union(intervals.make(edges[:-1][odd], edges[1:][odd]))
            rows = facts.calls.is_submission
            n_launches = _starts_in(facts.calls.start[rows], spans)
        finding = Finding(
            SUSPECT,
            Status.FOUND if n_launches >= N_STEPS else Status.UNDECIDED,
            confidence=(0.85 if n_launches >= N_STEPS else 0.5) * facts.trust("nvml", "gpm"),
            start_ns=int(edges[:-1][odd][0]),
            end_ns=int(edges[1:][odd][-1]),
            where=Where(device=device),
            evidence=[
                Evidence("utilisation", round(float(works[odd].mean()), 1), "%", n, "gpu_sample"),
                Evidence("sm_active", round(float(told[odd].mean()), 2), "%", n, "gpu_sample"),
                Evidence("launches_meanwhile", n_launches, "", n_launches, "cuda_call"),
            ],
            summary=f"Device {device} is told to be {float(works[odd].mean()):.0f} % utilised and "
            f"at the same time to have had no active unit in {n} samples: one of the two sources "
            "is wrong.",
        )
        if finding.status is Status.UNDECIDED:
            finding.undecided_because = (
                f"device {device} is told to be utilised with no active unit, but nothing tells "
                "which of the two is wrong"
            )
            finding.settled_by = "a third source: cuda_call, or power and clocks"
        return finding
    return None


def _starts_in(start: Ints, spans: Ints) -> int:
    low = np.searchsorted(start, spans[:, 0])
    high = np.searchsorted(start, spans[:, 1])
    return int((high - low).sum())


def _frozen_engine(facts: Facts) -> Finding | None:
    """An engine's page that stands still while its process goes on stepping."""
    engine = facts.engine
    if engine is None or facts.calls is None or not facts.processes:
        return None
    running = engine.gauge(words.RUNNING)
    steps = engine.series(words.ITERATION_TOKENS, "count")
    tokens = engine.counter(words.GENERATION_TOKENS)
    if running is None or tokens is None:
        return None
    begin, end = _still(tokens if steps is None else steps)
    if end - begin < FROZEN_NS or _grew(tokens, begin, end):
        return None
    scrapes = engine.time
    n_scrapes = int(((scrapes >= begin) & (scrapes <= end)).sum())
    if n_scrapes < N_SCRAPES or not (gauge_at(running, np.array([end])) > 0).any():
        return None
    own = facts.steps(facts.processes[0])
    has_work = (own.n_launches + own.n_graphs > 0) & own.is_waiting
    if steps is None:
        # Steps of prompts make no token; graphs are decodes, which make one each.
        has_work &= own.n_graphs > 0
    n_inside = _starts_in(own.sync_end[has_work], np.array([[begin, end]]))
    seconds = (end - begin) / 1e9
    # Steps that go on at a good part of their usual rate, not a few of another stream.
    rest = max((facts.complete_ns - facts.start_ns) / 1e9 - seconds, 1e-9)
    usual = (int(has_work.sum()) - n_inside) / rest
    if n_inside < N_STEPS or (rest > 2 and n_inside / seconds < usual / 4):
        return None
    finding = Finding(
        SUSPECT,
        Status.FOUND,
        confidence=0.85 * facts.trust("cuda", "engine"),
        start_ns=begin,
        end_ns=end,
        where=Where(facts.processes[0], process=facts.process_name(facts.processes[0])),
        evidence=[
            Evidence("scrapes_without_change", n_scrapes, "", n_scrapes, "engine_sample"),
            Evidence("steps_meanwhile", n_inside, "", n_inside, "cuda_call"),
        ],
        summary=f"The engine's page told of no step for {seconds:.0f} s while its process made "
        f"{n_inside} of them: the page is stale, and what it says of that time is worth nothing.",
        excluded=[Exclusion("hang.kernel", f"{n_inside} steps ended meanwhile")],
    )
    if steps is None:
        finding.status, finding.confidence = Status.UNDECIDED, 0.55
        finding.lost_share = 0.1
        finding.undecided_because = (
            f"no token was told for {seconds:.0f} s while the process launched {n_inside} graphs; "
            "but the engine does not expose its steps"
        )
        finding.settled_by = "the engine's own count of steps, or the tokens that clients get"
    return finding


def _still(series: Series) -> tuple[int, int]:
    """The longest stretch in which a counter does not change, ns."""
    moves = np.flatnonzero(np.diff(series.value) != 0)
    first = np.concatenate(([0], moves + 1))
    last = np.concatenate((moves, [len(series.value) - 1]))
    longest = int(np.argmax(series.time[last] - series.time[first]))
    return int(series.time[first[longest]]), int(series.time[last[longest]])


def _grew(series: Series, begin: int, end: int) -> bool:
    inside = (series.time > begin) & (series.time <= end)
    return float(series.increase()[inside].sum()) > 0


CAUSES = (
    Cause(
        SUSPECT,
        "sources contradict each other",
        "A gauge is frozen, stale or wrong.",
        "Utilisation at its top with no active unit while work is launched; an engine's page that "
        "stands still while its process goes on stepping.",
        "A hang: counters are frozen there too, but so are the steps.",
        "Record the same quantity from a second source.",
        "Mend the source before acting on it.",
        Needs(any_of=(("gpu_sample", "engine_sample"),), optional=("cuda_call",)),
        find_suspect,
    ),
)
