"""Idle devices told from the host alone: waits for input workers, syncs that drain the queue."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis import intervals, quantiles
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.idleness import carried
from analysis.severity import MATERIAL_SHARE, assess
from analysis.threads import Launcher
from analysis.waits import on_cpu

Ints = npt.NDArray[np.int64]

SYNC = "host.sync_stall"
INPUT = "host.input_starvation"

#: Waits for workers that make a habit.
N_WAITS = 5
#: A sync in every few launches drains the queue by its number; with more launches between two, or
#: graphs, the program may need each result, and only a greater loss tells a stall.
FEW_LAUNCHES = 10
SYNC_SHARE = 0.25
#: Syncs that a statement needs.
N_SYNCS = 20
#: Share of the idle time that the waits must explain: else the host is the limit even without them.
EXPLAINED = 0.6
#: CPUs that the workers of a saturated pipeline keep busy at least.
WORKER_BUSY = 0.5


def find_input_starvation(facts: Facts) -> Finding | None:
    """Return whether the launching thread waited for its worker processes while the device was
    idle; None where its sleeps were not recorded.
    """
    found = [
        _starvation(facts, launcher, device)
        for device in facts.devices
        if (launcher := facts.main_launcher(device)) is not None
        and launcher.absences is not None
        and launcher.has_states
    ]
    return max(found, key=_weight, default=None)


def find_sync_stall(facts: Facts) -> Finding | None:
    """Return whether waits for the device kept the host from running ahead; None where too few
    syncs were recorded.
    """
    found = [
        finding
        for device in facts.devices
        if (launcher := facts.main_launcher(device)) is not None
        and (finding := _stall(facts, launcher, device)) is not None
    ]
    return max(found, key=_weight, default=None)


def _weight(finding: Finding) -> tuple[int, int]:
    order = {Status.FOUND: 2, Status.UNDECIDED: 1}
    return order.get(finding.status, 0), finding.lost_ns


def _start(facts: Facts, launcher: Launcher, device: int | None, cause: str) -> Finding:
    return Finding(
        cause,
        Status.NOT_FOUND,
        confidence=0.85,
        where=Where(launcher.pid, launcher.tid, device, process=facts.process_name(launcher.pid)),
    )


def _starvation(facts: Facts, launcher: Launcher, device: int | None) -> Finding:
    finding = _start(facts, launcher, device, INPUT)
    waits = facts.input_waits(launcher.pid)
    spans = intervals.intersect(intervals.union(waits), facts.idle(device))
    severity = assess(spans, facts.demand)
    finding.evidence = [
        Evidence("waits_for_workers", len(waits), "", len(waits), "offcpu"),
        Evidence("idle_in_them", intervals.total(spans), "ns", len(waits), "offcpu, cuda_call"),
    ]
    if len(waits) < N_WAITS or not severity.is_material:
        finding.excluded.append(
            Exclusion(
                INPUT,
                f"the launching thread waited for workers {len(waits)} times, with the device idle "
                f"for {100 * severity.share:.0f} % of the time with demand",
            )
        )
        return finding
    length = waits[:, 1] - waits[:, 0]
    median = quantiles.median(length) or 0
    finding.evidence.append(Evidence("wait_p50", int(median), "ns", len(length), "offcpu"))
    finding.lost_ns, finding.lost_share = severity.lost_ns, severity.share
    finding.start_ns, finding.end_ns, finding.spans = severity.start_ns, severity.end_ns, spans
    workers = facts.workers(launcher.pid)
    busy = on_cpu(facts.session, workers, facts.end_ns - facts.start_ns)
    text = (
        f"The launching thread waited {len(waits)} times for its {len(workers)} worker processes, "
        f"{median / 1e6:.0f} ms at the median, and the device was idle meanwhile: "
        f"{100 * severity.share:.0f} % of the time"
    )
    if facts.is_demand_told:
        finding.status, finding.confidence = Status.UNDECIDED, 0.4
        finding.undecided_because = (
            f"{text}; but the process serves requests, and its children may be what sends them"
        )
        finding.settled_by = "what these processes do (their names and threads)"
        return finding
    if busy is not None:
        finding.evidence.append(
            Evidence("workers_on_cpu", round(sum(busy.values()), 2), "CPUs", None, "thread_second")
        )
    finding.status = Status.FOUND
    finding.confidence = 0.88 * facts.trust("sched", "offcpu", "cuda")
    finding.summary = text + (
        f". The workers used {sum(busy.values()):.1f} CPUs."
        if busy is not None and sum(busy.values()) >= WORKER_BUSY
        else ". The workers hardly computed: they waited themselves, for storage or the network."
        if busy is not None
        else "."
    )
    finding.excluded.append(Exclusion("no_demand", "its own workers woke it, in every step"))
    return finding


def _stall(facts: Facts, launcher: Launcher, device: int | None) -> Finding | None:
    steps = facts.steps(launcher.pid)
    has_work = steps.n_launches + steps.n_graphs > 0
    rows = np.flatnonzero(has_work & steps.is_waiting)
    if len(rows) < N_SYNCS:
        return None
    finding = _start(facts, launcher, device, SYNC)
    gaps = steps.idle
    gap = intervals.overlap_each(
        gaps, intervals.intersect(launcher.states["working"], facts.demand)
    )
    wait = np.where(steps.is_waiting, np.maximum(steps.idle_start - steps.sync_start, 0), 0)
    explained = carried(wait, gap)
    lost, idle = int(explained.sum()), int(gap.sum())
    share = lost / facts.demand_ns
    launches = quantiles.median(steps.n_launches[rows]) or 0
    has_graphs = float((steps.n_graphs[rows] > 0).mean())
    is_few = launches <= FEW_LAUNCHES and has_graphs < 0.1
    finding.evidence = [
        Evidence("syncs_that_waited", len(rows), "", len(rows), "cuda_call"),
        Evidence("launches_between_syncs", int(launches), "", len(rows), "cuda_call"),
        Evidence("idle_after_sync", round(100 * idle / facts.demand_ns, 1), "%", len(rows), ""),
        Evidence("of_which_hidden_without_it", round(100 * share, 1), "%", len(rows), ""),
    ]
    is_needed = facts.is_demand_told
    least = MATERIAL_SHARE if is_few else SYNC_SHARE
    if share < least or lost < EXPLAINED * idle or is_needed:
        why = (
            "a service needs the tokens of each step"
            if is_needed
            else f"{len(rows)} syncs were followed by idleness that they explain for "
            f"{100 * share:.0f} % of the time, of {100 * idle / facts.demand_ns:.0f} %"
        )
        finding.excluded.append(Exclusion(SYNC, why))
        return finding
    touched = np.flatnonzero(explained)
    finding.lost_ns, finding.lost_share = lost, share
    finding.start_ns, finding.end_ns = int(gaps[touched[0], 0]), int(gaps[touched[-1], 1])
    finding.spans = intervals.intersect(
        intervals.union(gaps), intervals.intersect(launcher.states["working"], facts.demand)
    )
    if not launcher.has_states:
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.undecided_because = (
            "without the scheduler a thread that computes cannot be told from one that waits"
        )
        finding.settled_by = "offcpu: tracer record --pid PID as root"
        return finding
    finding.status = Status.FOUND
    finding.confidence = (0.85 if is_few else 0.75) * facts.trust("cuda", "sched")
    finding.summary = (
        f"{len(rows)} syncs, one in every {launches:.0f} launches, each waited until the device "
        f"had nothing left to do, and it idled until the next launch: without them the host would "
        f"have been ahead for {100 * share:.0f} % of the time."
    )
    return finding
