"""CUDA calls as compact columns: the outermost calls of every thread, and their latencies.

Only outermost calls are kept (a driver call inside a runtime call is part of it), 27 bytes each,
so that ten million calls fit into a few hundred MB. Codes replace text; -1 codes a null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analysis import quantiles
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


class _Vocabulary:
    """Values seen so far, in order of appearance, and their codes."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._codes: dict[Any, int] = {}

    def codes(self, column: pa.ChunkedArray) -> Ints:
        """Codes of a column's values, -1 for null."""
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        array = column.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
        local = array.dictionary.to_pylist()
        table = np.empty(len(local) + 1, dtype=np.int64)
        for index, value in enumerate(local):
            if value not in self._codes:
                self._codes[value] = len(self.values)
                self.values.append(value)
            table[index] = self._codes[value]
        table[-1] = -1
        indices = pc.fill_null(array.indices.cast(pa.int64()), len(local)).to_numpy(
            zero_copy_only=False
        )
        result: Ints = table[indices]
        return result


class _Columns:
    """Columns that are filled part by part in place, so that no second copy is made."""

    def __init__(self, n_rows: int) -> None:
        self._n_rows = max(n_rows, 1)
        self._arrays: list[npt.NDArray[Any]] = []
        self._n = 0

    def append(self, *parts: npt.NDArray[Any]) -> None:
        """Add one part of every column; all of one length."""
        end = self._n + len(parts[0])
        if not self._arrays:
            self._arrays = [np.empty(max(self._n_rows, end), part.dtype) for part in parts]
        elif end > len(self._arrays[0]):
            # The recorder wrote on since the rows were counted.
            self._arrays = [np.resize(array, 2 * end) for array in self._arrays]
        for array, part in zip(self._arrays, parts, strict=True):
            array[self._n : end] = part
        self._n = end

    def finish(self) -> list[Any]:
        """Return the columns, sorted by the first."""
        columns: list[Any] = [array[: self._n] for array in self._arrays]
        if columns and (columns[0][1:] < columns[0][:-1]).any():
            order = np.argsort(columns[0], kind="stable")
            columns = [column[order] for column in columns]
        return columns


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
        is_capture: Recorded into a graph, not executed.
        has_return: The return was seen.
        threads: ``(pid, tid)`` pairs.
        functions: Names as exported.
        streams: Stream handles.
    """

    start: Ints
    duration: Ints
    thread: npt.NDArray[np.int32]
    kind: npt.NDArray[np.int8]
    function: npt.NDArray[np.int16]
    device: npt.NDArray[np.int8]
    stream: npt.NDArray[np.int32]
    first: npt.NDArray[np.int8]
    is_capture: Bools
    has_return: Bools
    threads: list[tuple[int, int]]
    functions: list[str]
    streams: list[int]

    def __len__(self) -> int:
        return len(self.start)

    @property
    def end(self) -> Ints:
        """Return of each call in ns."""
        return self.start + self.duration

    def is_kind(self, *names: str) -> Bools:
        """Return which calls are of one of these kinds."""
        wanted = np.zeros(len(KINDS), dtype=bool)
        wanted[[KIND[name] for name in names]] = True
        result: Bools = wanted[self.kind]
        return result

    @property
    def is_blocking_copy(self) -> Bools:
        """Which calls are copies that return only when the copy is done (no ``Async`` in the
        name): they wait for earlier work like a sync does.
        """
        is_async = np.array(["Async" in name for name in self.functions] or [False], dtype=bool)
        result: Bools = (self.kind == KIND["copy"]) & ~is_async[self.function]
        return result

    @property
    def is_submission(self) -> Bools:
        """Which calls hand work to a device: launches, copies, sets, collectives; none under
        capture.
        """
        return (
            self.is_kind("launch", "graph_launch", "copy", "set", "collective") & ~self.is_capture
        )

    @property
    def is_sync(self) -> Bools:
        """Which calls wait for a device: syncs and blocking copies."""
        return (self.is_kind("sync") | self.is_blocking_copy) & self.has_return

    def of_thread(self, index: int) -> npt.NDArray[np.int32]:
        """Return the positions of one thread's calls."""
        return np.flatnonzero(self.thread == index).astype(np.int32)

    def of_process(self, pid: int) -> Bools:
        """Return which calls a process made."""
        table = np.array([own == pid for own, _tid in self.threads] or [False], dtype=bool)
        result: Bools = table[self.thread]
        return result

    def pauses(self, pid: int, longer_than_ns: int) -> tuple[Ints, int | None]:
        """Return the stretches of a process without any call that are longer than this, as
        ``(n, 2)`` ns, and the median of all its pauses between calls, ns (None without any).
        """
        mask = self.of_process(pid)
        # Columns of ten million calls are large: no copies where the process made all calls.
        start = self.start if mask.all() else self.start[mask]
        reach = (self.duration if mask.all() else self.duration[mask]) + start
        np.maximum.accumulate(reach, out=reach)
        length = start[1:] - reach[:-1]
        at = np.flatnonzero(length > longer_than_ns)
        found = np.stack((reach[at], reach[at] + length[at]), axis=1)
        n_pauses = int((length > 0).sum())
        if n_pauses == 0:
            return found, None
        middle = len(length) - n_pauses + quantiles.rank(n_pauses, 0.5)
        length.partition(middle)
        return found, int(length[middle])


