"""What each device did and waited for, from true device times (CUPTI or an imported trace).

Definitions (all per *device*, over the union of its streams, so that an unused stream is no idle
time):

* *busy*: at least one activity runs. *compute*, *copy*, *collective*: at least one activity of
  that class runs; they overlap. *exposed* collective or copy: none of compute runs meanwhile.
* *gap*: the device runs nothing between two activities. Its cause is read from the activity that
  ends it: *late launch* when its call was entered after the gap began (the host had nothing
  queued), *queued* when it was entered before (dependency, scheduling of the device), *unknown*
  when the trace holds no call for it.
* *queue depth* of a launch: activities of the same device submitted before and not yet started,
  itself included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analysis import intervals

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: What shares of :class:`Usage` are shares of, in a sentence about one device, and the name of the
#: evidence that tells the busy share.
SPAN_TEXT = "the time between its first and last activity"
BUSY = "busy_between_first_and_last_activity"
#: No call is known for an activity.
NO_CALL = np.int64(np.iinfo(np.int64).min)


@dataclass(frozen=True)
class Activities:
    """The activities of one device, sorted by start; arrays of equal length ``n``.

    Attributes:
        device: Device index.
        rank: Rank that the device belongs to, if told.
        spans: ``(n, 2)`` start and end, ns.
        is_copy: Copies and sets.
        is_collective: Collectives and send/receive.
        stream: Stream handle, 0 where unknown.
        name: Names, dictionary-encoded: ``names[name]``.
        names: Distinct names.
        call_start_ns: Entry of the call that submitted it, :data:`NO_CALL` where unknown.
        call_end_ns: Return of that call, likewise.
        call_tid: Thread of that call, -1 where unknown.
        size_bytes: Bytes of copies, 0 elsewhere.
        copy_kind: h2d, d2h, ... or empty.
        is_pageable: Copies whose host side is pageable.
        covered: ``(m, 2)`` disjoint intervals in which every activity is there, None for always.
    """

    device: int
    rank: int | None
    spans: Ints
    is_copy: Flags
    is_collective: Flags
    stream: npt.NDArray[np.uint64]
    name: npt.NDArray[np.int32]
    names: Sequence[str]
    call_start_ns: Ints
    call_end_ns: Ints
    call_tid: Ints
    size_bytes: Ints
    copy_kind: npt.NDArray[np.object_]
    is_pageable: Flags
    covered: Ints | None = None

    @property
    def start_ns(self) -> int:
        """Start of the first activity, ns."""
        return int(self.spans[0, 0])

    @property
    def end_ns(self) -> int:
        """End of the last activity, ns."""
        return int(self.spans[:, 1].max())

    @property
    def is_compute(self) -> Flags:
        """Activities that are neither copies nor collectives."""
        flags: Flags = ~(self.is_copy | self.is_collective)
        return flags

    @property
    def has_call(self) -> Flags:
        """Activities whose submitting call is in the trace."""
        flags: Flags = self.call_start_ns != NO_CALL
        return flags


def by_device(
    activity: pa.Table,
    calls: pa.Table | None,
    covered: Callable[[int], Ints] | None = None,
) -> list[Activities]:
    """Return the activities of each (rank, device), joined with the calls that submitted them.

    Args:
        activity: Rows of ``gpu_activity``.
        calls: Rows of ``cuda_call``, or None. Joined by correlation id within rank and process;
            where several calls share an id (the driver's inside the runtime's), the outermost.
            Calls without an id are joined by the thread and time that the activity tells.
        covered: Returns for a device the disjoint intervals in ns in which every activity is
            there; None for always.
    """
    if activity.num_rows == 0:
        return []
    start = _ints(activity, "start_ns")
    spans = intervals.make(start, start + _ints(activity, "duration_ns"))
    call_start, call_end, call_tid = _submitting_calls(activity, calls)
    kind = activity.column("kind").to_numpy(zero_copy_only=False)
    is_copy = (kind == "copy") | (kind == "set")
    is_collective = _flags(activity, "is_collective")
    encoded = activity.column("name").combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    names = [str(name) for name in encoded.dictionary.to_pylist()]
    code = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
    stream = pc.fill_null(activity.column("stream"), 0).to_numpy().astype(np.uint64)
    size = _ints(activity, "size_bytes")
    copy_kind = pc.fill_null(activity.column("copy_kind"), "").to_numpy(zero_copy_only=False)
    is_pageable = _flags(activity, "is_pageable")
    device, rank = _ints(activity, "device"), _ints(activity, "rank", -1)
    result = []
    for r, d in sorted(set(zip(rank.tolist(), device.tolist(), strict=True))):
        rows = np.flatnonzero((rank == r) & (device == d))
        rows = rows[np.argsort(spans[rows, 0], kind="stable")]
        result.append(
            Activities(
                device=d,
                rank=None if r < 0 else r,
                spans=spans[rows],
                is_copy=is_copy[rows],
                is_collective=is_collective[rows],
                stream=stream[rows],
                name=code[rows],
                names=names,
                call_start_ns=call_start[rows],
                call_end_ns=call_end[rows],
                call_tid=call_tid[rows],
                size_bytes=size[rows],
                copy_kind=copy_kind[rows],
                is_pageable=is_pageable[rows],
                covered=None if covered is None else covered(d),
            )
        )
    return result


def _ints(table: pa.Table, column: str, null: int = 0) -> Ints:
    values: Ints = pc.fill_null(table.column(column).cast(pa.int64()), null).to_numpy()
    return values


def _flags(table: pa.Table, column: str) -> Flags:
    values: Flags = pc.fill_null(table.column(column), False).to_numpy(zero_copy_only=False)
    return values.astype(bool)


def _submitting_calls(activity: pa.Table, calls: pa.Table | None) -> tuple[Ints, Ints, Ints]:
    """Entry, return and thread of the call that submitted each activity."""
    start, end, tid = _told_calls(activity)
    if calls is None or calls.num_rows == 0:
        return start, end, tid
    has_id = calls.column("correlation_id").is_valid()
    start, end = _enclosing(activity, calls.filter(pc.invert(has_id)), start, end, tid)
    found_start, found_end, found_tid = _correlated(activity, calls.filter(has_id))
    is_found = found_start != NO_CALL
    return (
        np.where(is_found, found_start, start),
        np.where(is_found, found_end, end),
        np.where(is_found, found_tid, tid),
    )


def _told_calls(activity: pa.Table) -> tuple[Ints, Ints, Ints]:
    """Entry, return and thread of the call of each activity, as its source tells them."""
    n = activity.num_rows
    if not {"tid", "call_start_ns", "call_duration_ns"} <= set(activity.column_names):
        return np.full(n, NO_CALL), np.full(n, NO_CALL), np.full(n, -1, dtype=np.int64)
    start = _ints(activity, "call_start_ns", int(NO_CALL))
    end = np.where(start == NO_CALL, NO_CALL, start + _ints(activity, "call_duration_ns"))
    return start, end, np.where(start == NO_CALL, -1, _ints(activity, "tid", -1))


def _enclosing(
    activity: pa.Table, calls: pa.Table, start: Ints, end: Ints, tid: Ints
) -> tuple[Ints, Ints]:
    """Entry and return of the outermost call around the one that each activity tells.

    The source stamps a call inside of the library; a probe at its first instruction saw it begin
    earlier and return later.
    """
    calls = calls.filter(pc.and_(pc.equal(calls["depth"], 0), calls["duration_ns"].is_valid()))
    if calls.num_rows == 0:
        return start, end
    begin, length = _ints(calls, "start_ns"), _ints(calls, "duration_ns")
    columns = (_ints(calls, "pid", -1), _ints(calls, "tid", -1))
    pid = _ints(activity, "pid", -1)
    result_start, result_end = start.copy(), end.copy()
    threads = np.unique(np.stack((pid, tid), axis=1)[start != NO_CALL], axis=0)
    for process, thread in threads.tolist():
        rows = np.flatnonzero((columns[0] == process) & (columns[1] == thread))
        mine = np.flatnonzero((pid == process) & (tid == thread) & (start != NO_CALL))
        if len(rows) == 0:
            continue
        rows = rows[np.argsort(begin[rows], kind="stable")]
        at = np.searchsorted(begin[rows], start[mine], side="right") - 1
        row = rows[np.maximum(at, 0)]
        is_around = (at >= 0) & (begin[row] + length[row] >= start[mine])
        result_start[mine[is_around]] = begin[row[is_around]]
        result_end[mine[is_around]] = (begin + length)[row[is_around]]
    return result_start, result_end


def _correlated(activity: pa.Table, calls: pa.Table) -> tuple[Ints, Ints, Ints]:
    """Entry, return and thread of the outermost call with each activity's correlation id."""
    n = activity.num_rows
    if calls.num_rows == 0:
        return np.full(n, NO_CALL), np.full(n, NO_CALL), np.full(n, -1, dtype=np.int64)
    key, wanted = _keys(calls, activity)
    start, duration = _ints(calls, "start_ns"), _ints(calls, "duration_ns")
    order = np.lexsort((-duration, start, key))
    key = key[order]
    index = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    is_valid = activity.column("correlation_id").is_valid().to_numpy(zero_copy_only=False)
    is_found = (key[index] == wanted) & is_valid
    row = order[index]
    tid = _ints(calls, "tid", -1)
    return (
        np.where(is_found, start[row], NO_CALL),
        np.where(is_found, start[row] + duration[row], NO_CALL),
        np.where(is_found, tid[row], -1),
    )


