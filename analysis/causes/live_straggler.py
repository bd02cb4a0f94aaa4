"""One rank late to collectives, told from the host alone: the order in which ranks launch them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis import intervals, quantiles
from analysis.collectives import chance_of_last
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.severity import MATERIAL_SHARE
from analysis.stuck import collectives_by_process

Ints = npt.NDArray[np.int64]

STRAGGLER = "collective.straggler"

#: Collectives that each rank must launch for a statement, and largest shift that is tried where
#: one rank's recording began later.
N_COLLECTIVES = 10
MAX_SHIFT = 8
#: A launch is late from this on: the noise of two hosts' calls is some ten microseconds.
LATE_NS = 200_000
#: Share of the late collectives that one rank must be last in, and share of all waits it makes.
STEADY = 0.5
CHANCE = 1e-3
#: Share of the wait in which the others must be inside a wait for their device.
IN_SYNC = 0.5


def find_live_straggler(facts: Facts) -> Finding | None:
    """Return whether one rank launches its collectives later than the others, which wait for it;
    None where no two devices' collectives are known.
    """
    entries = {
        pid: times
        for pid, times in collectives_by_process(facts).items()
        if len(times) >= N_COLLECTIVES and pid in facts.launchers
    }
    pids = sorted(entries)
    if len(pids) < 2 or len({facts.device_of[pid] for pid in pids}) < 2:
        return None
    rows = _aligned(
        [entries[pid] for pid in pids], [_done(facts, pid, entries[pid]) for pid in pids]
    )
    if len(rows) < N_COLLECTIVES:
        return None
    return _judge(facts, pids, rows)


def _done(facts: Facts, pid: int, launched: Ints) -> Ints:
    """Return of the first sync after each launch, ns: that of all ranks comes when the last has
    entered.
    """
    ends = facts.steps(pid)
    at = np.searchsorted(ends.sync_start, launched)
    known: Ints = np.append(ends.sync_end, np.int64(facts.end_ns))[at]
    return known


def _aligned(launched: list[Ints], done: list[Ints]) -> Ints:
    """Launches of each collective, ``(n, r)``: those of one row end together on all ranks."""
    n = min(len(item) for item in launched)
    base = next(item for item in done if len(item) == n)
    chosen = []
    for start, end in zip(launched, done, strict=True):
        shifts = range(min(len(start) - n, MAX_SHIFT) + 1)
        cost = [float(np.median(np.abs(end[k : k + n] - base))) for k in shifts]
        best = int(np.argmin(cost))
        chosen.append(start[best : best + n])
    return np.stack(chosen, axis=1)


def _judge(facts: Facts, pids: list[int], rows: Ints) -> Finding:
    finding = Finding(STRAGGLER, Status.NOT_FOUND, confidence=0.8)
    waits = rows.max(axis=1, keepdims=True) - rows
    last = np.argmax(rows, axis=1)
    late = waits.max(axis=1) > LATE_NS
    # What the others really wait: the wait of the typical one, not of the earliest.
    typical = np.median(waits, axis=1).astype(np.int64)
    span = max(int(rows.max() - rows.min()), 1)
    whole = int(typical[late].sum())
    blame = np.bincount(last[late], weights=typical[late], minlength=len(pids))
    worst = int(np.argmax(blame))
    n_late, k = int(late.sum()), int((last[late] == worst).sum())
    finding.evidence = [
        Evidence("collectives_matched", len(rows), "", len(rows), "cuda_call"),
        Evidence("collectives_launched_late", n_late, "", len(rows), "cuda_call"),
        Evidence("last_by_the_same_rank", k, "", n_late, "cuda_call"),
        Evidence("waited_for_it", whole, "ns", n_late, "cuda_call"),
    ]
    if whole < MATERIAL_SHARE * span:
        finding.excluded.append(
            Exclusion(
                STRAGGLER, f"ranks waited {100 * whole / span:.1f} % of the time for the last"
            )
        )
        return finding
    chance = chance_of_last(len(pids), n_late, k)
    if k < STEADY * n_late or 2 * blame[worst] < whole or chance > CHANCE:
        finding.excluded.append(
            Exclusion(STRAGGLER, "the last to launch changes: no rank is steadily late")
        )
        return finding
    mine = late & (last == worst)
    spans = intervals.union(intervals.make(rows[mine].min(axis=1), rows[mine].max(axis=1)))
    in_sync = [
        intervals.overlap(facts.launchers[pid].states["waiting"], spans)
        for index, pid in enumerate(pids)
        if index != worst
    ]
    share = float(quantiles.median(np.array(in_sync)) or 0) / max(intervals.total(spans), 1)
    pid = pids[worst]
    launcher = facts.launchers[pid]
    finding.evidence.append(
        Evidence("others_in_sync_meanwhile", round(100 * share, 1), "%", len(in_sync), "cuda_call")
    )
    finding.where = Where(pid, launcher.tid, facts.device_of[pid], process=facts.process_name(pid))
    finding.start_ns, finding.end_ns = int(rows.min()), int(rows.max())
    finding.lost_ns = int(blame[worst])
    finding.lost_share = min(float(blame[worst]) / facts.demand_ns, 1.0)
    if share < IN_SYNC:
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.undecided_because = (
            f"process {pid} launches its collectives last, but the others are not seen to wait for "
            "their devices meanwhile: a queue may hide it"
        )
        finding.settled_by = "device times of all ranks: a folder of traces"
        return finding
    finding.spans = spans
    finding.status, finding.confidence = Status.FOUND, 0.85 * facts.trust("cuda")
    finding.summary = (
        f"Process {pid} on device {finding.where.device} launched {k} of {n_late} late collectives "
        f"last, and the other {len(pids) - 1} ranks waited in their syncs for it: "
        f"{100 * finding.lost_share:.0f} % of the time."
    )
    return finding
