"""An affinity mask that makes threads wait for a CPU while others are idle."""

from __future__ import annotations

from dataclasses import dataclass

from analysis import intervals
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.host import load_throttling
from analysis.waits import ThreadShare, thread_shares

PLACEMENT = "launch.placement"

#: CPUs that the threads of a process must miss on average, and the share of the CPU time they want.
MISSED_CPUS = 0.3
STARVED = 0.4
#: Share of its CPUs that the service itself must use: else others hold them, which is contention.
OWN_USE = 0.8
#: CPUs of the host that must be idle on average meanwhile.
IDLE_CPUS = 1.0
#: Samples that an average needs.
N_SAMPLES = 4
#: Utilisation in % from which the device is not waiting for the host.
USED_PCT = 75.0
#: Share of throttled periods from which a quota may be what the threads wait for.
THROTTLED = 0.05


@dataclass(frozen=True)
class _Narrow:
    """What a process may use and did.

    Attributes:
        pid: The process.
        allowed: CPUs that it may use.
        elsewhere: The most that a process of the recording may use.
        share: What its threads had and missed, CPUs.
        used: What all recorded processes with the same mask had, CPUs.
    """

    pid: int
    allowed: int
    elsewhere: int
    share: ThreadShare
    used: float


def find_narrow_mask(facts: Facts) -> Finding:
    """Return whether threads of a process waited for its few CPUs while others were idle."""
    finding = Finding(PLACEMENT, Status.NOT_FOUND, confidence=0.7)
    host = _host(facts)
    if host is None:
        finding.excluded.append(
            Exclusion(PLACEMENT, "the CPUs of the host and their idle time were not recorded")
        )
        return finding
    n_cpus, idle_cpus = host
    narrow = [item for item in _processes(facts) if item.allowed < n_cpus]
    worst = max(narrow, key=lambda item: item.share.waiting, default=None)
    if worst is None:
        finding.excluded.append(
            Exclusion(PLACEMENT, f"no process is kept from any of the {n_cpus} CPUs")
        )
        return finding
    share, name = worst.share, facts.process_name(worst.pid) or "a process"
    finding.where = Where(worst.pid, process=facts.process_name(worst.pid))
    missed = share.waiting / max(share.wanted, 1e-9)
    finding.evidence = [
        Evidence("cpus_allowed", worst.allowed, "CPUs", None, "process_sample"),
        Evidence("cpus_of_host", n_cpus, "CPUs", None, "host_sample"),
        Evidence("cpus_idle", round(idle_cpus, 1), "CPUs", None, "host_sample"),
        Evidence("waited_for_cpu", round(100 * missed), "%", None, "thread_second"),
    ]
    if share.waiting < MISSED_CPUS or missed < STARVED or idle_cpus < IDLE_CPUS:
        finding.excluded.append(
            Exclusion(
                PLACEMENT,
                f"{name} (pid {worst.pid}) waited for its {worst.allowed} CPUs for "
                f"{100 * missed:.0f} % of the time that it wanted one, with {idle_cpus:.1f} CPUs "
                "of the host idle",
            )
        )
        return finding
    if worst.used < OWN_USE * worst.allowed:
        finding.excluded.append(
            Exclusion(
                PLACEMENT,
                f"{name} (pid {worst.pid}) used {worst.used:.1f} of its {worst.allowed} CPUs: "
                "others hold them (launch.cpu_delay)",
            )
        )
        return finding
    return _decide(facts, finding, worst, idle_cpus, missed)


