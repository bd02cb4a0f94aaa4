"""CUDA calls as compact columns: the outermost calls of every thread, and their latencies.

Only outermost calls are kept (a driver call inside a runtime call is part of it), 24 bytes each,
so that ten million calls fit into a few hundred MB. Codes replace text; -1 codes a null. What is
asked of all calls goes over them in blocks or yields small positions: a second column of ten
million times would take as much again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis import intervals, quantiles
from analysis.columns import BLOCK, Vocabulary, collect_columns, filled, positions
from analysis.timeline import Session

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Kinds of calls as in the schema; a call's code is its index.
KINDS = (
    "launch",
    "graph_launch",
    "graph",
    "capture",
    "sync",
    "query",
    "wait",
    "copy",
    "set",
    "memory",
    "module",
    "stream",
    "event",
    "device",
    "collective",
    "other",
)
KIND = {name: code for code, name in enumerate(KINDS)}

#: First-use codes: not known, no, first seen (proves nothing alone), first use.
NOT_KNOWN, REPEATED, FIRST_SEEN, FIRST_USE = -1, 0, 1, 2

_COLUMNS = (
    "start_ns",
    "duration_ns",
    "pid",
    "tid",
    "function",
    "kind",
    "depth",
    "device",
    "stream",
    "is_first_use",
    "is_first_seen",
    "is_capture",
)


#: Traits of a call, one bit each.
_CAPTURE, _RETURN, _SUBMISSION, _SYNC, _BLOCKING_COPY = 1, 2, 4, 8, 16
_SUBMISSIONS = ("launch", "graph_launch", "copy", "set", "collective")

#: What of (first seen, first use), each null, no or yes, becomes of a call.
_FIRST = np.array(
    [
        *(NOT_KNOWN, REPEATED, FIRST_USE),
        *(REPEATED, REPEATED, FIRST_USE),
        *(FIRST_SEEN, REPEATED, FIRST_USE),
    ],
    dtype=np.int8,
)
#: Threads up to which it is quicker to compare each than to look up.
_FEW = 8


def _answers(column: pa.ChunkedArray) -> npt.NDArray[np.int8]:
    """0 for null, 1 for no, 2 for yes."""
    if column.null_count == len(column):
        return np.zeros(len(column), dtype=np.int8)
    return filled(column.cast(pa.int8()), -1) + np.int8(1)


@dataclass(frozen=True)
class Calls:
    """Outermost calls sorted by start; one entry of every array is one call.

    Attributes:
        start: Entry in ns.
        duration: Length in ns, 0 where the return was not seen.
        thread: Index into ``threads``.
        kind: Index into ``KINDS``.
        function: Index into ``functions``.
        device: GPU index, -1 when the call does not tell.
        stream: Index into ``streams``, -1 when the call does not tell.
        first: NOT_KNOWN, REPEATED, FIRST_SEEN or FIRST_USE.
        traits: What else is asked of each call, as bits.
        threads: ``(pid, tid)`` pairs.
        functions: Names as exported.
        streams: Stream handles.
    """

    start: Ints
    duration: Ints
    thread: npt.NDArray[np.integer[Any]]
    kind: npt.NDArray[np.int8]
    function: npt.NDArray[np.integer[Any]]
    device: npt.NDArray[np.int8]
    stream: npt.NDArray[np.integer[Any]]
    first: npt.NDArray[np.int8]
    traits: npt.NDArray[np.uint8]
    threads: list[tuple[int, int]]
    functions: list[str]
    streams: list[int]

    def __len__(self) -> int:
        return len(self.start)

    def _has(self, trait: int) -> Bools:
        return (self.traits & np.uint8(trait)).astype(bool)

    @property
    def end(self) -> Ints:
        """Return of each call in ns."""
        return self.start + self.duration

    def ends(self, rows: npt.NDArray[np.integer[Any]]) -> Ints:
        """Return of some calls in ns, by their positions."""
        result: Ints = self.start[rows] + self.duration[rows]
        return result

    def lengths(self, rows: npt.NDArray[np.integer[Any]]) -> npt.NDArray[Any]:
        """Return the lengths in ns of some calls, by their positions, as a new array: of half the
        size where none is longer than four seconds.
        """
        found = np.empty(len(rows), dtype=np.uint32)
        for first in range(0, len(rows), BLOCK):
            part = self.duration[rows[first : first + BLOCK]]
            if part.min() < 0 or part.max() > np.iinfo(np.uint32).max:
                whole: npt.NDArray[Any] = self.duration[rows]
                return whole
            found[first : first + BLOCK] = part
        return found

    @property
    def is_capture(self) -> Bools:
        """Which calls were recorded into a graph, not executed."""
        return self._has(_CAPTURE)

    @property
    def has_return(self) -> Bools:
        """Of which calls the return was seen."""
        return self._has(_RETURN)

    def is_kind(self, *names: str) -> Bools:
        """Return which calls are of one of these kinds."""
        result: Bools = self.kind == KIND[names[0]]
        for name in names[1:]:
            result |= self.kind == KIND[name]
        return result

    @property
    def is_blocking_copy(self) -> Bools:
        """Which calls are copies that return only when the copy is done (no ``Async`` in the
        name): they wait for earlier work like a sync does.
        """
        return self._has(_BLOCKING_COPY)

    @property
    def is_submission(self) -> Bools:
        """Which calls hand work to a device: launches, copies, sets, collectives; none under
        capture.
        """
        return self._has(_SUBMISSION)

    @property
    def is_sync(self) -> Bools:
        """Which calls wait for a device: syncs and blocking copies."""
        return self._has(_SYNC)

    def of_thread(self, index: int) -> npt.NDArray[np.int32]:
        """Return the positions of one thread's calls."""
        return positions(self.thread == index)

    def of_process(self, pid: int) -> Bools:
        """Return which calls a process made."""
        own = [index for index, (process, _tid) in enumerate(self.threads) if process == pid]
        if len(own) == len(self.threads):
            return np.ones(len(self), dtype=bool)
        if len(own) <= _FEW:
            result = np.zeros(len(self), dtype=bool)
            for index in own:
                result |= self.thread == index
            return result
        table = np.zeros(len(self.threads), dtype=bool)
        table[own] = True
        answer: Bools = table[self.thread]
        return answer

    def pauses(self, pid: int, longer_than_ns: int) -> tuple[Ints, int | None]:
        """Return the stretches of a process without any call that are longer than this, as
        ``(n, 2)`` ns, and the median of all its pauses between calls, ns (None without any).
        """
        mask = self.of_process(pid)
        lengths = np.empty(int(np.count_nonzero(mask)), dtype=np.int64)
        found = [intervals.EMPTY]
        reach: int | None = None
        n = 0
        for first in range(0, len(self), BLOCK):
            own = mask[first : first + BLOCK]
            start = self.start[first : first + BLOCK][own]
            if len(start) == 0:
                continue
            until = np.empty(len(start) + 1, dtype=np.int64)
            until[0] = start[0] if reach is None else reach
            np.add(start, self.duration[first : first + BLOCK][own], out=until[1:])
            np.maximum.accumulate(until, out=until)
            part = np.subtract(start, until[:-1], out=lengths[n : n + len(start)])
            at = np.flatnonzero(part > longer_than_ns)
            found.append(intervals.make(until[at], start[at]))
            reach, n = int(until[-1]), n + len(start)
        n_pauses = int(np.count_nonzero(lengths > 0))
        if n_pauses == 0:
            return np.concatenate(found), None
        middle = n - n_pauses + quantiles.rank(n_pauses, 0.5)
        lengths.partition(middle)
        return np.concatenate(found), int(lengths[middle])


