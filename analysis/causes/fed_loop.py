"""A loop that another process feeds: its long waits while a recorded process hangs on storage.

Where the tree of processes is not known, a program that waits for its worker looks like one that
waits for its client. A process of the recording that is blocked in the kernel just then, and not
at other times, tells which is likelier.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analysis import intervals, quantiles
from analysis.facts import Facts
from analysis.finding import Evidence, Finding, Status
from analysis.severity import assess
from analysis.threads import Launcher
from analysis.waits import waits_of

Ints = npt.NDArray[np.int64]

#: Waits for one process that make a habit, and the share of the steps that begin with one.
N_WAITS = 5
EVERY_STEP = 0.5
#: A second belongs to the long waits with this share of it in them.
IN_WAIT = 0.5
#: Seconds in and outside of long waits that a statement needs.
N_SECONDS = 4
#: Share of the seconds in long waits in which a process must be blocked; of others at most half.
BLOCKED = 0.6


def suspect_storage(facts: Facts, launcher: Launcher, device: int | None, finding: Finding) -> bool:
    """Fill in that the launching thread slept for long until the process woke it that does so in
    every step, with the device idle, while a process of the recording was blocked; return whether
    that is so. Never more than suspected.
    """
    fed = _fed_by(facts, launcher)
    if fed is None:
        return False
    waker, waits = fed
    spans = intervals.intersect(intervals.union(waits), facts.idle(device))
    severity = assess(spans, intervals.union(np.concatenate((facts.demand, spans))))
    blocked = _blocked(facts, waits) if severity.is_material else None
    if blocked is None:
        return False
    pid, inside, outside, n = blocked
    length = waits[:, 1] - waits[:, 0]
    longest = int(length.max())
    finding.evidence = [
        Evidence("waits_for_one_process", len(waits), "", len(waits), "offcpu"),
        Evidence("wait_p50", int(quantiles.median(length) or 0), "ns", len(waits), "offcpu"),
        Evidence("wait_max", longest, "ns", len(waits), "offcpu"),
        Evidence("idle_in_them", intervals.total(spans), "ns", len(waits), "offcpu, cuda_call"),
        Evidence("blocked_in_long_waits", round(100 * inside), "%", n, "thread_second"),
        Evidence("blocked_otherwise", round(100 * outside), "%", n, "thread_second"),
    ]
    finding.lost_ns, finding.lost_share = severity.lost_ns, severity.share
    finding.start_ns, finding.end_ns, finding.spans = severity.start_ns, severity.end_ns, spans
    finding.status, finding.confidence = Status.UNDECIDED, 0.5
    name = facts.process_name(pid) or "a process"
    finding.undecided_because = (
        f"the launching thread slept up to {longest / 1e9:.1f} s until process {waker} woke it, as "
        f"it does in every step, while {name} (pid {pid}) was blocked in the kernel, as storage "
        f"does, {100 * severity.share:.0f} % of the time; whether that is its input is not known"
    )
    finding.settled_by = "a recording of the whole tree of processes, from its start"
    return True


def _fed_by(facts: Facts, launcher: Launcher) -> tuple[int, Ints] | None:
    """The other process that ends a wait in most steps, and those waits as ``(n, 2)`` ns; None
    where there is no such process.
    """
    waits = waits_of(launcher)
    other = (waits.waker_pid > 0) & ~np.isin(waits.waker_pid, [launcher.pid, *facts.processes])
    if other.sum() < N_WAITS:
        return None
    pids, counts = np.unique(waits.waker_pid[other], return_counts=True)
    waker, n = int(pids[np.argmax(counts)]), int(counts.max())
    steps = facts.steps(launcher.pid)
    n_steps = int((steps.n_launches + steps.n_graphs > 0).sum())
    if n < max(N_WAITS, EVERY_STEP * n_steps):
        return None
    return waker, waits.spans[waits.waker_pid == waker]


def _blocked(facts: Facts, waits: Ints) -> tuple[int, float, float, int] | None:
    """The process that launches nothing and is blocked in the seconds of long waits far more often
    than in others: its pid, both shares, and in how many seconds of long waits that was looked at.
    """
    if not facts.session.has("thread_second"):
        return None
    rows = facts.session.table("thread_second", columns=["start_ns", "pid", "state"])
    rows = rows.filter(pc.invert(pc.is_in(rows["pid"], pa.array(facts.processes, pa.int32()))))
    edges = intervals.windows(facts.start_ns, facts.end_ns, 1_000_000_000)
    if rows.num_rows == 0 or len(edges) < 2:
        return None
    is_long = intervals.coverage(intervals.union(waits), edges) >= IN_WAIT * np.diff(edges)
    if min(int(is_long.sum()), int((~is_long).sum())) < N_SECONDS:
        return None
    stuck = rows.filter(pc.equal(rows["state"], "D"))
    best: tuple[int, float, float, int] | None = None
    for pid in pc.unique(stuck["pid"]).to_pylist():
        start = stuck.filter(pc.equal(stuck["pid"], pid))["start_ns"].to_numpy()
        # The middle of its second tells the window that it lies in mostly.
        at = np.searchsorted(edges, start + 500_000_000, side="right") - 1
        hit = np.zeros(len(is_long), dtype=bool)
        hit[at[(at >= 0) & (at < len(hit))]] = True
        inside, outside = float(hit[is_long].mean()), float(hit[~is_long].mean())
        if inside >= BLOCKED and outside <= inside / 2 and (best is None or inside > best[1]):
            best = (int(pid), inside, outside, int(is_long.sum()))
    return best
