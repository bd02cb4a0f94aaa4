"""Python itself holds the launches up: the interpreter lock, or the garbage collector."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from analysis import intervals, quantiles
from analysis.causes.declaration import Cause, Needs
from analysis.causes.silence import find_gaps
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.host import steal_share
from analysis.severity import assess
from analysis.threads import Launcher
from analysis.waits import thread_shares, waits_of

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

GIL = "launch.gil"
GC = "launch.gc_pause"

#: A chain is a wait for the lock when a thread of the same process ended it; their share.
BY_SIBLING = 0.5
#: Share of the time that the thread with the lock must be on a CPU, and most that all threads of
#: the process together may be: one at a time.
HOLDER_SHARE = 0.3
ONE_AT_A_TIME = 1.15
#: Waits that a pattern needs.
N_WAITS = 10
#: A gap on the CPU without calls is long from here on, and from so many times the median pause.
GAP_NS = 10_000_000
GAP_RATIO = 20
#: Share of a gap that the thread must be on the CPU or ready for it, and really on it.
ON_CPU = 0.8
COMPUTED = 0.4
#: Gaps that a rhythm needs, and how much their distance in calls may vary (deviation over mean).
N_GAPS = 4
RHYTHM = 0.35
#: Where pauses are missing: how far from a multiple the others may lie, what share of them must lie
#: so near (by chance a third do), and steps from which that can be told.
OFF_BEAT = 0.15
MOST_ON_BEAT = 0.8
LEAST_STEPS = 8
#: Above this, what looks like a pause may be the hypervisor's doing.
STEAL_SHARE = 0.10


def find_gil(facts: Facts) -> Finding:
    """Return whether the launching thread waited for a sibling to let the interpreter go."""
    best: Finding | None = None
    for device in facts.devices:
        launcher = facts.main_launcher(device)
        if launcher is None or launcher.absences is None or not launcher.has_states:
            continue
        finding = _gil(facts, launcher)
        if best is None or finding.lost_ns > best.lost_ns:
            best = finding
    return best or Finding(
        GIL, Status.NOT_APPLICABLE, undecided_because="no launching thread's sleeps were recorded"
    )


def _gil(facts: Facts, launcher: Launcher) -> Finding:
    finding = Finding(
        GIL,
        Status.NOT_FOUND,
        confidence=0.85,
        where=Where(
            launcher.pid,
            launcher.tid,
            facts.device_of[launcher.pid],
            process=facts.process_name(launcher.pid),
        ),
    )
    chains = waits_of(launcher)
    length = chains.length_ns
    by_sibling = (chains.waker_pid == launcher.pid) & (chains.waker_tid != launcher.tid)
    is_proven = int(chains.is_interpreter.sum()) >= N_WAITS
    # Where the interpreter's lock is known, what was slept on another one is not its doing.
    held = chains.is_interpreter if is_proven else by_sibling & ~chains.is_other_lock
    spans = intervals.union(chains.spans[held])
    idle = intervals.subtract(spans, facts.busy(facts.device_of[launcher.pid]))
    severity = assess(idle, facts.demand)
    n = int(held.sum())
    finding.evidence = [
        Evidence(
            "sleeps_on_interpreter_lock" if is_proven else "sleeps_ended_by_own_threads",
            *(int(length[held].sum()), "ns", n, "offcpu"),
        ),
    ]
    told = int(length.sum())
    is_habit = is_proven or int(length[held].sum()) >= BY_SIBLING * told
    if n < N_WAITS or not severity.is_material or not is_habit:
        how = "were on the interpreter's lock" if is_proven else "were ended by its own process"
        finding.excluded.append(
            Exclusion(
                GIL,
                f"{n} of {len(length)} sleeps of the launching thread {how}, "
                f"{100 * severity.share:.0f} % of the time with demand",
            )
        )
        return finding
    finding.lost_ns, finding.lost_share = severity.lost_ns, severity.share
    finding.start_ns, finding.end_ns, finding.spans = severity.start_ns, severity.end_ns, spans
    whole = max(int(length[held].sum()), 1)
    timed = float(length[held & (chains.n_sleeps > 1)].sum()) / whole
    median = quantiles.median(length[held]) or 0
    finding.evidence.append(Evidence("wait_p50", int(median), "ns", n, "offcpu"))
    if is_proven:
        return _proven(facts, launcher, finding, chains.waker_tid[held & by_sibling])
    finding.evidence.append(
        Evidence("in_chains_of_timed_sleeps", round(100 * timed, 1), "%", n, "offcpu")
    )
    waker = int(np.bincount(chains.waker_tid[held]).argmax())
    threads = thread_shares(facts.session, {launcher.pid}, facts.end_ns - facts.start_ns)
    if threads is not None:
        # A holder that waits for a CPU itself holds on as well.
        holding = threads.get((launcher.pid, waker))
        holder = 1.0 if holding is None else holding.wanted
        everyone = sum(item.running for item in threads.values())
        finding.evidence += [
            Evidence(
                f"wants_cpu of thread {waker}",
                "not sampled" if holding is None else round(100 * holder, 1),
                "%",
            ),
            Evidence("on_cpu of the process", round(100 * everyone, 1), "%"),
        ]
        if holder < HOLDER_SHARE or everyone > ONE_AT_A_TIME:
            why = (
                f"thread {waker}, which ended most of the waits, wanted a CPU for only "
                f"{100 * holder:.0f} %"
                if holder < HOLDER_SHARE
                else f"threads of the process used {everyone:.1f} CPUs at a time: no lock held them"
            )
            finding.excluded.append(Exclusion(GIL, why))
            finding.lost_ns, finding.lost_share, finding.spans = 0, 0.0, intervals.EMPTY
            return finding
    finding.status = Status.UNDECIDED
    finding.confidence = (0.65 if timed >= 0.3 else 0.5) * facts.trust("sched", "offcpu")
    finding.summary = (
        f"The launching thread slept outside of CUDA calls for {severity.lost_ns / 1e9:.2f} s "
        f"({100 * severity.share:.0f} % of the time with demand) until thread {waker} of the same "
        "process woke it."
    )
    finding.undecided_because = (
        f"the launching thread slept for {100 * severity.share:.0f} % of the time with demand "
        f"until thread {waker} of its process woke it, as the interpreter lock makes it, but what "
        "lock it was is not in the recording"
    )
    finding.excluded.append(
        Exclusion("launch.cpu_delay", "the thread was asleep in this time, not ready to run")
    )
    return finding


def _proven(facts: Facts, launcher: Launcher, finding: Finding, wakers: Ints) -> Finding:
    """The finding where the kernel saw that the thread slept on the interpreter's own lock."""
    by = ""
    if len(wakers):
        waker = int(np.bincount(wakers).argmax())
        share = float((wakers == waker).mean())
        by = f"; thread {waker} of its process ended {100 * share:.0f} % of the waits that one did"
        finding.evidence.append(
            Evidence(f"ended by thread {waker}", round(100 * share, 1), "%", len(wakers), "offcpu")
        )
    finding.status = Status.FOUND
    finding.confidence = 0.9 * facts.trust("sched", "offcpu")
    finding.summary = (
        f"The thread {launcher.tid} that feeds the device slept on the lock of its Python "
        f"interpreter for {finding.lost_ns / 1e9:.2f} s ({100 * finding.lost_share:.0f} % of the "
        f"time with demand){by}."
    )
    finding.excluded.append(
        Exclusion("launch.cpu_delay", "the thread was asleep in this time, not ready to run")
    )
    return finding


