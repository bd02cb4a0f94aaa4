"""From the records of one process to rows of ``gpu_activity``, ``annotation`` and
``memory_operation``.

Each activity is joined with the call that submitted it by CUPTI's correlation id; of several calls
with one id (the driver's inside the runtime's) the outermost counts. An activity whose call has not
come yet waits a moment for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis.schema import ANNOTATION, GPU_ACTIVITY
from probes.cuda.demangle import kernel_name
from probes.cupti import ring
from probes.cupti.external import ExternalNumbers
from probes.cupti.memory import memory_rows
from probes.cupti.named_ranges import range_rows
from probes.probe import Batch, make_batch
from probes.recorded.activity_names import is_collective_name

_I64 = npt.NDArray[np.int64]
_Records = npt.NDArray[np.void]

#: How long an activity waits for its call, and a call for its activities.
CALL_WAIT_NS = 500_000_000
ACTIVITY_WAIT_NS = 2_000_000_000
#: How long a call is kept: once it has its activity (the driver's call inside of it may still
#: come), while it has none, and for the further nodes of a graph; and how many at most.
ANSWERED_KEPT_NS = 500_000_000
UNANSWERED_KEPT_NS = 3_000_000_000
GRAPH_KEPT_NS = 10_000_000_000
MAX_CALLS = 1 << 18
#: What ends later than this after now is no record of CUPTI.
FUTURE_NS = 60_000_000_000
#: Devices that CUDA numbers.
MAX_DEVICES = 64

_KINDS = ("kernel", "copy", "set", "graph")
_COPY_KINDS = {1: "h2d", 2: "d2h", 3: "h2d", 4: "d2h", 5: "d2d", 6: "d2d", 7: "d2d", 8: "d2d"}
_COPY_KINDS |= {9: "h2h", 10: "p2p"}
_PAGEABLE = 1
_SYNCS = {
    1: "event synchronisation",
    2: "stream waits for an event",
    3: "stream synchronisation",
    4: "context synchronisation",
}
_OVERHEADS = {
    1: "driver compiler",
    1 << 16: "CUPTI flushes a buffer",
    2 << 16: "CUPTI instruments",
    3 << 16: "CUPTI sets up",
    4 << 16: "module loading",
    5 << 16: "function loading",
    6 << 16: "command buffer full",
    7 << 16: "CUPTI asks for a buffer",
    8 << 16: "unified memory set-up",
}
_CALL = np.dtype(
    [
        ("correlation", "<i8"),
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("tid", "<i8"),
        ("is_answered", "?"),
        ("has_graph", "?"),
    ]
)


class ActivityTables:
    """The rows of one process.

    Args:
        pid: Its pid here.
        name_of: Kernel name by its place in the ring.
        devices: GPU index of each CUDA ordinal; None where they are the same.
    """

    def __init__(
        self, pid: int, name_of: Callable[[int], str | None], devices: Sequence[int] | None = None
    ) -> None:
        self._pid = pid
        self._name_of = name_of
        self.devices = devices
        self._calls = np.empty(0, _CALL)
        self._waiting = np.empty(0, ring.RECORD)
        self._words: dict[int, tuple[str | None, bool]] = {0: (None, False)}
        self._cut: set[int] = set()
        self._external = ExternalNumbers()
        #: Activities without times, and activities whose call is not known.
        self.n_invalid = 0
        self.n_unjoined = 0
        #: Newest time that a record told, ns.
        self.newest_ns = 0

    def add(self, records: _Records, now_ns: int, *, is_last: bool = False) -> Iterator[Batch]:
        """Take over records and return the rows that are complete.

        Args:
            records: As drained from the ring.
            now_ns: Present time, CLOCK_MONOTONIC.
            is_last: Nothing comes after this: nothing waits any longer.
        """
        is_future = records["end_ns"] > now_ns + FUTURE_NS
        if is_future.any():
            self.n_invalid += int(is_future.sum())
            records = records.copy()
            records["kind"][is_future] = 0
        kind = records["kind"]
        # Ranges do not come through CUPTI: they say nothing of what it has handed over.
        end_ns = records["end_ns"][kind <= ring.MEMORY]
        if len(end_ns):
            self.newest_ns = max(self.newest_ns, int(min(end_ns.max(), now_ns)))
        self._external.add(records, now_ns)
        for batch in (
            range_rows(records, self._pid),
            memory_rows(records, self._pid, self._devices_of),
        ):
            if batch is not None:
                yield batch
        self._add_calls(records[kind == ring.CALL])
        yield from self._ranges(records[(kind == ring.SYNC) | (kind == ring.OVERHEAD)])
        found = records[(kind >= ring.KERNEL) & (kind <= ring.GRAPH)]
        is_timed = (found["start_ns"] > 0) & (found["end_ns"] >= found["start_ns"])
        # An activity that was cut off leaves its call unanswered: the device was not idle there.
        self.n_invalid += int((~is_timed).sum())
        self._cut.update(found["correlation"][~is_timed].tolist())
        found = np.concatenate((self._waiting, found[is_timed]))
        row = self._call_rows(found["correlation"].astype(np.int64))
        is_late = found["end_ns"].astype(np.int64) < now_ns - CALL_WAIT_NS
        is_ready = (row >= 0) | is_late | is_last
        self._waiting = found[~is_ready]
        has_call = row >= 0
        self._calls["is_answered"][row[has_call]] = True
        self._calls["has_graph"][row[has_call & (found["graph"] > 0)]] = True
        if is_ready.any():
            yield self._activities(found[is_ready], row[is_ready])
        self._forget_calls(now_ns)

    def unanswered_ns(self, *, is_all: bool) -> int | None:
        """Entry of the oldest call whose activity has not come, ns; None without one.

        Args:
            is_all: CUPTI has handed over everything. Then only activities that it handed over
                without times count; else also calls without any, which for a while may be late
                and after that gave no work (in a capture, of no bytes).
        """
        open_calls = self._calls[~self._calls["is_answered"]]
        if is_all:
            counts = np.isin(open_calls["correlation"], list(self._cut))
        else:
            counts = open_calls["start_ns"] > self.newest_ns - ACTIVITY_WAIT_NS
        return int(open_calls["start_ns"][counts].min()) if counts.any() else None

    def _add_calls(self, records: _Records) -> None:
        if not len(records):
            return
        added = np.zeros(len(records), _CALL)
        added["correlation"] = records["correlation"]
        added["start_ns"] = records["start_ns"]
        added["end_ns"] = records["end_ns"]
        thread, has_thread = ring.threads(records)
        added["tid"] = np.where(has_thread, thread, 0)
        known = self._calls
        if len(known) and added["correlation"].min() <= known["correlation"][-1]:
            # Rarely: the numbers grow, so that what is new mostly follows what is known.
            self._calls = _outermost(np.concatenate((known, added)))
        else:
            self._calls = np.concatenate((known, _outermost(added)))

    def _call_rows(self, correlation: _I64) -> _I64:
        """Row of the call of each correlation id, -1 where it is not known."""
        known = self._calls["correlation"]
        if not len(known):
            return np.full(len(correlation), -1, np.int64)
        at = np.minimum(np.searchsorted(known, correlation), len(known) - 1)
        return np.where(known[at] == correlation, at, -1).astype(np.int64)

    def _forget_calls(self, now_ns: int) -> None:
        calls = self._calls
        kept_ns = np.where(calls["is_answered"], ANSWERED_KEPT_NS, UNANSWERED_KEPT_NS)
        kept_ns[calls["has_graph"]] = GRAPH_KEPT_NS
        is_kept = calls["end_ns"] > now_ns - kept_ns
        if len(calls) > MAX_CALLS:
            newest = np.argpartition(calls["start_ns"], -MAX_CALLS)[-MAX_CALLS:]
            is_newest = np.zeros(len(calls), bool)
            is_newest[newest] = True
            is_kept &= is_newest
        self._calls = calls[is_kept]
        if len(self._cut) > MAX_CALLS:
            self._cut.intersection_update(self._calls["correlation"].tolist())

    def _activities(self, found: _Records, row: _I64) -> Batch:
        order = np.argsort(found["start_ns"], kind="stable")
        found, row = found[order], row[order]
        kind = found["kind"].astype(np.int64)
        is_copy, is_kernel = kind == ring.COPY, kind == ring.KERNEL
        has_call = row >= 0
        self.n_unjoined += int((~has_call).sum())
        calls = self._calls[np.maximum(row, 0)] if len(self._calls) else np.zeros(len(row), _CALL)
        start = found["start_ns"].astype(np.int64)
        words, is_collective = self._words_of(found, kind)
        external, has_external = self._external.of(found["correlation"].astype(np.int64))
        direction = np.where(is_copy, found["detail"], 0)
        host = np.where(direction == 2, found["target_kind"], found["source_kind"])
        columns: dict[str, Any] = {
            "start_ns": start,
            "duration_ns": found["end_ns"].astype(np.int64) - start,
            "device": self._devices_of(found["device"].astype(np.int64)),
            "pid": np.full(len(found), self._pid),
            "tid": _nullable(calls["tid"], has_call & (calls["tid"] > 0)),
            "stream": found["stream"].astype(np.uint64),
            "kind": _texts(kind - 1, _KINDS),
            "name": words,
            "copy_kind": [_COPY_KINDS.get(code) for code in direction.tolist()],
            "size_bytes": _nullable(found["bytes"].astype(np.int64), is_copy | (kind == ring.SET)),
            "is_pageable": _nullable(host == _PAGEABLE, is_copy),
            "correlation_id": found["correlation"].astype(np.int64),
            "call_start_ns": _nullable(calls["start_ns"], has_call),
            "call_duration_ns": _nullable(calls["end_ns"] - calls["start_ns"], has_call),
            "graph_id": _nullable(found["graph"].astype(np.int64), found["graph"] > 0),
            "external_id": _nullable(external, has_external),
            "is_collective": is_collective,
        }
        has_shape = is_kernel & (found["grid"] > 0).all(axis=1) & (found["grid"] < 1 << 31).all(1)
        for shape in ("grid", "block"):
            for axis, letter in enumerate("xyz"):
                values = found[shape][:, axis].astype(np.int64)
                columns[f"{shape}_{letter}"] = _nullable(values, has_shape & (values < 1 << 31))
        return make_batch(GPU_ACTIVITY, columns)

    def _words_of(self, found: _Records, kind: _I64) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
        """Name of each activity, and whether it is a collective."""
        offset = np.where(kind == ring.KERNEL, found["name"], 0)
        distinct, code = np.unique(offset, return_inverse=True)
        known = [self._word(int(place)) for place in distinct.tolist()]
        names = [word for word, _ in known]
        for number, text in ((ring.COPY, "Memcpy"), (ring.SET, "Memset"), (ring.GRAPH, "graph")):
            code = np.where(kind == number, len(names), code)
            names.append(text)
        flags = np.array([*(flag for _, flag in known), False, False, False])
        return pa.array(names, pa.string()).take(pa.array(code)), flags[code]

    def _word(self, offset: int) -> tuple[str | None, bool]:
        if offset not in self._words:
            symbol = self._name_of(offset)
            word = None if symbol is None else kernel_name(symbol)
            self._words[offset] = (word, word is not None and is_collective_name(word))
        return self._words[offset]

    def _devices_of(self, ordinal: _I64) -> _I64:
        if self.devices is None:
            return np.minimum(ordinal, MAX_DEVICES - 1)
        table = np.array([*self.devices, *range(len(self.devices), MAX_DEVICES)], np.int64)
        known: _I64 = table[np.minimum(ordinal, MAX_DEVICES - 1)]
        return np.where(known < 0, ordinal, known)

    def _ranges(self, records: _Records) -> Iterator[Batch]:
        is_timed = (records["start_ns"] > 0) & (records["end_ns"] >= records["start_ns"])
        records = records[is_timed]
        if not len(records):
            return
        start = records["start_ns"].astype(np.int64)
        is_sync = records["kind"] == ring.SYNC
        names = [
            (_SYNCS if sync else _OVERHEADS).get(code, "synchronisation" if sync else "overhead")
            for sync, code in zip(is_sync.tolist(), records["detail"].tolist(), strict=True)
        ]
        thread, has_thread = ring.threads(records)
        columns = {
            "start_ns": start,
            "duration_ns": records["end_ns"].astype(np.int64) - start,
            "pid": np.full(len(records), self._pid),
            "tid": _nullable(thread, has_thread),
            "category": _texts(is_sync.astype(np.int64), ("overhead", "sync")),
            "name": names,
        }
        yield make_batch(ANNOTATION, columns)


def _outermost(calls: _Records) -> _Records:
    """One call for each correlation id, in their order: the one that began first and ended last.

    What is known of the others goes with it.
    """
    order = np.lexsort((-calls["end_ns"], calls["start_ns"], calls["correlation"]))
    calls = calls[order]
    is_outer = np.ones(len(calls), bool)
    is_outer[1:] = calls["correlation"][1:] != calls["correlation"][:-1]
    first = np.flatnonzero(is_outer)
    result = calls[first]
    for flag in ("is_answered", "has_graph"):
        result[flag] = np.logical_or.reduceat(calls[flag], first)
    return result


def _nullable(values: npt.NDArray[Any], is_known: npt.NDArray[np.bool_]) -> pa.Array:
    return pa.array(values, mask=~is_known)


def _texts(codes: _I64, words: Sequence[str]) -> pa.Array:
    return pa.array(list(words), pa.string()).take(pa.array(codes))
