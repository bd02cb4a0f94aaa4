"""The launching thread was ready to run and did not run: another task, or a CPU quota."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import intervals, quantiles
from analysis.causes.declaration import Cause, Needs
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.host import Throttling, load_throttling, steal_share
from analysis.severity import assess
from analysis.threads import Launcher

Ints = npt.NDArray[np.int64]

CPU_DELAY = "launch.cpu_delay"
CGROUP_THROTTLE = "launch.cgroup_throttle"

#: Share of the delay in which a task must have held the CPU for the delay to be a matter of
#: contention; with an idle CPU the thread was parked by a quota or slow to wake.
OCCUPIED_SHARE = 0.5
#: Above this, what looks like a local delay may be the hypervisor's doing.
STEAL_SHARE = 0.10
#: Most names that one finding blames, and how near to the worst the others must come.
MAX_CULPRITS = 3
CULPRIT_SHARE = 0.5


@dataclass(frozen=True)
class Delay:
    """How long one launching thread was ready and did not run, where that hurt."""

    launcher: Launcher
    device: int | None
    #: Disjoint: ready, with demand, while the device was not proven busy.
    harmful: Ints
    throttling: Throttling | None

    @property
    def throttled(self) -> Ints:
        """The part of it that a quota explains."""
        if self.throttling is None:
            return intervals.EMPTY
        return self.throttling.explained(self.harmful)

    @property
    def contended(self) -> Ints:
        """The rest of it."""
        return intervals.subtract(self.harmful, self.throttled)


def delays(facts: Facts) -> list[Delay]:
    """Return the delay of the main launching thread of every device."""
    cgroups = {target.cgroup for target in facts.manifest.targets if target.cgroup}
    throttling = load_throttling(facts.session, cgroups)
    result = []
    for device in facts.devices:
        launcher = facts.main_launcher(device)
        if launcher is None or launcher.absences is None:
            continue
        ready = intervals.intersect(launcher.states["ready"], facts.demand)
        harmful = intervals.subtract(ready, facts.busy(device))
        result.append(Delay(launcher, device, harmful, throttling))
    return result


def exclusion(facts: Facts, launcher: Launcher) -> Exclusion | None:
    """Return why the CPU delay of a launching thread's process is no cause, with its number."""
    absences = facts.absences
    if absences is None:
        return None
    is_own = (absences.pid == launcher.pid) & (absences.end <= facts.complete_ns)
    own = absences.pick(is_own)
    if own.has_state.any():
        spans, what = own.ready_spans, "ready but not running"
    else:
        spans, what = own.spans, "off the CPU for any reason"
    lengths = spans[:, 1] - spans[:, 0]
    longest = int(lengths.max()) if len(lengths) else 0
    seconds = float(lengths.sum()) / 1e9
    return Exclusion(
        CPU_DELAY,
        f"the launching process was {what} for {seconds:.3f} s in all, at most "
        f"{longest / 1e6:.3g} ms at a time",
        Evidence("off_cpu_of_launching_process", round(seconds, 6), "s", len(own), "offcpu"),
    )


def _culprits(delay: Delay, spans: Ints) -> list[tuple[int | None, int | None, str, int]]:
    """Tasks that had the CPU meanwhile: (pid, tid, name, ns), the worst first."""
    absences = delay.launcher.absences
    assert absences is not None
    cost = intervals.overlap_each(absences.ready_spans, spans)
    totals: dict[tuple[int | None, str], tuple[int, int | None]] = {}
    sums = np.bincount(absences.culprit, cost, minlength=len(absences.culprits))
    for (pid, tid, name), total in zip(absences.culprits, sums.tolist(), strict=True):
        key = (0, "idle CPU") if tid == 0 else (pid, name)
        former = totals.get(key, (0, tid))
        totals[key] = (former[0] + int(total), former[1])
    ranked = [(pid, tid, name, ns) for (pid, name), (ns, tid) in totals.items() if ns > 0]
    return sorted(ranked, key=lambda item: -item[3])


