"""Off-CPU intervals from the scheduling events of an Nsight Systems export."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from analysis.schema import OFFCPU
from probes.probe import Batch, make_batch
from probes.recorded.calls import nullable
from probes.recorded.recording import BATCH_ROWS, Problems
from probes.recorded.sqlite_file import SqliteFile
from probes.recorded.trace_tables import TraceTables

SCHEDULE = "SCHED_EVENTS"
#: Times beyond this are not real.
MAX_TIME_NS = 1 << 61


def off_cpu(file: SqliteFile, tables: TraceTables, problems: Problems) -> Iterator[Batch]:
    """Yield the intervals between a thread's leaving a CPU and its coming back."""
    names = ("start", "isSchedIn", "globalTid", "cpu")
    if not file.has(SCHEDULE, "start", "isSchedIn", "globalTid"):
        return
    last: dict[str, npt.NDArray[np.int64]] | None = None
    for found in file.integers(SCHEDULE, names, "globalTid, start"):
        time, no_time = found["start"]
        good = ~no_time & ~found["isSchedIn"][1] & ~found["globalTid"][1]
        good &= (time < MAX_TIME_NS) & (time > -MAX_TIME_NS)
        problems.add(f"row of {SCHEDULE} without time or thread", int((~good).sum()))
        rows = {name: found[name][0][good] for name in names}
        rows["no_cpu"] = found["cpu"][1][good].astype(np.int64)
        if last is not None:
            rows = {name: np.concatenate([last[name], rows[name]]) for name in rows}
        last = {name: values[-1:] for name, values in rows.items()}
        leaves = np.flatnonzero(
            (rows["isSchedIn"][:-1] == 0)
            & (rows["isSchedIn"][1:] == 1)
            & (rows["globalTid"][:-1] == rows["globalTid"][1:])
        )
        for begin in range(0, len(leaves), BATCH_ROWS):
            left = leaves[begin : begin + BATCH_ROWS]
            left = left[np.argsort(rows["start"][left], kind="stable")]
            back = left + 1
            start, duration = rows["start"][left], rows["start"][back] - rows["start"][left]
            tables.see(start, duration)
            yield make_batch(
                OFFCPU,
                {
                    "start_ns": start,
                    "duration_ns": duration,
                    "pid": rows["globalTid"][left] >> 24 & 0xFFFFFF,
                    "tid": rows["globalTid"][left] & 0xFFFFFF,
                    "cpu_from": nullable(rows["cpu"][left], rows["no_cpu"][left] > 0),
                    "cpu_to": nullable(rows["cpu"][back], rows["no_cpu"][back] > 0),
                },
            )
