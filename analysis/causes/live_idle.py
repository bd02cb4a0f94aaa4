"""Idle devices told from the host alone: waits for input workers, syncs that drain the queue."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis import intervals, quantiles
from analysis.causes.fed_loop import suspect_storage
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.idleness import carried
from analysis.severity import MATERIAL_SHARE, assess
from analysis.threads import Launcher
from analysis.waits import thread_shares

Ints = npt.NDArray[np.int64]

SYNC = "host.sync_stall"
INPUT = "host.input_starvation"

#: Waits for workers that make a habit.
N_WAITS = 5
#: A sync in every few launches drains the queue by its number; with more launches between two, or
#: graphs, the program may need each result, and only a greater loss tells a stall.
FEW_LAUNCHES = 10
SYNC_SHARE = 0.25
#: Gaps of more than this many times the median are not the rhythm of the syncs.
RHYTHM = 5
#: Syncs that a statement needs.
N_SYNCS = 20
#: Share of the idle time that the waits must explain: else the host is the limit even without them.
EXPLAINED = 0.6
#: Utilisation in % that leaves a device no idle time, and from which a process uses it at all.
FULL_PCT = 95.0
USED_PCT = 5.0
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
    is_known = len(waits) >= N_WAITS
    if not is_known and not facts.is_demand_told:
        waits = facts.regular_waits(launcher.pid)
    spans = intervals.intersect(intervals.union(waits), facts.idle(device))
    # Whoever waits for its input wants to go on.
    severity = assess(spans, intervals.union(np.concatenate((facts.demand, spans))))
    finding.evidence = [
        Evidence("waits_for_workers", len(waits), "", len(waits), "offcpu"),
        Evidence("idle_in_them", intervals.total(spans), "ns", len(waits), "offcpu, cuda_call"),
    ]
    if len(waits) < N_WAITS or not severity.is_material:
        if not facts.is_demand_told and suspect_storage(facts, launcher, device, finding):
            return finding
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
    told = thread_shares(facts.session, workers, facts.end_ns - facts.start_ns)
    running = sum(item.running for item in (told or {}).values())
    waiting = sum(item.waiting for item in (told or {}).values())
    text = (
        f"The launching thread waited {len(waits)} times for its {len(workers)} worker processes, "
        f"{median / 1e6:.0f} ms at the median, and the device was idle meanwhile: "
        f"{100 * severity.share:.0f} % of the time"
    )
    if not is_known:
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.undecided_because = (
            f"the launching thread slept {len(waits)} times for {median / 1e6:.0f} ms until "
            f"another process woke it, {100 * severity.share:.0f} % of the time, but whether that "
            "is its worker or its client is not known"
        )
        finding.settled_by = "a recording of the whole tree of processes, from its start"
        return finding
    if facts.is_demand_told:
        finding.status, finding.confidence = Status.UNDECIDED, 0.4
        finding.undecided_because = (
            f"{text}; but the process serves requests, and its children may be what sends them"
        )
        finding.settled_by = "what these processes do (their names and threads)"
        return finding
    finding.status = Status.FOUND
    finding.confidence = 0.88 * facts.trust("sched", "offcpu", "cuda")
    finding.summary = f"{text}."
    if told is not None:
        finding.evidence += [
            Evidence("workers_on_cpu", round(running, 2), "CPUs", None, "thread_second"),
            Evidence("workers_ready", round(waiting, 2), "CPUs", None, "thread_second"),
        ]
        if waiting > running:
            finding.summary += " The workers mostly waited for a CPU."
        elif running >= WORKER_BUSY:
            finding.summary += f" The workers used {running:.1f} CPUs."
        else:
            finding.summary += (
                " The workers hardly computed: they waited themselves, for storage or the network."
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
    # A graph a sync is a decode step, whose result the next one needs.
    is_needed = facts.is_demand_told or has_graphs >= 0.5
    # A few long pauses of the host are no rhythm: something else holds it up.
    typical = quantiles.median(gap[rows]) or 0
    is_rhythm = int(gap[gap <= RHYTHM * typical].sum()) * 2 >= idle
    least = MATERIAL_SHARE if is_few else SYNC_SHARE
    if share < least or lost < EXPLAINED * idle or is_needed or not is_rhythm:
        why = (
            "each step needs the result of the one before"
            if is_needed
            else f"{len(rows)} syncs were followed by idleness that they explain for "
            f"{100 * share:.0f} % of the time, of {100 * idle / facts.demand_ns:.0f} %"
        )
        finding.excluded.append(Exclusion(SYNC, why))
        return finding
    filled = _filled_by_others(facts, device)
    if filled is not None:
        finding.excluded.append(
            Exclusion(
                SYNC,
                f"other processes had the device in these gaps: it was {filled[0]:.0f} % utilised",
                Evidence("utilisation", round(filled[0], 1), "%", filled[1], "gpu_sample"),
            )
        )
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


def _filled_by_others(facts: Facts, device: int | None) -> tuple[float, int] | None:
    """Mean utilisation in % and its samples, where other processes used the device so that it had
    no time left: what one process leaves idle is then not lost. None else.
    """
    gpu, samples = facts.gpu, facts.utilisation(device)
    used = None if samples is None else samples.mean(facts.demand)
    if gpu is None or used is None or used[0] < FULL_PCT:
        return None
    contexts = gpu.contexts(device)
    others = contexts[~contexts["pid"].isin(facts.processes)]
    return used if (others["sm_util_pct"] >= USED_PCT).any() else None