def _decide(
    facts: Facts, finding: Finding, worst: _Narrow, idle_cpus: float, missed: float
) -> Finding:
    name = facts.process_name(worst.pid) or "a process"
    used = _used(facts)
    if used is not None:
        finding.evidence.append(
            Evidence("utilisation", round(used[0], 1), "%", used[1], "gpu_sample")
        )
        if used[0] >= USED_PCT:
            finding.excluded.append(
                Exclusion(PLACEMENT, f"the device was {used[0]:.0f} % utilised all the same")
            )
            return finding
    finding.start_ns, finding.end_ns = facts.start_ns, facts.end_ns
    finding.lost_share = 0.3 if used is None else 1 - used[0] / 100
    finding.lost_ns = int(finding.lost_share * (facts.end_ns - facts.start_ns))
    text = (
        f"{name} (pid {worst.pid}) may use {worst.allowed} CPUs, and its threads waited for one "
        f"for {100 * missed:.0f} % of the time that they wanted it, while {idle_cpus:.1f} CPUs of "
        "the host were idle"
    )
    why = ""
    if _is_throttled(facts):
        why = "its cgroup was throttled as well"
    elif worst.elsewhere <= worst.allowed:
        why = "no process of the service may use more: that may be a cpuset that is meant"
    elif used is None:
        why = "nothing tells whether the device was idle"
    if why:
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.undecided_because = f"{text}; but {why}"
        finding.settled_by = "the same load with a wider mask (taskset -ap), several runs each"
        return finding
    finding.status = Status.FOUND
    finding.confidence = 0.85 * facts.trust("thread", "process", "host", "nvml")
    finding.summary = (
        f"{text}. Another process of the service may use {worst.elsewhere}: the mask was shrunk."
    )
    finding.excluded.append(Exclusion("launch.cpu_delay", f"{idle_cpus:.1f} CPUs were idle"))
    return finding


def _host(facts: Facts) -> tuple[int, float] | None:
    """CPUs of the host, and how many of them were idle on average; None where not recorded."""
    if not facts.session.has("host_sample"):
        return None
    columns = ("time_ns", "scope", "n_cpus", "cpu_idle_ns")
    rows = facts.session.table("host_sample", columns=columns).to_pandas()
    rows = rows[rows["scope"] == "host"].dropna()
    if len(rows) < N_SAMPLES:
        return None
    span = int(rows["time_ns"].iloc[-1]) - int(rows["time_ns"].iloc[0])
    idle = float(rows["cpu_idle_ns"].iloc[-1] - rows["cpu_idle_ns"].iloc[0])
    return int(rows["n_cpus"].iloc[-1]), idle / max(span, 1)


def _processes(facts: Facts) -> list[_Narrow]:
    """Processes whose mask and threads were recorded."""
    if not facts.session.has("process_sample"):
        return []
    columns = ("time_ns", "pid", "n_cpus_allowed", "cpus_allowed")
    rows = facts.session.table("process_sample", columns=columns).to_pandas()
    rows = rows[rows["n_cpus_allowed"].notna()]
    latest = rows.groupby("pid").last()
    span_ns = facts.end_ns - facts.start_ns
    told = thread_shares(facts.session, {int(pid) for pid in latest.index}, span_ns) or {}
    had: dict[int, ThreadShare] = {}
    for (pid, _tid), share in told.items():
        so_far = had.get(pid, ThreadShare(0.0, 0.0))
        had[pid] = ThreadShare(so_far.running + share.running, so_far.waiting + share.waiting)
    masks = {
        int(pid): (int(row["n_cpus_allowed"]), row["cpus_allowed"])
        for pid, row in latest.iterrows()
    }
    most = max((allowed for allowed, _list in masks.values()), default=0)
    return [
        _Narrow(
            pid,
            masks[pid][0],
            most,
            share,
            sum(other.running for one, other in had.items() if masks[one] == masks[pid]),
        )
        for pid, share in had.items()
        if masks[pid][0] > 0
    ]


def _used(facts: Facts) -> tuple[float, int] | None:
    """Mean utilisation of the most used device in %, and of how many samples."""
    whole = intervals.make([facts.start_ns], [facts.complete_ns])
    means = [
        mean
        for device in facts.devices
        if (samples := facts.utilisation(device)) is not None
        and (mean := samples.mean(whole)) is not None
    ]
    return max(means, default=None)


def _is_throttled(facts: Facts) -> bool:
    """Whether a CPU quota parked the service: its threads then wait for no CPU."""
    cgroups = {target.cgroup for target in facts.manifest.targets if target.cgroup}
    throttling = load_throttling(facts.session, cgroups)
    if throttling is None:
        return False
    return throttling.n_throttled > THROTTLED * max(throttling.n_periods, 1)
