"""Merges small closed segments in the background, so that old data lies in large row groups.

A segment of at least :data:`SEALED_ROWS` rows is final. Neighbouring smaller ones are merged when
together they reach that size, or when :data:`FAN_IN` of the same rank (how often their rows were
merged already) lie side by side, unless twice as many would reach it: every row is then rewritten a
few times at most, and a table that gets one row a second has dozens of files after days, not
thousands.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.schema import Table
from tracer.encoding import joined_rows, write_rows
from tracer.segments import (
    TEMPORARY_SUFFIX,
    Segment,
    list_segments,
    segment_name,
    sync_folder,
)
from tracer.summaries import SUMMARIES, combine

#: Rows from which a segment is final.
SEALED_ROWS = 131_072
#: Most rows of a merged segment; bounds the memory of a merge.
MERGED_ROWS = 163_840
#: Segments of one rank that are merged even where they are small.
FAN_IN = 16
#: Type of a column of text as it is read: written as it is, no text of a row is looked at.
_CODED_TEXT = pa.dictionary(pa.int32(), pa.string())
#: How much lower the priority of upkeep is than that of writing.
UPKEEP_NICE = 5


@dataclass(frozen=True)
class SizedSegment:
    """A closed segment, its rows and bytes, and the first and last time in the table's order.

    ``is_thinned`` tells that nothing of it is left to be thinned. ``batches`` are its rows where
    they are so few that they are kept until they are merged: to open and read a file costs ten
    times as much.
    """

    segment: Segment
    n_rows: int
    n_bytes: int = 0
    first_ns: int = 0
    last_ns: int = 0
    is_thinned: bool = False
    batches: Sequence[pa.RecordBatch] = field(default=(), compare=False, repr=False)

    @property
    def rank(self) -> int:
        """How many times FAN_IN segments were merged to get this one."""
        span = self.segment.last - self.segment.first + 1
        rank = 0
        while span >= FAN_IN:
            span //= FAN_IN
            rank += 1
        return rank


def sized_segments(folder: Path) -> list[SizedSegment]:
    """Return the segments of a folder that count, in order, with their rows."""
    return [
        SizedSegment(segment, pq.read_metadata(segment.path).num_rows)
        for segment in list_segments(folder)
    ]


def plan_merge(segments: Sequence[SizedSegment]) -> Sequence[SizedSegment]:
    """Return the neighbours to merge next, oldest first; empty where nothing is worth it."""
    start = 0
    while start < len(segments):
        if segments[start].n_rows >= SEALED_ROWS:
            start += 1
            continue
        end, rows = start, 0
        while end < len(segments) and segments[end].n_rows < SEALED_ROWS:
            if rows + segments[end].n_rows > MERGED_ROWS:
                break
            rows += segments[end].n_rows
            end += 1
            if rows >= SEALED_ROWS:
                return segments[start:end]
        group = _same_rank(segments[start:end], is_growing=end == len(segments))
        if group:
            return group
        start = end
    return ()


def _same_rank(run: Sequence[SizedSegment], is_growing: bool) -> Sequence[SizedSegment]:
    """The first FAN_IN neighbours of one rank in a run, or nothing: in one that grows, those that
    are half of a final segment wait for the rest.
    """
    start = 0
    for index in range(1, len(run) + 1):
        if index - start == FAN_IN:
            group = run[start:index]
            if not is_growing or 2 * sum(item.n_rows for item in group) < SEALED_ROWS:
                return group
            start = index
            continue
        if index < len(run) and run[index].rank != run[start].rank:
            start = index
    return ()


def merge(
    folder: Path,
    table: Table,
    group: Sequence[SizedSegment],
    facts: Mapping[str, object],
) -> SizedSegment:
    """Write one segment with the rows of a group and return it; the group is to be deleted later.

    A reader sees each row once at every moment: the merged file covers the range of the files it
    replaces from the instant it gets its name.

    Raises:
        OSError: a file could not be read or written.
    """
    first, last = group[0].segment.first, group[-1].segment.last
    target = folder / segment_name(first, last)
    temporary = folder / f".{target.name}{TEMPORARY_SUFFIX}"
    rows = _rows_of(table, group)
    try:
        with pa.OSFile(str(temporary), "wb") as sink:
            write_rows(sink, table, rows, facts)
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.chmod(0o600)
        n_bytes = temporary.stat().st_size
        temporary.rename(target)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(folder)
    return SizedSegment(
        Segment(first, last, target),
        rows.num_rows,
        n_bytes,
        min(item.first_ns for item in group),
        max(item.last_ns for item in group),
        all(item.is_thinned for item in group),
    )


def _rows_of(table: Table, group: Sequence[SizedSegment]) -> pa.Table:
    """The rows of segments, those of a summary added up; text stays coded where they are not."""
    schema = table.arrow_schema().remove_metadata()
    is_summary = table.name in SUMMARIES
    texts = [] if is_summary else [column.name for column in table if column.type == "str"]
    for name in texts:
        place = schema.get_field_index(name)
        schema = schema.set(place, schema.field(place).with_type(_CODED_TEXT))
    parts = []
    for item in group:
        if item.batches:
            part = joined_rows(table, item.batches)
        else:
            file = pq.ParquetFile(item.segment.path, memory_map=False, read_dictionary=texts)
            part = file.read(use_threads=False)
        parts.append(part.cast(schema))
    rows = pa.concat_tables(parts)
    return combine(table, rows) if is_summary else rows.unify_dictionaries()


@contextmanager
def lower_priority() -> Iterator[None]:
    """Run the body at a lower CPU priority of this thread, where that can be undone.

    Not at the lowest: new segments wait meanwhile, and must not wait long on a busy machine.
    """
    if os.geteuid() != 0:
        yield
        return
    thread = threading.get_native_id()
    before = os.getpriority(os.PRIO_PROCESS, thread)
    os.setpriority(os.PRIO_PROCESS, thread, min(before + UPKEEP_NICE, 19))
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, thread, before)