def _keys(left: pa.Table, right: pa.Table) -> tuple[Ints, Ints]:
    """One integer per distinct (rank, process, correlation id), the same in both tables."""
    n = left.num_rows
    code = np.zeros(n + right.num_rows, dtype=np.int64)
    n_codes = 1
    for column in ("rank", "pid", "correlation_id"):
        values = np.concatenate((_ints(left, column, -1), _ints(right, column, -1)))
        if (values == values[0]).all():
            continue
        distinct, inverse = np.unique(values, return_inverse=True)
        if n_codes > 1:
            distinct, inverse = np.unique(code * len(distinct) + inverse, return_inverse=True)
        code, n_codes = inverse, len(distinct)
    return code[:n], code[n:]


@dataclass(frozen=True)
class Usage:
    """Time in ns by what ran; classes overlap, ``idle_ns`` is the rest of the span."""

    span_ns: int
    busy_ns: int
    compute_ns: int
    copy_ns: int
    collective_ns: int
    exposed_collective_ns: int
    exposed_copy_ns: int

    @property
    def idle_ns(self) -> int:
        """Time in ns with nothing running."""
        return self.span_ns - self.busy_ns


def usage(activities: Activities) -> Usage:
    """Return how long the device ran what, in ns, between its first and last activity, as far as
    all activities are there.
    """
    whole = intervals.make([activities.start_ns], [activities.end_ns])
    if activities.covered is not None:
        whole = intervals.intersect(whole, activities.covered)
    spans = activities.spans
    compute = intervals.intersect(spans[activities.is_compute], whole)
    copies = intervals.intersect(spans[activities.is_copy], whole)
    collectives = intervals.intersect(spans[activities.is_collective], whole)
    return Usage(
        span_ns=intervals.total(whole),
        busy_ns=intervals.overlap(spans, whole),
        compute_ns=intervals.total(compute),
        copy_ns=intervals.total(copies),
        collective_ns=intervals.total(collectives),
        exposed_collective_ns=intervals.total(intervals.subtract(collectives, compute)),
        exposed_copy_ns=intervals.total(intervals.subtract(copies, compute)),
    )


