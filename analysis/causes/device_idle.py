"""Idle devices, told from device times: host too slow, host made to wait, input too slow."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis import device_time, intervals, quantiles
from analysis.back_pressure import back_pressure
from analysis.causes import launch_delay, live_idle
from analysis.causes.declaration import Cause, Needs
from analysis.causes.sampled_input import find_sampled_starvation
from analysis.device_time import BUSY, SPAN_TEXT
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.idleness import TABLES, WAIT_NS, Idleness
from analysis.severity import MATERIAL_SHARE

Ints = npt.NDArray[np.int64]

HOST_BOUND = "launch.host_bound"
SYNC = live_idle.SYNC
INPUT = live_idle.INPUT

#: Part of a gap (analysis/idleness.py) that each cause is about.
_REASON = {HOST_BOUND: "late_launch", SYNC: "sync", INPUT: "input"}

#: A statement about what happens in every step needs as many waits or loads.
N_REPEATS = 3
#: A program that needs each step's result before the next (decoding token by token) idles for a
#: tenth to a fifth of the step after its sync, and is well; a stall costs more than that.
SYNC_SHARE = 0.25
#: Half of the idle time must lie in at least so many gaps to be the rhythm of launching; one or a
#: few long pauses are something else (compilation, garbage collection, a slow call).
N_RHYTHM = 10
#: Launches that a statement about the rhythm needs.
N_LAUNCHES = 20


def find_host_bound(facts: Facts) -> Finding | None:
    """Return whether devices ran dry between launches; None without device times and calls."""
    found = [_host_bound(facts, item) for item in facts.timed if _has_calls(item)]
    return max(found, key=_weight) if found else None


def find_sync_stall(facts: Facts) -> Finding:
    """Return whether waits of the host for the device drained its queue in every step."""
    if not facts.timed or facts.has_live_times:
        live = live_idle.find_sync_stall(facts)
        if live is not None:
            return live
    return _best(
        facts, SYNC, [_sync_stall(facts, item) for item in facts.timed if _has_calls(item)]
    )


def find_input_starvation(facts: Facts) -> Finding:
    """Return whether the device was idle in every step while the program loaded its input."""
    if facts.calls is None and not facts.timed:
        return find_sampled_starvation(facts)
    if not facts.timed or facts.has_live_times:
        live = live_idle.find_input_starvation(facts)
        if live is not None:
            # Loads that the program named itself tell what sleeps alone do not.
            named = [_starvation(facts, item) for item in facts.timed if item.n_inputs]
            return max((live, *named), key=_weight)
    if not facts.session.has("annotation"):
        return _best(facts, INPUT, [])
    return _best(facts, INPUT, [_starvation(facts, item) for item in facts.timed])


def _has_calls(item: Idleness) -> bool:
    return int(item.activities.has_call.sum()) >= N_LAUNCHES


def _weight(finding: Finding) -> tuple[int, int]:
    order = {Status.FOUND: 2, Status.UNDECIDED: 1}
    return order.get(finding.status, 0), finding.lost_ns


def _best(facts: Facts, cause: str, found: list[Finding]) -> Finding:
    if found:
        return max(found, key=_weight)
    return Finding(
        cause,
        Status.NOT_APPLICABLE,
        undecided_because="no device has enough activities whose calls are known, with the ranges "
        "that the program named",
    )


def _wanted(facts: Facts, item: Idleness) -> Ints:
    """Per gap, the part in ns in which work was asked and the launching thread could run."""
    asked = facts.demand
    launcher = facts.main_launcher(item.activities.device)
    if launcher is not None and launcher.absences is not None:
        for state in ("ready", "asleep", "blocked"):
            asked = intervals.subtract(asked, launcher.states[state])
    return intervals.overlap_each(item.gaps.spans, asked)


def _start(facts: Facts, item: Idleness, cause: str, lost: Ints) -> Finding:
    """A finding that is not found yet, about the lost part of each gap."""
    device = item.activities.device
    launcher = facts.main_launcher(device)
    hit = np.flatnonzero(lost)
    usage = item.usage
    share = int(lost.sum()) / max(usage.span_ns, 1)
    return Finding(
        cause,
        Status.NOT_FOUND,
        confidence=0.85,
        start_ns=int(item.gaps.spans[hit[0], 0]) if len(hit) else None,
        end_ns=int(item.gaps.spans[hit[-1], 1]) if len(hit) else None,
        where=Where(
            None if launcher is None else launcher.pid,
            None if launcher is None else launcher.tid,
            device,
            item.activities.rank,
            None if launcher is None else facts.process_name(launcher.pid),
        ),
        lost_ns=int(lost.sum()),
        lost_share=share,
        evidence=[
            _share(BUSY, usage.busy_ns, item, len(item.activities.spans)),
            _share("lost_share", int(lost.sum()), item, len(hit)),
        ],
        spans=intervals.intersect(item.spans(_REASON[cause]), facts.demand),
    )


def _share(name: str, length_ns: int, item: Idleness, n: int | None) -> Evidence:
    share = 100 * length_ns / max(item.usage.span_ns, 1)
    return Evidence(name, round(share, 1), "%", n, "gpu_activity")


def _count_for_half(lengths: Ints) -> int:
    """How many of the longest gaps make up half of the whole."""
    ordered = np.sort(lengths[lengths > 0])[::-1]
    if len(ordered) == 0:
        return 0
    return int(np.searchsorted(np.cumsum(ordered), ordered.sum() / 2)) + 1


def _host_bound(facts: Facts, item: Idleness) -> Finding:
    lost = np.minimum(item.rest_ns, _wanted(facts, item))
    finding = _start(facts, item, HOST_BOUND, lost)
    depth = device_time.queue_depth(item.activities)
    idle = max(item.usage.idle_ns, 1)
    late = int(item.gaps.length_ns[item.gaps.is_late_launch].sum())
    finding.evidence += [
        Evidence("idle_until_late_launch", round(100 * late / idle, 1), "%", len(lost), ""),
        Evidence("queue_depth_mean", round(float(depth.mean()), 1), "", len(depth), "cuda_call"),
    ]
    calls = item.activities
    p50 = quantiles.median((calls.call_end_ns - calls.call_start_ns)[calls.has_call])
    if p50 is not None:
        n = int(calls.has_call.sum())
        finding.evidence.append(Evidence("launch_p50", int(p50), "ns", n, "cuda_call"))
    if finding.lost_share < MATERIAL_SHARE:
        finding.excluded.append(
            Exclusion(
                HOST_BOUND,
                f"the device waited for a launch in {100 * finding.lost_share:.1f} % of "
                f"{SPAN_TEXT}",
            )
        )
        finding.lost_ns, finding.lost_share = 0, 0.0
        return finding
    inside = int(np.minimum(item.long_call_ns, lost).sum())
    n_half = _count_for_half(lost)
    if 2 * inside > finding.lost_ns or n_half < N_RHYTHM:
        finding.status, finding.confidence = Status.UNDECIDED, 0.4
        finding.undecided_because = (
            f"the device waited while the host was inside long calls{_longest(facts, item)}"
            if 2 * inside > finding.lost_ns
            else f"half of the idle time lies in {n_half} pauses, not in the rhythm of launching: "
            "compilation or garbage collection look the same"
        )
        finding.settled_by = "what the host did in these pauses: operators, or offcpu and event"
        if 2 * inside > finding.lost_ns and facts.has_live_times:
            held = intervals.overlap(item.gaps.spans, back_pressure(facts.session).spans)
            full = f"the device's queue was full for {held / 1e6:.1f} ms of these pauses"
            finding.excluded.append(Exclusion("device.compute_bound", full))
        return finding
    launcher = facts.main_launcher(calls.device)
    ruled_out = launch_delay.exclusion(facts, launcher) if launcher is not None else None
    if ruled_out is not None:
        finding.excluded.append(ruled_out)
    finding.excluded.append(Exclusion(SYNC, _small("waits for the device", item.sync_ns, item)))
    finding.excluded.append(Exclusion(INPUT, _small("loading of input", item.input_ns, item)))
    finding.status = Status.FOUND
    finding.confidence = 0.88 * facts.trust("cuda", "cupti")
    finding.summary = (
        f"Device {calls.device} was idle for {100 * item.usage.idle_ns / item.usage.span_ns:.0f} % "
        f"of {SPAN_TEXT}, and each gap ended with the next launch, which came late: the host "
        f"launches more slowly than the device works ({100 * finding.lost_share:.0f} % lost, "
        f"{len(depth)} launches)."
    )
    return finding


def _longest(facts: Facts, item: Idleness) -> str:
    """Names the function that the host was in for most of the late gaps."""
    calls = facts.calls
    if calls is None:
        return ""
    rows = np.flatnonzero(calls.has_return & (calls.duration > WAIT_NS))
    late = item.gaps.spans[item.gaps.is_late_launch]
    inside = intervals.overlap_each(intervals.make(calls.start[rows], calls.ends(rows)), late)
    by_function = np.bincount(calls.function[rows], weights=inside, minlength=1)
    top = int(np.argmax(by_function))
    if not by_function[top]:
        return ""
    return f", mostly {calls.functions[top]} ({by_function[top] / 1e6:.0f} ms)"


def _small(what: str, lengths: Ints, item: Idleness) -> str:
    share = 100 * int(lengths.sum()) / max(item.usage.span_ns, 1)
    return f"{what} explain {share:.1f} % of {SPAN_TEXT}"


def _sync_stall(facts: Facts, item: Idleness) -> Finding:
    lost = np.minimum(item.sync_ns, intervals.overlap_each(item.gaps.spans, facts.demand))
    finding = _start(facts, item, SYNC, lost)
    drains = item.is_drain
    n = int(drains.sum())
    waited = int(item.wait_ns[drains].sum())
    finding.evidence += [
        Evidence("waits_that_drained", n, "", n, "cuda_call"),
        Evidence("waited_in_them", waited, "ns", n, "cuda_call"),
        _share("input_loading_after", int(item.input_ns.sum()), item, item.n_inputs),
    ]
    # Waits that repeat, rather than one at the end of a warm-up.
    n_half = _count_for_half(np.where(drains, item.wait_ns, 0))
    if finding.lost_share < SYNC_SHARE or n < N_REPEATS or n_half < 2:
        finding.excluded.append(
            Exclusion(
                SYNC,
                f"{n} waits for the device were followed by idleness that they explain, "
                f"{100 * finding.lost_share:.1f} % of {SPAN_TEXT}",
            )
        )
        finding.lost_ns, finding.lost_share = 0, 0.0
        return finding
    finding.status = Status.FOUND
    finding.confidence = 0.85 * facts.trust("cuda", "cupti")
    finding.summary = (
        f"{n} syncs or blocking copies waited {waited / 1e6:.0f} ms until device "
        f"{item.activities.device} had nothing left to do, and it then idled: without them the "
        f"host would have been ahead for {100 * finding.lost_share:.0f} % of the time."
    )
    loading = int(item.input_ns.sum())
    if loading > MATERIAL_SHARE * item.usage.span_ns:
        finding.summary += (
            " The host loaded input meanwhile: loading in other workers would hide it as well."
        )
    return finding


def _starvation(facts: Facts, item: Idleness) -> Finding:
    wanted = facts.demand
    launcher = facts.main_launcher(item.activities.device)
    if launcher is not None and launcher.absences is not None:
        # A thread that is not given a CPU would be late with anything.
        wanted = intervals.subtract(wanted, launcher.states["ready"])
    lost = np.minimum(item.input_ns, intervals.overlap_each(item.gaps.spans, wanted))
    finding = _start(facts, item, INPUT, lost)
    long = lost[lost > WAIT_NS]
    finding.evidence.append(
        Evidence("input_loads", item.n_inputs, "", item.n_inputs, "annotation"),
    )
    if len(long):
        finding.evidence.append(
            Evidence("longest_idle_in_load", int(long.max()), "ns", len(long), "gpu_activity")
        )
    if finding.lost_share < MATERIAL_SHARE or item.n_inputs < N_REPEATS:
        finding.excluded.append(
            Exclusion(
                INPUT,
                f"the device was idle during {item.n_inputs} loads of input for "
                f"{100 * finding.lost_share:.1f} % of {SPAN_TEXT}",
            )
        )
        finding.lost_ns, finding.lost_share = 0, 0.0
        return finding
    finding.status = Status.FOUND
    finding.confidence = 0.9 * facts.trust("cuda", "cupti")
    finding.summary = (
        f"Device {item.activities.device} was idle while the launching thread loaded input in "
        f"{item.n_inputs} steps: {100 * finding.lost_share:.0f} % of {SPAN_TEXT}, up to "
        f"{int(lost.max()) / 1e6:.0f} ms a step."
    )
    return finding


CAUSES = (
    Cause(
        INPUT,
        "the input pipeline is slower than the device",
        "Each step waits for its data.",
        "The device is idle in every step while the launching thread is inside a range that loads "
        "input, beyond what a sync before it explains, or sleeps until one of its worker processes "
        "wakes it.",
        "Stragglers, garbage collection, a sync that makes loading visible which would have been "
        "hidden.",
        "Record the scheduler: tracer record --pid PID as root; or a PyTorch profiler trace, then "
        "tracer import.",
        "Use more workers, prefetch, or make each item cheaper.",
        Needs(
            any_of=(("cuda_call", "gpu_sample"), ("offcpu", "gpu_activity", "thread_second")),
            optional=("annotation", "event"),
        ),
        find_input_starvation,
    ),
    Cause(
        SYNC,
        "a synchronising call in every step drains the queue",
        "A blocking copy or sync in each step keeps the host from running ahead.",
        "Syncs or blocking copies that wait for work, each followed by idleness that the host "
        "would have hidden had it not waited.",
        "A sync that only waits for kernels costs nothing.",
        "Bring device times: tracer record --cupti -- COMMAND, or tracer import TRACE.",
        "Remove .item(), .cpu() and blocking copies from the step.",
        Needs(("cuda_call",), optional=("gpu_activity", "offcpu", *TABLES[2:])),
        find_sync_stall,
    ),
)