def load_calls(session: Session) -> Calls | None:
    """Return the outermost calls of a session, None where calls were not recorded."""
    if not session.has("cuda_call"):
        return None
    threads, functions, streams = Vocabulary(), Vocabulary(), Vocabulary()

    def convert(part: pa.Table) -> tuple[npt.NDArray[Any], ...]:
        is_outermost = part["depth"].to_numpy() == 0
        if not is_outermost.all():
            part = part.filter(pa.array(is_outermost))
        pid = part["pid"].to_numpy().astype(np.int64)
        tid = part["tid"].to_numpy().astype(np.int64)
        kind = _kind_codes(part["kind"])
        function = functions.codes(part["function"])
        is_capture = _answers(part["is_capture"]) == 2
        has_return = part["duration_ns"].is_valid().to_numpy()
        first = 3 * _answers(part["is_first_seen"]) + _answers(part["is_first_use"])
        return (
            part["start_ns"].to_numpy(),
            filled(part["duration_ns"], 0),
            threads.codes(pa.chunked_array([pa.array((pid << 32) | tid)])),
            kind,
            function,
            np.clip(filled(part["device"], -1), -1, 127).astype(np.int8),
            streams.codes(part["stream"]),
            _FIRST[first],
            _traits(kind, _is_blocking(functions.values)[function], is_capture, has_return),
        )

    columns = collect_columns(session, "cuda_call", _COLUMNS, convert)
    if not columns:
        return None
    return Calls(
        columns[0],
        columns[1],
        columns[2],
        columns[3],
        columns[4],
        columns[5],
        columns[6],
        columns[7],
        columns[8],
        threads=[(key >> 32, key & 0xFFFFFFFF) for key in threads.values],
        functions=functions.values,
        streams=streams.values,
    )


