"""Why a device was idle, gap by gap, from device times and what its launching threads did.

Only gaps that a late launch ended are the host's (see :mod:`analysis.device_time`). Each is split
once, in this order:

* *sync*: the host had waited for the device just before, and would have been ahead by that wait
  had it not. A wait of 5 ms explains at most 5 ms of the gaps after it; what it does not explain
  yet is carried on to the next gaps. A wait that only outlasts kernels explains nothing, because
  no gap follows.
* *input*: of the rest, the time inside a range that the program named as loading its input.
* *rest*: everything else that the host did instead of launching.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analysis import device_time, intervals, schema
from analysis.device_time import Activities, Gaps, Usage
from analysis.timeline import Session

Ints = npt.NDArray[np.int64]

#: A sync or blocking copy that takes longer waits for work (as in analysis/device.py).
WAIT_NS = 50_000
#: The return of a wait may be stamped this much before the end of what it waited for: the device's
#: clock is mapped to the host's with an error of microseconds.
CLOCK_ERROR_NS = 20_000
#: Ranges that load input, as frameworks and programs name them.
_INPUT = re.compile(
    r"data_?load|iterator_?get_?next|(next|get|fetch|load|wait\w*)_?(batch|data|inputs?)\b"
    r"|input_?(pipeline|wait)",
    re.IGNORECASE,
)
_ACTIVITY_COLUMNS = [
    "start_ns",
    "duration_ns",
    "device",
    "pid",
    "tid",
    "call_start_ns",
    "call_duration_ns",
    "stream",
    "kind",
    "name",
    "copy_kind",
    "size_bytes",
    "is_pageable",
    "correlation_id",
    "is_collective",
    "rank",
]
_PLACE_COLUMNS = ["start_ns", "duration_ns", "tid", "rank"]
_RANGE_COLUMNS = [*_PLACE_COLUMNS, "category", "name"]
_CALL_COLUMNS = [
    "start_ns",
    "duration_ns",
    "pid",
    "tid",
    "rank",
    "correlation_id",
    "kind",
    "depth",
]


@dataclass(frozen=True)
class Idleness:
    """The idle gaps of one device and what explains them; arrays of one value per gap.

    Attributes:
        activities: What the device ran.
        usage: For how long.
        gaps: Its gaps.
        sync_ns: Length of each gap that waits of the host explain.
        input_ns: Length that loading of input explains.
        rest_ns: Length of late-launch gaps that neither explains.
        long_call_ns: Part of the gap inside one long call that is no wait (allocation, module).
        is_drain: The host was in a wait when the gap began.
        wait_ns: Length of that wait while the device still worked.
        n_inputs: Ranges of input loading that touch a late gap.
    """

    activities: Activities
    usage: Usage
    gaps: Gaps
    sync_ns: Ints
    input_ns: Ints
    rest_ns: Ints
    long_call_ns: Ints
    is_drain: npt.NDArray[np.bool_]
    wait_ns: Ints
    n_inputs: int

    def spans(self, reason: str) -> Ints:
        """Return the disjoint intervals in ns that a reason took: sync, input or late_launch.

        Within a gap they follow each other in this order.
        """
        begin = self.gaps.spans[:, 0]
        length = self.sync_ns
        if reason != "sync":
            begin, length = begin + length, self.input_ns
        if reason == "late_launch":
            begin, length = begin + length, self.rest_ns
        return intervals.union(intervals.make(begin, begin + length))


def timed_devices(session: Session, covered: Callable[[int], Ints] | None = None) -> list[Idleness]:
    """Return the idleness of every device that has device times, by rank and device.

    Args:
        session: The session.
        covered: Returns for a device the disjoint intervals in ns with complete device times;
            None where they are complete throughout.
    """
    if not session.has("gpu_activity"):
        return []
    activity = session.table("gpu_activity", columns=_ACTIVITY_COLUMNS)
    calls = None
    if session.has("cuda_call"):
        calls = session.table("cuda_call", columns=_CALL_COLUMNS)
    ranges = None
    if session.has("annotation"):
        # Few of many annotations: they are picked part by part, and no text of the others is made.
        parts = session.collect("annotation", _RANGE_COLUMNS, input_ranges, keep_dictionaries=True)
        ranges = pa.concat_tables(parts) if parts else None
    return [
        explain(item, calls, ranges) for item in device_time.by_device(activity, calls, covered)
    ]


def input_ranges(annotations: pa.Table) -> pa.Table:
    """Return when and where the program loads its input, as some annotations tell: start, length,
    thread and rank.
    """
    names = annotations.column("name").combine_chunks()
    if isinstance(names, pa.ChunkedArray) or not pa.types.is_dictionary(names.type):
        names = annotations.column("name").dictionary_encode().combine_chunks()
    if isinstance(names, pa.ChunkedArray):
        names = names.combine_chunks()
    words = [bool(_INPUT.search(str(word))) for word in names.dictionary.to_pylist()]
    codes = names.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
    found = annotations.filter(np.array([*words, False])[codes])
    category = found.column("category").to_numpy(zero_copy_only=False)
    return found.filter(np.isin(category, ("user", "operator"))).select(_PLACE_COLUMNS)


def explain(activities: Activities, calls: pa.Table | None, ranges: pa.Table | None) -> Idleness:
    """Return why one device was idle.

    Args:
        activities: Its activities, joined with their calls.
        calls: Rows of ``cuda_call``, or None.
        ranges: Annotations that load input, or None.
    """
    gaps = device_time.gaps(activities)
    length = gaps.length_ns
    late = np.flatnonzero(gaps.is_late_launch)
    n = len(length)
    wait = np.zeros(n, dtype=np.int64)
    long_call = np.zeros(n, dtype=np.int64)
    loading = np.zeros(n, dtype=np.int64)
    n_inputs = 0
    tid = activities.call_tid[gaps.next_row]
    busy = intervals.union(activities.spans)
    for thread in np.unique(tid[late]).tolist():
        mine = late[tid[late] == thread]
        waits, others = _waits(activities, calls, thread)
        wait[mine] = _waited(gaps.spans[mine], waits, busy)
        long_call[mine] = intervals.overlap_each(gaps.spans[mine], others)
        if ranges is not None:
            loads = _of_thread(ranges, activities.rank, thread)
            loading[mine] = intervals.overlap_each(gaps.spans[mine], loads)
            touched = intervals.overlap_each(loads, gaps.spans[mine])
            n_inputs += int((touched > WAIT_NS).sum())
    is_drain = wait > WAIT_NS
    sync = np.zeros(n, dtype=np.int64)
    sync[late] = carried(np.where(is_drain, wait, 0)[late], length[late])
    loading = np.minimum(loading, length - sync)
    return Idleness(
        activities=activities,
        usage=device_time.usage(activities),
        gaps=gaps,
        sync_ns=sync,
        input_ns=loading,
        rest_ns=np.where(gaps.is_late_launch, length - sync - loading, 0),
        long_call_ns=long_call,
        is_drain=is_drain,
        wait_ns=wait,
        n_inputs=n_inputs,
    )


def carried(wait_ns: Ints, gap_ns: Ints) -> Ints:
    """Return the part of each gap in ns that the waits up to it explain, each wait used once."""
    if len(gap_ns) == 0:
        return gap_ns
    level = np.cumsum(wait_ns - gap_ns)
    left = level - np.minimum(np.minimum.accumulate(level), 0)
    before = np.concatenate((np.zeros(1, dtype=np.int64), left[:-1]))
    used: Ints = before + wait_ns - left
    return used


def _waits(activities: Activities, calls: pa.Table | None, thread: int) -> tuple[Ints, Ints]:
    """Intervals in which a thread waited for the device, and those of its other long calls."""
    rows = activities.is_copy & activities.has_call & (activities.call_tid == thread)
    # A copy that was over when its call returned has blocked the host.
    rows &= activities.call_end_ns + CLOCK_ERROR_NS >= activities.spans[:, 1]
    blocking = intervals.make(activities.call_start_ns[rows], activities.call_end_ns[rows])
    if calls is None:
        return intervals.union(blocking), intervals.EMPTY
    is_outer = pc.equal(calls.column("depth"), 0)
    own = calls.filter(is_outer)
    kind = own.column("kind").to_numpy(zero_copy_only=False)
    spans = _of_thread(own, activities.rank, thread, union=False)
    kind = kind[_thread_mask(own, activities.rank, thread)]
    is_wait = kind == "sync"
    waits = intervals.union(np.concatenate((spans[is_wait], blocking)))
    is_long = ~is_wait & (spans[:, 1] - spans[:, 0] > WAIT_NS)
    return waits, intervals.subtract(spans[is_long], waits)


def _thread_mask(table: pa.Table, rank: int | None, thread: int) -> npt.NDArray[np.bool_]:
    tid = pc.fill_null(table.column("tid").cast(pa.int64()), -1).to_numpy()
    own_rank = pc.fill_null(table.column("rank").cast(pa.int64()), -1).to_numpy()
    mask: npt.NDArray[np.bool_] = (tid == thread) & (own_rank == (-1 if rank is None else rank))
    return mask


def _of_thread(table: pa.Table, rank: int | None, thread: int, *, union: bool = True) -> Ints:
    """Intervals of one thread's rows."""
    mask = _thread_mask(table, rank, thread)
    start = table.column("start_ns").to_numpy()[mask]
    length = pc.fill_null(table.column("duration_ns"), 0).to_numpy()[mask]
    spans = intervals.make(start, start + length)
    return intervals.union(spans) if union else spans


def _waited(gaps: Ints, waits: Ints, busy: Ints) -> Ints:
    """For each gap that began inside a wait, how long that wait had lasted over work, ns; each
    wait counts for the last gap that began in it.
    """
    result = np.zeros(len(gaps), dtype=np.int64)
    if len(waits) == 0 or len(gaps) == 0:
        return result
    begin = gaps[:, 0]
    index = np.searchsorted(waits[:, 0], begin, side="left") - 1
    at = np.maximum(index, 0)
    hit = np.flatnonzero((index >= 0) & (waits[at, 1] + CLOCK_ERROR_NS >= begin))
    hit = hit[np.append(index[hit][1:] != index[hit][:-1], True)] if len(hit) else hit
    spans = intervals.make(waits[at[hit], 0], begin[hit])
    result[hit] = intervals.overlap_each(spans, busy)
    return result


#: Tables that the explanation reads.
TABLES = tuple(item.name for item in (schema.GPU_ACTIVITY, schema.CUDA_CALL, schema.ANNOTATION))