@dataclass(frozen=True)
class Gaps:
    """The idle gaps of one device and what each waited for; arrays of equal length ``n``.

    Attributes:
        spans: ``(n, 2)`` begin and end, ns.
        next_row: Row of the activity that ended the gap.
        is_late_launch: Its call was entered after the gap began.
        is_queued: Its call was entered before the gap began.
    """

    spans: Ints
    next_row: Ints
    is_late_launch: Flags
    is_queued: Flags

    @property
    def length_ns(self) -> Ints:
        """Length of each gap, ns."""
        lengths: Ints = self.spans[:, 1] - self.spans[:, 0]
        return lengths


def gaps(activities: Activities) -> Gaps:
    """Return the gaps of the device between its first and last activity."""
    busy = intervals.union(activities.spans)
    spans = intervals.make(busy[:-1, 1], busy[1:, 0])
    if activities.covered is not None:
        known = intervals.overlap_each(spans, activities.covered)
        spans = spans[known == spans[:, 1] - spans[:, 0]]
    next_row = np.searchsorted(activities.spans[:, 0], spans[:, 1], side="left").astype(np.int64)
    call = activities.call_start_ns[next_row]
    is_known = call != NO_CALL
    return Gaps(
        spans=spans,
        next_row=next_row,
        is_late_launch=is_known & (call >= spans[:, 0]),
        is_queued=is_known & (call < spans[:, 0]),
    )


def queue_depth(activities: Activities) -> Ints:
    """Return, per activity with a call, how many were submitted and not started at its call.

    In order of the calls; the activity itself counts, so a device that keeps up shows 1.
    """
    rows = np.flatnonzero(activities.has_call)
    submitted = np.sort(activities.call_start_ns[rows])
    started = np.sort(activities.spans[rows, 0])
    already = np.searchsorted(started, submitted, side="right")
    depth: Ints = np.arange(1, len(rows) + 1, dtype=np.int64) - already
    return depth


def launch_delay_ns(activities: Activities) -> Ints:
    """Return, per activity with a call, the time in ns from the call's return to its start.

    Negative (started before the call returned) becomes 0. A delay is no cost by itself: it is the
    time in the queue; none at all may mean that the device starves.
    """
    rows = activities.has_call
    delay: Ints = np.maximum(activities.spans[rows, 0] - activities.call_end_ns[rows], 0)
    return delay