def _is_blocking(functions: list[str]) -> Bools:
    """Which functions return only when a copy is done, if they copy."""
    return np.array(["Async" not in name for name in functions] or [True], dtype=bool)


def _traits(
    kind: npt.NDArray[np.int8], is_blocking: Bools, is_capture: Bools, has_return: Bools
) -> npt.NDArray[np.uint8]:
    table = np.zeros(len(KINDS), dtype=bool)
    table[[KIND[name] for name in _SUBMISSIONS]] = True
    is_blocking_copy = (kind == KIND["copy"]) & is_blocking
    is_sync = ((kind == KIND["sync"]) | is_blocking_copy) & has_return
    result = np.zeros(len(kind), dtype=np.uint8)
    for trait, mask in (
        (_CAPTURE, is_capture),
        (_RETURN, has_return),
        (_SUBMISSION, table[kind] & ~is_capture),
        (_SYNC, is_sync),
        (_BLOCKING_COPY, is_blocking_copy),
    ):
        result |= mask.view(np.uint8) * np.uint8(trait)
    return result


def _kind_codes(column: pa.ChunkedArray) -> npt.NDArray[np.int8]:
    vocabulary = Vocabulary()
    codes = vocabulary.codes(column)
    table = np.array(
        [KIND.get(name, KIND["other"]) for name in vocabulary.values] + [KIND["other"]],
        dtype=np.int8,
    )
    result: npt.NDArray[np.int8] = table[codes]
    return result


@dataclass(frozen=True)
class Latency:
    """Latency of one function over one block of time: n calls, percentiles by nearest rank."""

    function: str
    start_ns: int
    end_ns: int
    n: int
    p50_ns: int
    p99: quantiles.Quantile
    max_ns: int

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values; ``p99_ns`` is the maximum where n is too small."""
        return {
            "function": self.function,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "n": self.n,
            "p50_ns": self.p50_ns,
            "p99_ns": int(self.p99.value),
            "p99_is_max": self.p99.is_maximum,
            "max_ns": self.max_ns,
        }


def block_width(duration_ns: int) -> int:
    """Return the width in ns of the blocks that latencies are given for: 10 s, doubled until a
    recording has at most 12 of them.
    """
    width = 10_000_000_000
    while duration_ns > 12 * width:
        width *= 2
    return width


def latencies(calls: Calls, start_ns: int, end_ns: int) -> list[Latency]:
    """Return the latencies of launches and syncs by function and block of time, in ns."""
    width = block_width(end_ns - start_ns)
    is_wanted = calls.is_kind("launch", "graph_launch", "sync") & calls.has_return
    edges = np.arange(start_ns, end_ns + width, width, dtype=np.int64)
    cuts = np.searchsorted(calls.start, edges)
    result = []
    for begin, first, last in zip(edges.tolist(), cuts, cuts[1:], strict=False):
        function = calls.function[first:last][is_wanted[first:last]]
        durations = calls.duration[first:last][is_wanted[first:last]]
        for code in np.flatnonzero(np.bincount(function)).tolist():
            own = durations[function == code]
            p50, p99 = quantiles.several(own, 0.5, 0.99)
            result.append(
                Latency(
                    calls.functions[code],
                    begin,
                    min(begin + width, end_ns),
                    len(own),
                    int(p50.value),
                    p99,
                    int(own.max()),
                )
            )
    return result
