"""Each launch is normal, but the device runs dry between them: the host is the limit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis import intervals, quantiles
from analysis.causes import device_idle, launch_delay
from analysis.causes.declaration import Cause, Needs
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.severity import assess
from analysis.threads import Launcher
from analysis.waits import thread_shares

Ints = npt.NDArray[np.int64]

HOST_BOUND = device_idle.HOST_BOUND

#: Share of the demand that the device must be idle. A healthy engine that computes its next step
#: after the sync of the last leaves its device alone for a tenth to a fifth of each step.
IDLE_SHARE = 0.25
#: Share of the steps whose sync must be short for the queue to be shallow, and what is short: it
#: waits for nothing, or for no more than a tenth of the step: the device has caught up by then.
SHORT_SHARE = 0.5
SHORT_WAIT = 0.1
#: How far the utilisation must lie below the busy share of the launching thread, %: the
#: utilisation of a window is an average over up to a second.
MARGIN_PCT = 10.0
#: Where sleeps were not recorded: share of the seeming work that the thread must be on a CPU.
ON_CPU = 0.8
#: Gaps of more than this many times the median are not the rhythm of a step.
RHYTHM = 5
#: Steps and utilisation samples that a statement needs.
N_STEPS = 20
N_SAMPLES = 3


def find_host_bound(facts: Facts) -> Finding:
    """Return whether the device ran dry because the host launched too slowly."""
    timed = device_idle.find_host_bound(facts)
    if timed is not None and not facts.has_live_times:
        return timed
    best: Finding | None = None
    for device in facts.devices:
        finding = _of_device(facts, device)
        if finding is not None and (best is None or _weight(finding) > _weight(best)):
            best = finding
    return (
        best
        or timed
        or Finding(
            HOST_BOUND,
            Status.NOT_APPLICABLE,
            undecided_because="too few steps or utilisation samples to compare",
        )
    )


def _weight(finding: Finding) -> tuple[bool, int]:
    return finding.status is Status.FOUND, finding.lost_ns


def _of_device(facts: Facts, device: int | None) -> Finding | None:
    launcher = facts.main_launcher(device)
    samples = facts.utilisation(device)
    if launcher is None or samples is None:
        return None
    demand = facts.demand
    mean = samples.mean(demand)
    steps = facts.steps(launcher.pid)
    if mean is None or mean[1] < N_SAMPLES or len(steps) < N_STEPS:
        return None
    working = intervals.intersect(launcher.states["working"], demand)
    idle = intervals.intersect(facts.idle(device), working)
    idle_share = intervals.total(idle) / facts.demand_ns
    working_pct = 100 * intervals.total(working) / facts.demand_ns
    has_work = steps.n_launches + steps.n_graphs > 0
    n_steps = int(has_work.sum())
    waited = steps.idle_start - steps.sync_start
    is_short = ~steps.is_waiting | (waited <= SHORT_WAIT * steps.duration)
    short_share = float(is_short[has_work].mean()) if n_steps else 0.0
    is_dry = short_share >= SHORT_SHARE and mean[0] + MARGIN_PCT < working_pct
    unused = 1 - mean[0] / 100
    # Proven idle time where there is enough of it, else all that the utilisation leaves.
    spans = idle if idle_share >= unused or not is_dry else working
    severity = assess(spans, demand)
    lost_ns = min(severity.lost_ns, int(unused * facts.demand_ns))
    share = lost_ns / facts.demand_ns
    finding = Finding(
        HOST_BOUND,
        Status.NOT_FOUND,
        confidence=0.85,
        start_ns=severity.start_ns,
        end_ns=severity.end_ns,
        where=Where(launcher.pid, launcher.tid, device, process=facts.process_name(launcher.pid)),
        lost_ns=lost_ns,
        lost_share=share,
        spans=idle,
        evidence=[
            Evidence("utilisation", round(mean[0], 1), "%", mean[1], "gpu_sample"),
            Evidence("launching_thread_busy", round(working_pct, 1), "%", None, "cuda_call"),
            Evidence("idle_while_host_worked", round(100 * idle_share, 1), "%", n_steps, ""),
            Evidence(
                "steps_with_short_sync", round(100 * short_share, 1), "%", n_steps, "cuda_call"
            ),
        ],
    )
    pauses = idle[:, 1] - idle[:, 0]
    median = quantiles.median(pauses)
    is_rhythm = median is not None and (
        int(pauses[pauses <= RHYTHM * median].sum()) * 2 >= int(pauses.sum())
    )
    if share < IDLE_SHARE or unused < IDLE_SHARE or not (is_dry or idle_share >= IDLE_SHARE):
        finding.excluded.append(
            Exclusion(
                HOST_BOUND,
                f"the device was {mean[0]:.0f} % utilised, and idle while the host worked for "
                f"{100 * idle_share:.0f} % of the time",
            )
        )
        return finding
    calls = launcher.calls
    rows = launcher.rows[calls.is_kind("launch", "graph_launch")[launcher.rows]]
    p50 = quantiles.median(calls.duration[rows])
    if p50 is not None:
        finding.evidence.append(Evidence("launch_p50", int(p50), "ns", len(rows), "cuda_call"))
    ruled_out = launch_delay.exclusion(facts, launcher)
    if ruled_out is not None:
        finding.excluded.append(ruled_out)
    if not is_dry and not is_rhythm:
        finding.status, finding.confidence = Status.UNDECIDED, 0.4
        finding.undecided_because = (
            "the device is idle while the host computes, but in few long pauses rather than in "
            "every step: garbage collection or compilation look the same"
        )
        finding.settled_by = "the interpreter's collector and the process's children (event)"
        return finding
    if not launcher.has_states and not _computes(facts, launcher, working_pct):
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.undecided_because = (
            "without the scheduler a thread that computes cannot be told from one that waits"
        )
        finding.settled_by = "offcpu: tracer record --pid PID as root"
        return finding
    finding.status = Status.FOUND
    finding.confidence = 0.85 * facts.trust("cuda", "nvml", "sched")
    finding.summary = (
        f"The device was {mean[0]:.0f} % utilised while the launching thread worked "
        f"{working_pct:.0f} % of the time: each launch is normal, and the device runs dry between "
        f"them ({100 * share:.0f} % of the time with demand)."
    )
    return finding


def _computes(facts: Facts, launcher: Launcher, working_pct: float) -> bool:
    """Whether the launching thread was on a CPU for most of the time that it seems to work."""
    span = facts.end_ns - facts.start_ns
    told = thread_shares(facts.session, {launcher.pid}, span) or {}
    own = told.get((launcher.pid, launcher.tid))
    demand = facts.demand_ns / max(span, 1)
    return own is not None and 100 * own.running >= ON_CPU * working_pct * demand


CAUSES = (
    Cause(
        HOST_BOUND,
        "the host launches too slowly",
        "Each launch is normal, but the device runs dry between them.",
        "Short syncs and a utilisation below the launching thread's busy share, or idle time in "
        "every step that ends at the next launch while the thread computes; with device times, "
        "gaps that end at a late launch; no delay inside.",
        "Back-pressure: long launch calls with a full queue mean that the device is behind.",
        "Record the scheduler and NVML: tracer record --pid PID as root; device times settle it.",
        "Use CUDA graphs, larger batches or asynchronous scheduling; take Python out of the step.",
        Needs(
            ("cuda_call",),
            (("gpu_sample", "gpu_activity"),),
            ("offcpu", "engine_sample"),
        ),
        find_host_bound,
    ),
)
