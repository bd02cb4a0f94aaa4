"""For which time the device times of a live recording are complete.

A recorder tells it piece by piece (events of kind ``device_times``, by process): collection runs in
windows, a kernel that still runs has no row yet, and what a killed process held is lost. Outside
of these pieces a device without an activity is not known to be idle. A process that has ended runs
nothing more. An imported trace tells no piece: it is complete.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analysis import intervals
from analysis.timeline import Session

Ints = npt.NDArray[np.int64]

KIND = "device_times"
#: Name of the source that collects device times live (the ``name`` of its events).
SOURCE = "cupti"
#: Pieces that are closer than this belong together, ns.
JOINT_NS = 1_000


def load_coverage(session: Session) -> dict[int, Ints] | None:
    """Return the disjoint intervals in ns with complete device times by process; None where every
    device time is there (an imported trace).
    """
    is_live = any(source.name == SOURCE for source in session.manifest.sources)
    found: dict[int, Ints] = {}
    if session.has("event"):
        rows = session.table("event", columns=["time_ns", "kind", "pid", "duration_ns"])
        is_piece = pc.is_in(rows["kind"].cast(pa.string()), pa.array([KIND, "exit"]))
        is_piece = pc.and_(is_piece, pc.is_valid(rows["pid"]))
        rows = rows.filter(pc.fill_null(is_piece, False))
        is_end = pc.equal(rows["kind"], "exit").to_numpy(zero_copy_only=False)
        start = rows["time_ns"].to_numpy()
        spans = intervals.make(start, start + pc.fill_null(rows["duration_ns"], 0).to_numpy())
        spans[is_end, 1] = np.maximum(start[is_end], session.end_ns)
        spans[:, 1] += JOINT_NS
        pids = rows["pid"].to_numpy()
        for pid in np.unique(pids[~is_end]).tolist():
            joint = intervals.union(spans[pids == pid])
            found[pid] = intervals.make(joint[:, 0], joint[:, 1] - JOINT_NS)
    return found if found or is_live else None


def of_processes(coverage: dict[int, Ints], pids: Iterable[int]) -> Ints:
    """Return the disjoint intervals in ns in which the device times of all processes are there."""
    result: Ints | None = None
    for pid in pids:
        own = coverage.get(pid, intervals.EMPTY)
        result = own if result is None else intervals.intersect(result, own)
    return intervals.EMPTY if result is None else result
