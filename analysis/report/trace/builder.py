"""Tracks and batches from rows: gives every process, thread, stream and counter its line."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from analysis.report.trace.model import Floats, Instants, Ints, Item, Samples, Slices, Track
from analysis.report.trace.nesting import lay_out
from analysis.report.words import shown

#: Slices of one batch, about.
BATCH = 1 << 17
#: Longest name of a track or slice.
_LONGEST_NAME = 400


@dataclass
class Rows:
    """Intervals of one line, in any order.

    Attributes:
        start: ``(n,)`` begins, ns.
        end: ``(n,)`` ends, ns.
        name: ``(n,)`` names, as an Arrow dictionary.
        depth: ``(n,)`` depths as recorded; None where they are not.
        detail: ``(n,)`` further texts with nulls, as an Arrow dictionary; None for none.
        detail_name: What those are.
        flow: ``(n,)`` flow ids, 0 for none; None for none at all.
    """

    start: Ints
    end: Ints
    name: pa.DictionaryArray
    depth: Ints | None = None
    detail: pa.DictionaryArray | None = None
    detail_name: str = "detail"
    flow: Ints | None = None


@dataclass
class Lines:
    """Makes tracks at their first use and remembers them by key.

    Attributes:
        process_names: Names of processes by pid.
        thread_names: Names of threads by (pid, tid).
    """

    process_names: dict[int, str]
    thread_names: dict[tuple[int, int], str]
    _known: dict[Hashable, int] = field(default_factory=dict)
    _n: int = 0

    def group(self, name: str) -> Iterator[Item]:
        """Yield the track of a group of that name, if it is new; its key is the name."""
        yield from self._make(name, name, 0)

    def process(self, pid: int) -> Iterator[Item]:
        """Yield the track of a process if it is new; its key is its pid."""
        name = self.process_names.get(pid) or "process"
        yield from self._make(pid, name, 0, pid=pid)

    def thread(self, pid: int, tid: int) -> Iterator[Item]:
        """Yield the tracks of a thread and its process as far as new; key ``(pid, tid)``."""
        yield from self.process(pid)
        name = self.thread_names.get((pid, tid)) or "thread"
        yield from self._make((pid, tid), name, self._known[pid], pid=pid, tid=tid)

    def child(self, parent: Hashable, name: str, unit: str | None = None) -> Iterator[Item]:
        """Yield a track below another if it is new; its key is ``(parent, name)``."""
        yield from self._make((parent, name), name, self._known[parent], unit=unit)

    def _make(
        self,
        key: Hashable,
        name: str,
        parent: int,
        *,
        pid: int | None = None,
        tid: int | None = None,
        unit: str | None = None,
    ) -> Iterator[Item]:
        if key in self._known:
            return
        self._n += 1
        self._known[key] = self._n
        yield Track(self._n, shown(name, _LONGEST_NAME), parent, pid, tid, unit)

    def slices(self, key: Hashable, rows: Rows) -> Iterator[Item]:
        """Yield the slices of intervals on a track, and further tracks where they overlap."""
        layout = lay_out(rows.start, rows.end, rows.depth)
        names, codes = words_of(rows.name)
        details, detail = ([], None) if rows.detail is None else words_of(rows.detail)
        for lane in range(int(layout.lane.max()) + 1 if len(layout.lane) else 0):
            at = key
            if lane:
                yield from self.child(key, f"overlapping {lane + 1}")
                at = (key, f"overlapping {lane + 1}")
            is_own = layout.lane == lane
            order, depth = layout.order[is_own], layout.depth[is_own]
            for part in _batches(depth):
                own = order[part]
                yield Slices(
                    self._known[at],
                    np.maximum(rows.start[own], 0),
                    np.maximum(rows.end[own], 0),
                    depth[part],
                    codes[own],
                    names,
                    np.full(len(own), -1, dtype=np.int64) if detail is None else detail[own],
                    details,
                    rows.detail_name,
                    None if rows.flow is None else rows.flow[own],
                )

    def instants(self, key: Hashable, time: Ints, name: pa.DictionaryArray) -> Iterator[Item]:
        """Yield moments of a track."""
        names, codes = words_of(name)
        yield Instants(self._known[key], np.maximum(time, 0), codes, names)

    def samples(
        self, parent: Hashable, name: str, unit: str, time: Ints, value: Floats
    ) -> Iterator[Item]:
        """Yield a counter below a track, and its finite values; nothing where there are none."""
        is_told = np.isfinite(value)
        if is_told.any():
            yield from self.child(parent, name, unit)
            track = self._known[parent, name]
            yield Samples(track, np.maximum(time[is_told], 0), value[is_told])


def words_of(column: pa.DictionaryArray) -> tuple[list[str], Ints]:
    """Return the words of a dictionary, made fit to be shown, and each row's index, -1 for null."""
    words = [
        shown("" if word is None else word, _LONGEST_NAME) for word in column.dictionary.to_pylist()
    ]
    codes = column.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    return words, codes


def encoded(column: pa.ChunkedArray | pa.Array) -> pa.DictionaryArray:
    """Return a column of text as one Arrow dictionary."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.string())
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()


def _batches(depth: Ints) -> Iterator[slice]:
    """Ranges of about :data:`BATCH` slices that begin where nothing is open."""
    outermost = np.flatnonzero(depth == 0)
    begin = 0
    while begin < len(depth):
        at = np.searchsorted(outermost, begin + BATCH)
        stop = int(outermost[at]) if at < len(outermost) else len(depth)
        yield slice(begin, stop)
        begin = stop