def find_cpu_delay(facts: Facts) -> Finding:
    """Return whether the launching thread waited for a CPU while the device ran dry."""
    measured = delays(facts)
    if not measured:
        return Finding(
            CPU_DELAY, Status.NOT_APPLICABLE, undecided_because="no thread handed work to a device"
        )
    worst = max(measured, key=lambda item: intervals.total(item.contended))
    launcher = worst.launcher
    if not launcher.has_states and len(launcher.absences or ()) > 0:
        return _without_states(facts, launcher)
    severity = assess(worst.contended, facts.demand)
    where = _where(facts, worst)
    finding = Finding(
        CPU_DELAY,
        Status.NOT_FOUND,
        spans=worst.contended,
        start_ns=severity.start_ns,
        end_ns=severity.end_ns,
        where=where,
        lost_ns=severity.lost_ns,
        lost_share=severity.share,
        evidence=_evidence(worst, worst.contended),
    )
    ruled_out = exclusion(facts, launcher)
    if not severity.is_material:
        finding.excluded = [ruled_out] if ruled_out else []
        finding.confidence = 0.9 * facts.trust("sched", "offcpu")
        return finding
    culprits = _culprits(worst, worst.contended)
    in_all = sum(item[3] for item in culprits)
    held = [item for item in culprits if item[2] != "idle CPU"]
    occupied = sum(item[3] for item in held) / max(in_all, 1)
    finding.evidence.append(
        Evidence("cpu_occupied_share", round(100 * occupied, 1), "%", None, "offcpu")
    )
    confidence = 0.95 * facts.trust("sched", "offcpu", "cuda")
    steal = steal_share(facts.session)
    if steal is not None and steal >= STEAL_SHARE:
        finding.evidence.append(Evidence("cpu_steal", round(100 * steal, 1), "%", None, "host"))
        confidence *= 1 - steal
    busy = _utilisation_excuse(facts, worst)
    if busy is not None:
        finding.excluded.append(busy)
        return finding
    if occupied < OCCUPIED_SHARE:
        finding.status = Status.UNDECIDED
        finding.confidence = 0.5
        finding.undecided_because = (
            "the launching thread was ready while its CPU was idle: a CPU quota or a slow wake, "
            "not another task"
        )
        finding.settled_by = "host_sample of the target's cgroup"
        return finding
    groups = _by_name(held, in_all, launcher.pid)
    names = [text for text, _ in groups]
    culprit = " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
    finding.status, finding.confidence = Status.FOUND, confidence
    finding.evidence += [Evidence("cpu_taken_by", culprit, "", None, "offcpu")]
    finding.evidence += [
        Evidence("cpu_taken_by_share", round(100 * share, 1), "%", None, "offcpu")
        for _, share in groups[:1]
    ]
    own = f"process {launcher.pid}"
    finding.summary = (
        f"The thread {launcher.tid} of {own} that feeds the device was ready to run but waited "
        f"for a CPU for {severity.lost_ns / 1e9:.2f} s ({100 * severity.share:.0f} % of the time "
        f"with demand); {culprit} held the CPU."
    )
    finding.excluded.extend(_other_launch_causes(worst))
    finding.advice = (
        f"Move {culprit} off the CPUs of the launching thread, or give the launching "
        "thread CPUs of its own (cpuset, taskset) or a higher weight."
    )
    return finding


def _by_name(
    held: list[tuple[int | None, int | None, str, int]], in_all: int, own_pid: int
) -> list[tuple[str, float]]:
    """Who held the CPU, as text with its share of the wait: the worst, and who comes close.

    Several processes of one name (a pool of workers) are one culprit to the reader.
    """
    sums: dict[str, int] = {}
    for _, _, name, ns in held:
        sums[name] = sums.get(name, 0) + ns
    ranked = sorted(sums.items(), key=lambda item: -item[1])
    named: list[tuple[str, float]] = []
    for name, ns in ranked[:MAX_CULPRITS]:
        if named and ns < CULPRIT_SHARE * ranked[0][1]:
            break
        alike = [pid for pid, _, other, _ in held if other == name]
        others = f" and {len(alike) - 1} more of that name" if len(alike) > 1 else ""
        is_own = alike == [own_pid]
        which = "other threads of the same process" if is_own else f"pid {alike[0]}{others}"
        named.append((f"{name} ({which})", ns / max(in_all, 1)))
    return named


