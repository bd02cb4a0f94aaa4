"""Calls that are open at the end of a recording: what the snapshots show, less what returned."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from analysis.timeline import Session

#: A thread is snapshot at its own moment; one round of snapshots takes well under this, ns.
_ROUND_NS = 1_000_000_000
_COLUMNS = ("start_ns", "duration_ns", "pid", "tid", "depth")


def load_open_calls(session: Session) -> list[dict[str, Any]]:
    """Return the outermost calls that were open in the last round of snapshots and did not return
    until the end, each as a row of ``open_call``; at most one of a thread.
    """
    if not session.has("open_call"):
        return []
    rows = session.table("open_call")
    if rows.num_rows == 0:
        return []
    first_ns = pc.max(rows["time_ns"]).as_py() - _ROUND_NS
    is_last = pc.greater_equal(rows["time_ns"], first_ns)
    rows = rows.filter(pc.and_(is_last, pc.equal(rows["depth"], 0)))
    latest = {(row["pid"], row["tid"]): row for row in rows.to_pylist()}
    if not latest or not session.has("cuda_call"):
        return list(latest.values())
    ended = _ended(session, min(row["time_ns"] for row in latest.values()))
    return [row for key, row in latest.items() if row["start_ns"] > ended.get(key, -1)]


def _ended(session: Session, since_ns: int) -> dict[tuple[int, int], int]:
    """Up to which entry in ns the outermost calls of each thread have ended, as far as calls tell
    that were inside at a time or came later: a call ends with its return, and at the latest when
    its thread enters the next.
    """

    def convert(part: pa.Table) -> pa.Table:
        own = part.filter(pc.equal(part["depth"], 0))
        end = pc.add(own["start_ns"], pc.coalesce(own["duration_ns"], 0))
        # What returned after the end of a range was open there, and ended only what came before.
        is_open = pc.greater(end, session.end_ns).cast(pa.int64())
        columns = [own["pid"], own["tid"], pc.subtract(own["start_ns"], is_open)]
        told = pa.table(columns, names=["pid", "tid", "entry"])
        return told.group_by(["pid", "tid"]).aggregate([("entry", "max")])

    found: dict[tuple[int, int], int] = {}
    for part in session.collect("cuda_call", _COLUMNS, convert, since_ns):
        for row in part.to_pylist():
            key = (row["pid"], row["tid"])
            found[key] = max(found.get(key, -1), row["entry_max"])
    return found
