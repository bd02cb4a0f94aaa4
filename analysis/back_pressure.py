"""Launches that waited because the device was behind, as CUPTI tells it.

A launch that finds the queue of the device full (*command buffer full*) waits inside of the call
until there is room. Such a call is long without being slow: the host has nothing to win there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analysis import intervals
from analysis.timeline import Session

Ints = npt.NDArray[np.int64]

_FULL = "command buffer full"


@dataclass(frozen=True)
class BackPressure:
    """The waits for room in the queues of the devices.

    Attributes:
        n: How many.
        spans: Disjoint intervals in ns in which a thread waited.
    """

    n: int
    spans: Ints

    @property
    def total_ns(self) -> int:
        """Time in which some thread waited, ns."""
        return intervals.total(self.spans)


def back_pressure(session: Session, pids: set[int] | None = None) -> BackPressure:
    """Return the waits for room in a queue of some processes, or of all.

    Args:
        session: The session; without annotations there are none.
        pids: Processes that count; None for all.
    """
    none = BackPressure(0, np.empty((0, 2), np.int64))
    if not session.has("annotation"):
        return none
    columns = ["start_ns", "duration_ns", "pid", "category", "name"]
    rows = session.table("annotation", columns=columns)
    is_full = pc.equal(pc.utf8_lower(pc.cast(rows["name"], "string")), _FULL)
    rows = rows.filter(pc.and_(pc.equal(rows["category"], "overhead"), is_full))
    if pids is not None:
        rows = rows.filter(pc.is_in(rows["pid"], pa.array(sorted(pids), rows["pid"].type)))
    if rows.num_rows == 0:
        return none
    start = rows["start_ns"].to_numpy()
    spans = intervals.make(start, start + rows["duration_ns"].to_numpy())
    return BackPressure(rows.num_rows, intervals.union(spans))