def find_gc_pause(facts: Facts) -> Finding:
    """Return whether the launching thread collected garbage while the device ran dry."""
    told = _collections(facts)
    best: Finding | None = None
    for pid in facts.processes:
        finding = _gc(facts, pid, told)
        if best is None or finding.lost_ns > best.lost_ns:
            best = finding
    return best or Finding(
        GC, Status.NOT_APPLICABLE, undecided_because="no process handed work to a device"
    )


def _collections(facts: Facts) -> dict[int, Ints]:
    """Collections that interpreters told of, by process, as intervals in ns; also of those that
    were watched and told of none.
    """
    watched = [source for source in facts.manifest.sources if source.name == "interpreter"]
    told = {
        int(pid): intervals.EMPTY
        for source in watched
        for pid in source.details.get("pids", ())
        if isinstance(pid, int)
    }
    if not facts.session.has("event"):
        return told
    columns = ["time_ns", "kind", "pid", "duration_ns"]
    rows = facts.session.table("event", columns=columns)
    rows = rows.filter(pc.and_(pc.equal(rows["kind"], "gc"), pc.is_valid(rows["duration_ns"])))
    rows = rows.filter(pc.is_valid(rows["pid"]))
    begin = rows["time_ns"].to_numpy()
    spans = intervals.make(begin, begin + rows["duration_ns"].to_numpy())
    pids = rows["pid"].to_numpy()
    return told | {int(pid): intervals.union(spans[pids == pid]) for pid in np.unique(pids)}