def _without_states(facts: Facts, launcher: Launcher) -> Finding:
    """The source tells no state: only small totals can be told, as an upper bound."""
    ruled_out = exclusion(facts, launcher)
    assert launcher.absences is not None
    calls = launcher.calls
    working = launcher.spans(calls.is_submission & ~calls.is_sync)
    inside = intervals.intersect(launcher.absences.spans, working)
    severity = assess(inside, facts.demand)
    finding = Finding(
        CPU_DELAY,
        Status.UNDECIDED if severity.is_material else Status.NOT_FOUND,
        confidence=0.4 if severity.is_material else 0.8,
        where=Where(launcher.pid, launcher.tid, process=facts.process_name(launcher.pid)),
        lost_ns=severity.lost_ns,
        lost_share=severity.share,
        excluded=[ruled_out] if ruled_out and not severity.is_material else [],
    )
    if severity.is_material:
        finding.undecided_because = (
            "the recording does not tell in which state the thread left the CPU, so that waiting "
            "for a CPU cannot be told from sleeping"
        )
        finding.settled_by = "offcpu with the state of the thread: tracer record --pid PID"
    return finding


def _utilisation_excuse(facts: Facts, delay: Delay) -> Exclusion | None:
    """The device may have been kept busy by a deep queue: then the delay cost nothing."""
    samples = facts.utilisation(delay.device)
    if samples is None:
        return None
    edges = intervals.windows(facts.start_ns, facts.end_ns, 1_000_000_000)
    cost = intervals.coverage(delay.contended, edges)
    hit = np.flatnonzero(cost >= 50_000_000)
    if len(hit) == 0:
        return None
    mean = samples.mean(intervals.union(intervals.make(edges[hit], edges[hit + 1])))
    if mean is None or mean[0] < 95.0:
        return None
    return Exclusion(
        CPU_DELAY,
        f"the device stayed {mean[0]:.0f} % utilised in the seconds with the delay: a deep queue "
        "hid it",
        Evidence("utilisation_during_delay", round(mean[0], 1), "%", mean[1], "gpu_sample"),
    )


def _where(facts: Facts, delay: Delay) -> Where:
    pid = delay.launcher.pid
    return Where(pid, delay.launcher.tid, delay.device, process=facts.process_name(pid))


def _evidence(delay: Delay, spans: Ints) -> list[Evidence]:
    absences = delay.launcher.absences
    assert absences is not None
    cost = intervals.overlap_each(absences.ready_spans, spans)
    waits = cost[cost > 0]
    result = [
        Evidence("ready_not_running", intervals.total(spans), "ns", len(waits), "offcpu"),
    ]
    p99 = quantiles.quantile(waits, 0.99)
    if p99 is not None:
        result.append(Evidence(f"wait_{p99.label}", int(p99.value), "ns", p99.n, "offcpu"))
    in_calls = delay.launcher.time_inside(None, spans)
    result.append(Evidence("of_which_inside_calls", in_calls, "ns", None, "offcpu, cuda_call"))
    return result


def _other_launch_causes(delay: Delay) -> list[Exclusion]:
    result = []
    throttling = delay.throttling
    if throttling is not None:
        result.append(
            Exclusion(
                CGROUP_THROTTLE,
                f"{throttling.n_throttled} of {throttling.n_periods} quota periods were throttled, "
                f"for {throttling.throttled_ns / 1e9:.2f} s in all; these waits come on top",
                Evidence("n_throttled", throttling.n_throttled, "", throttling.n_periods, "host"),
            )
        )
    calls = delay.launcher.calls
    rows = delay.launcher.rows
    launches = rows[calls.is_kind("launch", "graph_launch")[rows]]
    p50 = quantiles.median(calls.duration[launches])
    if p50 is not None:
        result.append(
            Exclusion(
                "launch.host_bound",
                "the thread was not computing in this time, it was not running",
                Evidence("launch_p50", int(p50), "ns", len(launches), "cuda_call"),
            )
        )
    return result


