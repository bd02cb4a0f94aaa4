"""How much time a cause cost, when, and whether that is worth a reader's attention."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import intervals

Ints = npt.NDArray[np.int64]

#: Share of the time with demand that makes a cause worth stating. Removing a cause below it
#: returns less than a tenth of the service: within what two equal runs on a shared host differ by.
MATERIAL_SHARE = 0.10
#: A shorter episode counts too when it cost this share of every second of it ...
EPISODE_SHARE = 0.30
#: ... for at least this many seconds on end: a user notices three bad seconds, and a single noisy
#: second in hours is no incident.
EPISODE_WINDOWS = 3
WINDOW_NS = 1_000_000_000


@dataclass(frozen=True)
class Severity:
    """What a cause cost.

    Attributes:
        lost_ns: Time lost while there was demand, ns.
        share: The same as a share of the demand, in [0, 1].
        start_ns: Begin of the first second that it hit, ns.
        end_ns: End of the last, ns.
        is_material: Whether it is worth stating.
    """

    lost_ns: int
    share: float
    start_ns: int
    end_ns: int
    is_material: bool


def assess(lost: Ints, demand: Ints) -> Severity:
    """Return what disjoint intervals of lost time cost, given when there was demand."""
    harmed = intervals.intersect(lost, demand)
    lost_ns, demand_ns = intervals.total(harmed), intervals.total(demand)
    if lost_ns == 0 or demand_ns == 0:
        return Severity(0, 0.0, 0, 0, is_material=False)
    edges = intervals.windows(int(demand[0, 0]), int(demand[-1, 1]), WINDOW_NS)
    wanted = intervals.coverage(demand, edges)
    cost = intervals.coverage(harmed, edges)
    part = cost / np.maximum(wanted, 1)
    is_hit = (part >= EPISODE_SHARE) & (2 * wanted >= np.diff(edges))
    longest = _longest_run(is_hit)
    share = lost_ns / demand_ns
    touched = np.flatnonzero(part >= MATERIAL_SHARE)
    if len(touched) == 0:
        touched = np.flatnonzero(cost > 0)
    return Severity(
        lost_ns=lost_ns,
        share=share,
        start_ns=int(edges[touched[0]]),
        end_ns=int(edges[touched[-1] + 1]),
        is_material=share >= MATERIAL_SHARE or longest >= EPISODE_WINDOWS,
    )


def _longest_run(flags: npt.NDArray[np.bool_]) -> int:
    """Length of the longest run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(np.int8), [0]))))
    return int((edges[1::2] - edges[::2]).max()) if len(edges) else 0