def _gc(facts: Facts, pid: int, told: dict[int, Ints]) -> Finding:
    launcher, device = facts.launchers[pid], facts.device_of[pid]
    finding = Finding(
        GC,
        Status.NOT_FOUND,
        confidence=0.85,
        where=Where(pid, launcher.tid, device, process=facts.process_name(pid)),
    )
    gaps = _gaps(facts, launcher)
    spans = told.get(pid, gaps)
    severity = assess(intervals.subtract(spans, facts.busy(device)), facts.demand)
    finding.evidence = [
        Evidence("pauses_on_cpu", len(gaps), "", len(gaps), "cuda_call, offcpu"),
        Evidence("time_in_them", intervals.total(spans), "ns", len(spans), ""),
    ]
    if pid in told:
        n_told = len(told[pid])
        finding.evidence.append(Evidence("collections", n_told, "", n_told, "event"))
    if not severity.is_material:
        what = "collections" if pid in told else "pauses on the CPU without a CUDA call"
        finding.excluded.append(
            Exclusion(
                GC,
                f"{len(spans)} {what} took {100 * severity.share:.0f} % of the time with demand",
            )
        )
        return finding
    finding.lost_ns, finding.lost_share = severity.lost_ns, severity.share
    finding.start_ns, finding.end_ns, finding.spans = severity.start_ns, severity.end_ns, spans
    length = spans[:, 1] - spans[:, 0]
    finding.evidence.append(
        Evidence("pause_p50", int(quantiles.median(length) or 0), "ns", len(length), "")
    )
    text = (
        f"{len(spans)} pauses of about {(quantiles.median(length) or 0) / 1e6:.0f} ms, in which "
        "the launching thread computed without a CUDA call and the device had nothing to do, took "
        f"{100 * severity.share:.0f} % of the time with demand"
    )
    if pid in told:
        finding.status, finding.confidence = Status.FOUND, 0.95 * facts.trust("cuda")
        finding.summary = f"{text}: the interpreter collected garbage in them."
        return finding
    rhythm = _rhythm(facts, pid, gaps)
    if rhythm is None:
        finding.lost_ns, finding.lost_share, finding.spans = 0, 0.0, intervals.EMPTY
        finding.excluded.append(
            Exclusion(GC, f"{len(gaps)} pauses on the CPU have no rhythm that a collector gives")
        )
        return finding
    finding.evidence.append(
        Evidence("steps_between_pauses", round(rhythm), "", len(gaps), "cuda_call")
    )
    steal = steal_share(facts.session)
    finding.status = Status.UNDECIDED
    finding.confidence = 0.6 * facts.trust("cuda", "sched")
    finding.undecided_because = (
        f"{text}, every {rhythm:.0f} steps, as a garbage collector does; but the interpreter did "
        "not tell of its collections"
    )
    if steal is not None and steal >= STEAL_SHARE:
        finding.confidence *= 0.5
        finding.undecided_because += f", and the hypervisor took {100 * steal:.0f} % of the CPU"
    finding.summary = f"{text}."
    return finding