def _throttled_unseen(facts: Facts) -> Finding | None:
    """What a quota did to a process whose launching thread was not recorded; None for nothing."""
    cgroups = {target.cgroup for target in facts.manifest.targets if target.cgroup}
    throttling = load_throttling(facts.session, cgroups)
    if throttling is None or throttling.quota_ns is None:
        return None
    severity = assess(throttling.spans, facts.demand)
    if not severity.is_material:
        return None
    return Finding(
        CGROUP_THROTTLE,
        Status.UNDECIDED,
        confidence=0.55,
        start_ns=severity.start_ns,
        end_ns=severity.end_ns,
        lost_ns=severity.lost_ns // 2,
        lost_share=severity.share / 2,
        evidence=[
            Evidence(
                "n_throttled", throttling.n_throttled, "", throttling.n_periods, "host_sample"
            ),
            Evidence("throttled", throttling.throttled_ns, "ns", None, "host_sample"),
        ],
        undecided_because=f"the quota of {throttling.scope} throttled it in "
        f"{throttling.n_throttled} of {throttling.n_periods} periods, but whether that stopped the "
        "launching thread was not recorded",
        settled_by="offcpu: tracer record --pid PID as root",
    )


def find_cgroup_throttle(facts: Facts) -> Finding:
    """Return whether a CFS quota parked the launching process."""
    measured = [item for item in delays(facts) if item.throttling is not None]
    if not measured and facts.absences is None:
        unseen = _throttled_unseen(facts)
        if unseen is not None:
            return unseen
    if not measured:
        return Finding(
            CGROUP_THROTTLE,
            Status.NOT_APPLICABLE,
            undecided_because="no cgroup of a launching process was sampled",
        )
    worst = max(measured, key=lambda item: intervals.total(item.throttled))
    throttling = worst.throttling
    assert throttling is not None
    severity = assess(worst.throttled, facts.demand)
    finding = Finding(
        CGROUP_THROTTLE,
        Status.NOT_FOUND,
        spans=worst.throttled,
        confidence=0.9,
        start_ns=severity.start_ns,
        end_ns=severity.end_ns,
        where=_where(facts, worst),
        lost_ns=severity.lost_ns,
        lost_share=severity.share,
        evidence=[
            Evidence(
                "n_throttled", throttling.n_throttled, "", throttling.n_periods, "host_sample"
            ),
            Evidence("throttled", throttling.throttled_ns, "ns", None, "host_sample"),
            *_evidence(worst, worst.throttled),
        ],
    )
    if not severity.is_material:
        finding.excluded.append(
            Exclusion(
                CGROUP_THROTTLE,
                f"{throttling.n_throttled} of {throttling.n_periods} quota periods were throttled",
            )
        )
        return finding
    if throttling.quota_ns is None:
        finding.status, finding.confidence = Status.UNDECIDED, 0.4
        finding.undecided_because = "the cgroup reports throttling but no quota is known"
        return finding
    finding.status = Status.FOUND
    finding.confidence = 0.95 * facts.trust("sched", "offcpu", "host")
    period = throttling.period_ns or 100_000_000
    finding.evidence.append(
        Evidence("cpu_quota", round(throttling.quota_ns / period, 2), "CPUs", None, "host_sample")
    )
    finding.summary = (
        f"The CPU quota of {throttling.scope} ({throttling.quota_ns / period:.2g} CPUs) parked the "
        f"launching thread for {severity.lost_ns / 1e9:.2f} s "
        f"({100 * severity.share:.0f} % of the time with demand)."
    )
    finding.excluded.append(
        Exclusion(CPU_DELAY, "these waits are no longer than the quota throttled meanwhile")
    )
    return finding


CAUSES = (
    Cause(
        CPU_DELAY,
        "the launching thread waited for a CPU",
        "The thread that launches was ready to run and did not run.",
        "Off the CPU in state running, or a long wait from wake to run, inside or between "
        "launches of that thread while the device was idle; the task that had the CPU is named.",
        "Sleeping threads, other processes' threads, first use of kernels, a full queue.",
        "Record the scheduler: tracer record --pid PID as root.",
        "Give the launching thread CPUs of its own.",
        Needs(("cuda_call", "offcpu"), optional=("host_sample", "gpu_sample", "engine_sample")),
        find_cpu_delay,
    ),
    Cause(
        CGROUP_THROTTLE,
        "a CPU quota parked the launching process",
        "The CFS quota of its cgroup stopped all threads of the process at once.",
        "Throttled periods rise with a quota set, in the seconds in which the launching thread "
        "was ready and did not run.",
        "Waits for a CPU without a quota.",
        "Record host samples and the scheduler: tracer record --pid PID as root.",
        "Raise or remove the quota (cpu.max), or run fewer threads inside it.",
        Needs(("host_sample",), optional=("cuda_call", "offcpu", "engine_sample")),
        find_cgroup_throttle,
    ),
)
