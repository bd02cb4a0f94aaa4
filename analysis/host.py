"""Samples of the host and its cgroups: when a CPU quota throttled, what the hypervisor stole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analysis import intervals
from analysis.timeline import Session

if TYPE_CHECKING:
    import pandas as pd

Ints = npt.NDArray[np.int64]

#: A second counts as throttled when this share of its CFS periods was: fewer are single bursts
#: that a process with a quota shows in health.
THROTTLED_PERIODS = 0.2
#: How much longer than it was throttled a thread may have waited for that: it then has to queue.
SLACK = 1.25


@dataclass(frozen=True)
class Throttling:
    """What CFS quotas did.

    Attributes:
        samples: Intervals between samples in which the quota throttled often, in order.
        stolen: Time throttled in each of them, ns, summed over CPUs; NaN where not told.
        n_periods: Periods that elapsed in the recording.
        n_throttled: Periods of them that were throttled.
        throttled_ns: Time throttled, ns, summed over CPUs.
        quota_ns: Quota per period, ns; None without a quota.
        period_ns: Length of a period, ns.
        scope: The cgroup.
    """

    samples: Ints
    stolen: npt.NDArray[np.float64]
    n_periods: int
    n_throttled: int
    throttled_ns: int
    quota_ns: int | None
    period_ns: int | None
    scope: str

    @property
    def spans(self) -> Ints:
        """Disjoint intervals in which the quota throttled often."""
        return intervals.union(self.samples)

    def explained(self, waits: Ints) -> Ints:
        """Return which of some disjoint waits for a CPU the quota explains: of those that begin
        between two samples the longest, up to the time that was throttled between them. The rest
        had to wait for another reason.
        """
        inside = intervals.intersect(waits, self.spans)
        if len(inside) == 0:
            return intervals.EMPTY
        at = np.searchsorted(self.samples[:, 0], inside[:, 0], side="right") - 1
        length = inside[:, 1] - inside[:, 0]
        order = np.lexsort((-length, at))
        before = np.cumsum(length[order]) - length[order]
        first = np.searchsorted(at[order], at[order], side="left")
        room = np.where(np.isnan(self.stolen), np.inf, SLACK * self.stolen)
        is_explained = before - before[first] < room[at[order]]
        return intervals.union(inside[order[is_explained]])


def _samples(session: Session) -> pd.DataFrame | None:
    if not session.has("host_sample"):
        return None
    columns = (
        "time_ns",
        "scope",
        "n_cpus",
        "cpu_steal_ns",
        "cpu_quota_ns",
        "cpu_period_ns",
        "n_cpu_periods",
        "n_cpu_throttled",
        "cpu_throttled_ns",
    )
    frame: pd.DataFrame = session.table("host_sample", columns=columns).to_pandas()
    return frame


def load_throttling(session: Session, cgroups: set[str]) -> Throttling | None:
    """Return the throttling of the cgroup that was throttled most; None where none was sampled.

    Args:
        session: The session.
        cgroups: Paths of the targets' cgroups, whose ancestors count too; all sampled cgroups do
            where none of them was sampled.
    """
    rows = _samples(session)
    if rows is None:
        return None
    rows = rows[(rows["scope"] != "host") & rows["n_cpu_throttled"].notna()]
    own = {scope for scope in set(rows["scope"]) if _holds(scope, cgroups)}
    if own:
        rows = rows[rows["scope"].isin(own)]
    found: list[Throttling] = []
    for scope, group in rows.groupby("scope"):
        time = group["time_ns"].to_numpy(dtype=np.int64)
        throttled = np.maximum(np.diff(group["n_cpu_throttled"].to_numpy(dtype=float)), 0)
        periods = np.maximum(np.diff(group["n_cpu_periods"].to_numpy(dtype=float)), 0)
        stolen = np.maximum(np.diff(group["cpu_throttled_ns"].to_numpy(dtype=float)), 0)
        is_hit = throttled >= np.maximum(THROTTLED_PERIODS * periods, 1)
        quota, period = group["cpu_quota_ns"].dropna(), group["cpu_period_ns"].dropna()
        found.append(
            Throttling(
                intervals.make(time[:-1][is_hit], time[1:][is_hit]),
                stolen[is_hit],
                int(np.nansum(periods)),
                int(np.nansum(throttled)),
                int(np.nansum(stolen)),
                int(quota.iloc[-1]) if len(quota) else None,
                int(period.iloc[-1]) if len(period) else None,
                str(scope),
            )
        )
    return max(found, key=lambda item: item.n_throttled, default=None)


def _holds(scope: str, cgroups: set[str]) -> bool:
    """Whether a cgroup is one of some, or an ancestor of one: its quota is for all below it."""
    below = scope.rstrip("/") + "/"
    return any(path == scope or path.startswith(below) for path in cgroups)


def steal_share(session: Session) -> float | None:
    """Return the share of CPU time that the hypervisor took, in [0, 1]; None where not told."""
    rows = _samples(session)
    if rows is None:
        return None
    rows = rows[(rows["scope"] == "host") & rows["cpu_steal_ns"].notna()]
    if len(rows) < 2:
        return None
    span = int(rows["time_ns"].iloc[-1] - rows["time_ns"].iloc[0])
    stolen = float(rows["cpu_steal_ns"].iloc[-1] - rows["cpu_steal_ns"].iloc[0])
    n_cpus = rows["n_cpus"].dropna()
    n = float(n_cpus.iloc[-1]) if len(n_cpus) else 1.0
    return max(stolen, 0.0) / max(span * n, 1.0)