def _gaps(facts: Facts, launcher: Launcher) -> Ints:
    """Long stretches without a call of the process in which the launching thread was on the CPU,
    and which no first use of a kernel ends.
    """
    calls = facts.calls
    if calls is None or launcher.absences is None:
        return intervals.EMPTY
    pauses, median = facts.pauses(launcher.pid)
    length = pauses[:, 1] - pauses[:, 0]
    pauses = pauses[length > max(GAP_NS, GAP_RATIO * (median or 0))]
    away = intervals.overlap_each(pauses, launcher.absences.spans)
    # Pushed off the CPU in the middle of it, a collection goes on afterwards.
    ready = intervals.overlap_each(pauses, launcher.absences.ready_spans)
    length = pauses[:, 1] - pauses[:, 0]
    pauses = pauses[(away - ready <= (1 - ON_CPU) * length) & (away <= (1 - COMPUTED) * length)]
    compiled = {gap.start for gap in find_gaps(facts, calls, launcher.pid)}
    keep = np.array([int(begin) not in compiled for begin in pauses[:, 0]], dtype=bool)
    return pauses[keep] if len(pauses) else intervals.EMPTY


def _rhythm(facts: Facts, pid: int, gaps: Ints) -> float | None:
    """Steps from one gap to the next where they come regularly, else None."""
    calls = facts.calls
    if calls is None or len(gaps) < N_GAPS:
        return None
    steps = facts.steps(pid)
    counted = np.searchsorted(steps.sync_end, gaps[:, 0])
    apart = np.diff(counted).astype(float)
    if apart.mean() < 1:
        return None
    lower = quantiles.quantile(apart, 0.25)
    assert lower is not None
    base = float(lower.value)
    times = apart / max(base, 1.0)
    # Where some pauses are too short to be seen, the others lie at multiples of the rhythm.
    is_multiple = np.abs(times - np.round(times)) <= OFF_BEAT
    if base >= LEAST_STEPS and float(is_multiple.mean()) >= MOST_ON_BEAT:
        return base
    if apart.std() > RHYTHM * apart.mean():
        # Collections also come by the clock.
        in_time = np.diff(gaps[:, 0]).astype(float)
        if in_time.std() > RHYTHM * in_time.mean():
            return None
    return float(apart.mean())


CAUSES = (
    Cause(
        GIL,
        "another thread held the interpreter",
        "The launching thread waited for Python's interpreter lock, which a sibling thread held.",
        "Sleeps of the launching thread on the lock within the interpreter's own state. Where that "
        "is not known, short sleeps that a sibling's wake ends, one thread of the process on a "
        "CPU at a time, make it suspected.",
        "Other processes (they make it ready, not asleep), a CPU quota, another lock.",
        "Record interpreter waits: tracer record --for launch.gil --pid PID.",
        "Move the sibling's work to another process, or make it poll less often.",
        Needs(("cuda_call", "offcpu"), optional=("thread_second", "engine_sample")),
        find_gil,
    ),
    Cause(
        GC,
        "Python's garbage collector stopped the world",
        "The launching thread collected garbage instead of launching.",
        "Periodic gaps on the CPU without CUDA calls that grow with the number of objects; the "
        "collector's own probes where the interpreter has them.",
        "Preemption (off the CPU), the interpreter lock (another thread runs), steal.",
        "Record the collector: tracer record --for launch.gc_pause --pid PID.",
        "Call gc.freeze() after warm-up, or collect at times that hurt nobody.",
        Needs(("cuda_call", "offcpu"), optional=("event", "host_sample", "engine_sample")),
        find_gc_pause,
    ),
)
