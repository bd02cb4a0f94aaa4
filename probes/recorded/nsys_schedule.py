"""Off-CPU intervals from the scheduling events of an Nsight Systems export."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis.schema import OFFCPU
from probes.probe import Batch, make_batch
from probes.recorded.calls import nullable, texts
from probes.recorded.recording import BATCH_ROWS, Problems
from probes.recorded.sqlite_file import SqliteFile
from probes.recorded.trace_tables import TraceTables

SCHEDULE = "SCHED_EVENTS"
_STATE_NAMES = "ENUM_SAMPLING_THREAD_STATE"
#: State of a thread that leaves a CPU, by the export's name for it; others are not told.
_STATES = {
    "running": "running",
    "interruptible": "sleeping",
    "uninterruptible": "uninterruptible",
    "stopped": "other",
}
#: Times beyond this are not real.
MAX_TIME_NS = 1 << 61
_NO_STATE = -1


def off_cpu(file: SqliteFile, tables: TraceTables, problems: Problems) -> Iterator[Batch]:
    """Yield the intervals between a thread's leaving a CPU and its coming back."""
    names = ("start", "isSchedIn", "globalTid", "cpu", "threadState")
    if not file.has(SCHEDULE, "start", "isSchedIn", "globalTid"):
        return
    states = _state_names(file)
    last: dict[str, npt.NDArray[np.int64]] | None = None
    for found in file.integers(SCHEDULE, names, "globalTid, start"):
        time, no_time = found["start"]
        good = ~no_time & ~found["isSchedIn"][1] & ~found["globalTid"][1]
        good &= (time < MAX_TIME_NS) & (time > -MAX_TIME_NS)
        problems.add(f"row of {SCHEDULE} without time or thread", int((~good).sum()))
        rows = {name: found[name][0][good] for name in names}
        rows["no_cpu"] = found["cpu"][1][good].astype(np.int64)
        rows["threadState"][found["threadState"][1][good]] = _NO_STATE
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
                    "state": _states_of(rows["threadState"][left], states),
                    "cpu_from": nullable(rows["cpu"][left], rows["no_cpu"][left] > 0),
                    "cpu_to": nullable(rows["cpu"][back], rows["no_cpu"][back] > 0),
                },
            )


def _state_names(file: SqliteFile) -> dict[int, str]:
    """The schema's word for each number of a thread's state that the export explains."""
    if not file.has(_STATE_NAMES, "id", "name"):
        return {}
    picked = f"{file.integer(_STATE_NAMES, 'id')}, {file.text(_STATE_NAMES, 'name')}"
    rows = file.all_rows(f"SELECT {picked} FROM {_STATE_NAMES}", 1000)
    return {
        key: _STATES[name.lower()]
        for key, name in rows
        if key is not None and name is not None and name.lower() in _STATES
    }


def _states_of(numbers: npt.NDArray[np.int64], names: dict[int, str]) -> pa.Array:
    """The word for each state, null where there is none."""
    unique, codes = np.unique(numbers, return_inverse=True)
    return texts(codes, [names.get(number) for number in unique.tolist()])