def load_calls(session: Session) -> Calls | None:
    """Return the outermost calls of a session, None where calls were not recorded."""
    if not session.has("cuda_call"):
        return None
    threads, functions, streams = _Vocabulary(), _Vocabulary(), _Vocabulary()

    filled = _Columns(0)

    def convert(part: pa.Table) -> None:
        part = part.filter(pc.equal(part["depth"], 0))
        pid = part["pid"].to_numpy().astype(np.int64)
        tid = part["tid"].to_numpy().astype(np.int64)
        keys = pa.chunked_array([pa.array((pid << 32) | tid)])
        is_use = part["is_first_use"]
        first = np.full(part.num_rows, NOT_KNOWN, dtype=np.int8)
        first[_is(part["is_first_seen"], False)] = REPEATED
        first[_is(part["is_first_seen"], True)] = FIRST_SEEN
        first[_is(is_use, False)] = REPEATED
        first[_is(is_use, True)] = FIRST_USE
        filled.append(
            part["start_ns"].to_numpy(),
            pc.fill_null(part["duration_ns"], 0).to_numpy(),
            threads.codes(keys).astype(np.int32),
            _kind_codes(part["kind"]),
            functions.codes(part["function"]).astype(np.int16),
            np.clip(pc.fill_null(part["device"], -1).to_numpy(), -1, 127).astype(np.int8),
            streams.codes(part["stream"]).astype(np.int32),
            first,
            _is(part["is_capture"], True),
            part["duration_ns"].is_valid().to_numpy(),
        )

    def start_over() -> None:
        nonlocal filled
        filled = _Columns(session.n_rows("cuda_call"))

    session.collect("cuda_call", _COLUMNS, convert, keep_dictionaries=True, start_over=start_over)
    columns = filled.finish()
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
        columns[9],
        threads=[(key >> 32, key & 0xFFFFFFFF) for key in threads.values],
        functions=functions.values,
        streams=streams.values,
    )


def _is(column: pa.ChunkedArray, value: bool) -> Bools:
    result: Bools = pc.fill_null(pc.equal(column, value), False).to_numpy()
    return result


def _kind_codes(column: pa.ChunkedArray) -> npt.NDArray[np.int8]:
    vocabulary = _Vocabulary()
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
            p50, p99 = quantiles.quantile(own, 0.5), quantiles.quantile(own, 0.99)
            if p50 is None or p99 is None:
                continue
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
