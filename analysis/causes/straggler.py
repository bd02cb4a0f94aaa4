"""One rank late to collectives: by the order of entry (D5), or by the log of a training job."""

from __future__ import annotations

import numpy as np

from analysis import intervals
from analysis.causes import operation_log
from analysis.causes.declaration import Cause, Needs
from analysis.causes.live_straggler import find_live_straggler
from analysis.collectives import Entries, chance_of_last, match
from analysis.device_time import SPAN_TEXT
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.idleness import Idleness
from analysis.severity import MATERIAL_SHARE

STRAGGLER = "collective.straggler"

#: An entry counts as late beyond this: ranks that step together enter within some microseconds.
LATE_NS = 20_000
#: Late collectives that a statement needs, and the share of them that one rank must be last in.
N_LATE = 3
STEADY_SHARE = 0.5
#: Probability that some rank would be last as often by chance.
CHANCE = 0.05
#: Share of one recorded rank's time in exposed collectives from which a late partner is suspected.
EXPOSED_SHARE = 0.25


def find_straggler(facts: Facts) -> Finding:
    """Return whether one rank, or one stage, is steadily late and the others wait for it."""
    if facts.session.has("operation"):
        return operation_log.find_slow_worker(facts)
    if not facts.timed:
        live = find_live_straggler(facts)
        if live is not None:
            return live
        return Finding(STRAGGLER, Status.NOT_APPLICABLE, undecided_because="no device ran anything")
    if len(facts.timed) < 2:
        return _unmatched(facts.timed, "one rank alone does not tell")
    entries = match([item.activities for item in facts.timed])
    if len(entries) == 0:
        return _unmatched(facts.timed, "no collective was seen on all ranks, which does not tell")
    return _by_entries(facts, entries)


def _unmatched(timed: list[Idleness], why: str) -> Finding:
    """What collectives tell whose partners are not in the recording."""
    item = max(timed, key=lambda one: one.usage.exposed_collective_ns)
    usage = item.usage
    share = usage.exposed_collective_ns / max(usage.span_ns, 1)
    evidence = [Evidence("exposed_collectives", round(100 * share, 1), "%", None, "gpu_activity")]
    if share < EXPOSED_SHARE:
        return Finding(STRAGGLER, Status.NOT_FOUND, confidence=0.8, evidence=evidence)
    return Finding(
        STRAGGLER,
        Status.UNDECIDED,
        confidence=0.3,
        where=Where(device=item.activities.device, rank=item.activities.rank),
        lost_ns=usage.exposed_collective_ns,
        lost_share=share,
        evidence=evidence,
        undecided_because=f"the device was in collectives for {100 * share:.0f} % of {SPAN_TEXT}, "
        f"and {why} whether another was late or the link slow",
    )


def _by_entries(facts: Facts, entries: Entries) -> Finding:
    n_ranks = len(facts.timed)
    finding = Finding(STRAGGLER, Status.NOT_FOUND, confidence=0.85)
    waits = entries.wait_ns
    is_late = waits.max(axis=1) > LATE_NS
    last = np.argmax(entries.entry_ns, axis=1)
    times_last = np.bincount(last[is_late], minlength=n_ranks)
    waited = waits.sum(axis=1)
    blame = np.bincount(last[is_late], weights=waited[is_late], minlength=n_ranks)
    rank = int(np.argmax(blame))
    n_late, k = int(is_late.sum()), int(times_last[rank])
    span = float(np.mean([item.usage.span_ns for item in facts.timed]))
    whole = float(waited.sum()) / n_ranks
    lost = float(blame[rank]) / n_ranks
    activities = facts.timed[rank].activities
    names = [_name(item) for item in facts.timed]
    finding.evidence = [
        Evidence("collectives_matched", len(entries), "", len(entries), "gpu_activity"),
        Evidence("collectives_entered_late", n_late, "", len(entries), "gpu_activity"),
        Evidence(
            "times_last",
            ", ".join(
                f"{names[i]}: {times_last[i]}" for i in np.argsort(-times_last) if times_last[i]
            ),
            "",
            n_late,
            "gpu_activity",
        ),
        Evidence("wait_per_device", int(whole), "ns", n_ranks, "gpu_activity"),
    ]
    if whole < MATERIAL_SHARE * span:
        finding.excluded.append(
            Exclusion(
                STRAGGLER,
                f"devices waited {100 * whole / max(span, 1):.1f} % of the time between their "
                "first and last activities for the last to enter",
            )
        )
        return finding
    finding.lost_ns, finding.lost_share = int(lost), min(lost / max(span, 1), 1.0)
    finding.start_ns = int(entries.entry_ns.min())
    finding.end_ns = int(entries.end_ns.max())
    chance = chance_of_last(n_ranks, n_late, k)
    finding.evidence.append(
        Evidence("probability_by_chance", float(f"{chance:.2g}"), "", n_late, "")
    )
    if n_late < N_LATE:
        finding.status, finding.confidence = Status.UNDECIDED, 0.4
        finding.undecided_because = f"only {n_late} collectives were entered late"
        finding.settled_by = "a longer recording of all ranks"
        return finding
    is_steady = k >= STEADY_SHARE * n_late and 2 * blame[rank] >= waited.sum()
    if not is_steady or chance > CHANCE:
        finding.lost_ns, finding.lost_share = 0, 0.0
        finding.excluded.append(
            Exclusion(STRAGGLER, "the last to enter changes: no rank is steadily late")
        )
        return finding
    finding.status = Status.FOUND
    finding.where = Where(device=activities.device, rank=activities.rank)
    # Few collectives, or neighbours late as well, leave doubt about the rank.
    finding.confidence = (0.9 if chance < 1e-3 else 0.75) * facts.trust("cuda")
    rows = (last == rank) & is_late
    finding.spans = intervals.union(
        intervals.make(entries.entry_ns[rows].min(axis=1), entries.entry_ns[rows].max(axis=1))
    )
    finding.summary = (
        f"{names[rank].capitalize()} entered {k} of {n_late} late collectives last, and is behind "
        f"{100 * blame[rank] / max(float(waited.sum()), 1.0):.0f} % of what the others waited: "
        f"{100 * finding.lost_share:.0f} % of each device's time."
    )
    return finding


def _name(item: Idleness) -> str:
    rank = item.activities.rank
    return f"device {item.activities.device}" if rank is None else f"rank {rank}"


CAUSES = (
    Cause(
        STRAGGLER,
        "one rank arrives late and the others wait",
        "Ranks wait in fully busy kernels for one that is steadily late.",
        "Order of entry into collectives whose ends coincide, or of their launches while the "
        "others wait in a sync, steadily the same rank; or compute times of one worker or one "
        "stage in the log of a job, against their peers.",
        "Durations, which the barrier makes equal; uneven sequences, where the slow one changes.",
        "Record all ranks, or import a folder of traces.",
        "Look at what the late rank does before the collective.",
        Needs(any_of=(("gpu_activity", "operation", "cuda_call"),), optional=("kernel_function",)),
        find_straggler,
    ),
)
