"""The host is short of memory: reclaim, swap and faults stop the launching thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analysis import intervals
from analysis.causes.declaration import Cause, Needs
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.severity import MATERIAL_SHARE, assess

if TYPE_CHECKING:
    import pandas as pd

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PRESSURE = "host.memory_pressure"

#: Share of a second in which some task waits for memory, from which the host is short of it.
SOME = 0.1
#: Share of the launching thread's lost time that must lie in such seconds.
COINCIDES = 0.6


def find_memory_pressure(facts: Facts) -> Finding:
    """Return whether the launching thread was stopped while the host was short of memory."""
    columns = ("time_ns", "scope", "memory_some_ns", "n_swap_in_pages", "n_major_faults")
    rows = facts.session.table("host_sample", columns=columns).to_pandas()
    rows = rows[(rows["scope"] == "host") & rows["memory_some_ns"].notna()]
    if len(rows) < 3:
        return Finding(
            PRESSURE,
            Status.NOT_APPLICABLE,
            undecided_because="the host's memory pressure (PSI) was not sampled",
        )
    time = rows["time_ns"].to_numpy(dtype=np.int64)
    waited = np.diff(rows["memory_some_ns"].to_numpy(dtype=float)) / np.maximum(np.diff(time), 1)
    is_short = waited >= SOME
    spans = intervals.union(intervals.make(time[:-1][is_short], time[1:][is_short]))
    severity = assess(spans, facts.demand)
    n = int(is_short.sum())
    finding = Finding(PRESSURE, Status.NOT_FOUND, confidence=0.9)
    finding.evidence = [
        Evidence("seconds_short_of_memory", n, "", len(is_short), "host_sample"),
    ]
    if not severity.is_material:
        finding.excluded.append(
            Exclusion(PRESSURE, f"tasks waited for memory in {n} of {len(is_short)} seconds")
        )
        return finding
    finding.start_ns, finding.end_ns = severity.start_ns, severity.end_ns
    finding.evidence += [
        Evidence("waited_for_memory", round(100 * float(waited[is_short].mean()), 1), "%", n),
        *_rate(rows, "n_swap_in_pages", "pages_swapped_in", time, is_short),
        *_rate(rows, "n_major_faults", "major_faults", time, is_short),
    ]
    return _effect(facts, finding, spans)


def _rate(
    rows: pd.DataFrame, column: str, name: str, time: Ints, chosen: npt.NDArray[np.bool_]
) -> list[Evidence]:
    if rows[column].isna().any():
        return []
    grown = np.maximum(np.diff(rows[column].to_numpy(dtype=float)), 0)
    seconds = np.diff(time) / 1e9
    rate = float(grown[chosen].sum()) / max(float(seconds[chosen].sum()), 1e-9)
    return [Evidence(name, round(rate, 1), "1/s", int(chosen.sum()), "host_sample")]


def _effect(facts: Facts, finding: Finding, spans: Ints) -> Finding:
    """What the launching thread lost meanwhile: uninterruptible outside of waits for the device."""
    text = "the host was short of memory (PSI) in these seconds"
    launcher = next(
        (item for device in facts.devices if (item := facts.main_launcher(device)) is not None),
        None,
    )
    if launcher is None or launcher.absences is None or not launcher.has_states:
        finding.status, finding.confidence, finding.lost_share = Status.UNDECIDED, 0.5, 0.1
        finding.undecided_because = f"{text}, but what it did to the launching thread is not known"
        finding.settled_by = "offcpu: tracer record --pid PID as root"
        return finding
    blocked = intervals.intersect(launcher.states["blocked"], facts.demand)
    lost = assess(intervals.intersect(blocked, spans), facts.demand)
    finding.where = Where(launcher.pid, launcher.tid, process=facts.process_name(launcher.pid))
    finding.evidence.append(
        Evidence("blocked_meanwhile", lost.lost_ns, "ns", None, "offcpu"),
    )
    if lost.share < MATERIAL_SHARE or lost.lost_ns < COINCIDES * intervals.total(blocked):
        finding.excluded.append(
            Exclusion(
                PRESSURE,
                f"{text}, but the launching thread was blocked for {100 * lost.share:.0f} % of the "
                "time with demand in them",
            )
        )
        return finding
    finding.lost_ns, finding.lost_share = lost.lost_ns, lost.share
    finding.spans = intervals.intersect(blocked, spans)
    finding.status, finding.confidence = Status.FOUND, 0.88 * facts.trust("host", "sched", "offcpu")
    finding.summary = (
        f"The launching thread was blocked for {lost.lost_ns / 1e9:.1f} s "
        f"({100 * lost.share:.0f} % of the time with demand) in seconds in which the host was "
        "short of memory."
    )
    finding.excluded.append(
        Exclusion("launch.cpu_delay", "the thread was blocked in this time, not ready to run")
    )
    return finding


CAUSES = (
    Cause(
        PRESSURE,
        "the host is short of memory",
        "Swap, reclaim or page-cache misses stop the host.",
        "Tasks wait for memory (PSI) in the seconds in which the launching thread is blocked, with "
        "swap or major faults.",
        "CPU contention, a slow disk.",
        "Record host samples and the scheduler: tracer record --pid PID as root.",
        "Give the host more memory or the processes less.",
        Needs(("host_sample",), optional=("offcpu", "cuda_call")),
        find_memory_pressure,
    ),
)
