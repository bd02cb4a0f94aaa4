"""The monitoring itself: something holds the driver's lock while the service launches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis import intervals, quantiles
from analysis.causes.declaration import Cause, Needs
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.severity import assess

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

OBSERVER = "launch.observer"

#: A query of the driver takes some ten microseconds, and milliseconds where its lock is held.
SLOW_QUERY_NS = 1_000_000
N_QUERIES = 5
#: Waits in the kernel that make a habit.
N_WAITS = 20


def find_observer(facts: Facts) -> Finding:
    """Return whether the launching thread waits in the kernel while the driver answers slowly."""
    finding = Finding(OBSERVER, Status.NOT_FOUND, confidence=0.8)
    queries = _query_times(facts)
    typical = quantiles.median(queries)
    if typical is None or len(queries) < N_QUERIES:
        return Finding(
            OBSERVER,
            Status.NOT_APPLICABLE,
            undecided_because="how long the driver takes to answer was not recorded",
        )
    finding.evidence = [
        Evidence("query_of_the_driver_p50", int(typical), "ns", len(queries), "gpu_sample")
    ]
    if typical < SLOW_QUERY_NS:
        finding.excluded.append(
            Exclusion(OBSERVER, f"the driver answers within {typical / 1e6:.2f} ms")
        )
        return finding
    for device in facts.devices:
        launcher = facts.main_launcher(device)
        if launcher is None or launcher.absences is None:
            continue
        blocked = intervals.intersect(launcher.states["blocked"], facts.demand)
        severity = assess(intervals.subtract(blocked, facts.busy(device)), facts.demand)
        n = len(blocked)
        finding.evidence.append(
            Evidence("blocked_in_the_kernel", severity.lost_ns, "ns", n, "offcpu")
        )
        if n < N_WAITS or not severity.is_material:
            continue
        finding.where = Where(
            launcher.pid, launcher.tid, device, process=facts.process_name(launcher.pid)
        )
        finding.lost_ns, finding.lost_share = severity.lost_ns, severity.share
        finding.start_ns, finding.end_ns = severity.start_ns, severity.end_ns
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.undecided_because = (
            f"the launching thread was blocked in the kernel {n} times, "
            f"{100 * severity.share:.0f} % of the time with demand, and the driver took "
            f"{typical / 1e6:.1f} ms to answer a query: something holds its lock, and which "
            "process that is was not recorded"
        )
        finding.settled_by = "a recording without the monitors, or with this one's NVML off"
        return finding
    finding.excluded.append(
        Exclusion(OBSERVER, "the launching thread was not blocked in the kernel for long")
    )
    return finding


def _query_times(facts: Facts) -> Floats:
    rows = facts.session.table("gpu_sample", columns=["time_ns", "query_ns"])
    values: Floats = rows["query_ns"].drop_null().to_numpy().astype(float)
    return values


CAUSES = (
    Cause(
        OBSERVER,
        "the monitoring itself",
        "A monitor holds a lock of the driver while the service launches.",
        "Driver-lock time of monitors overlaps the slow calls; a driver that answers slowly while "
        "the launching thread is blocked in the kernel suggests it.",
        "First use, contention, a slow disk.",
        "Record with and without the monitor and compare.",
        "Poll less often, or turn the monitor off.",
        Needs(("gpu_sample",), optional=("offcpu", "cuda_call")),
        find_observer,
    ),
)
