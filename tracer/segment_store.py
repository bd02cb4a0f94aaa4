"""The closed segments of a session on disk: puts new ones in place, merges, thins and drops old
ones. Used by one thread only.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.kept import FILE_NAME as KEPT_NAME
from analysis.schema import Table
from analysis.schema import table as declared_table
from tracer.compaction import SizedSegment, lower_priority, merge, plan_merge
from tracer.encoding import encode_segment
from tracer.retention import Retention, Step
from tracer.segments import Segment, replace_file, segment_name, sync_folder
from tracer.summaries import summarise
from tracer.thinning import thin

#: Errors that mean that there is no room.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: How writing may fail for want of a disk or of memory; the recording goes on.
FAILURES = (OSError, pa.ArrowException, MemoryError)
#: Pause before a merge is tried again after one failed.
MERGE_RETRY_S = 60.0
#: Rows of a segment of up to so many bytes are kept until they are merged.
KEPT_BYTES = 128 << 10
#: Replaced segments are deleted after this, so that a reader can finish with what it listed.
KEEP_REPLACED_S = 60.0
#: How often it is looked for what is too old or too much, and at most how late while rows wait.
RETAIN_NS = 5_000_000_000
MAX_LATE_NS = 30_000_000_000


class SegmentStore:
    """The segments of one session.

    Args:
        path: The session's directory.
        facts: What a segment's footer says besides format, table and clock.
        retention: What is kept of old rows; None for everything.
        make_room: Called where a full disk has no room to tell what is dropped to make some.
    """

    def __init__(
        self,
        path: Path,
        facts: Callable[[], Mapping[str, object]],
        retention: Retention | None,
        make_room: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._facts = facts
        self._make_room = make_room
        self.retention = retention
        self._next: dict[str, int] = {}
        self._segments: dict[str, list[SizedSegment]] = {}
        self._merge_after = 0.0
        self._retain_ns = 0
        self._replaced: deque[tuple[float, Path]] = deque()
        self.n_rows = self.n_bytes = self.n_segments = self.n_merges = 0

    @property
    def n_bytes_now(self) -> int:
        """Bytes of the segments that count."""
        return sum(item.n_bytes for items in list(self._segments.values()) for item in list(items))

    def details(self) -> dict[str, Any]:
        """Return the counts for the manifest."""
        counts: dict[str, Any] = {
            "n_bytes": self.n_bytes,
            "n_segments": self.n_segments,
            "n_merges": self.n_merges,
        }
        if self.retention is not None:
            counts["n_bytes_now"] = self.n_bytes_now
            counts["n_dropped_segments"] = self.retention.n_dropped
            counts["n_dropped_rows"] = self.retention.n_dropped_rows
            counts["keep_ns"] = self.retention.keep_ns
            counts["max_bytes"] = self.retention.max_bytes
        return counts

    def write(self, table: Table, batches: Sequence[pa.RecordBatch]) -> None:
        """Put rows in place as the table's next segment; their summaries first, where detail will
        be dropped.

        Raises:
            OSError: it could not be written; nothing of the segment is left.
        """
        if self.retention is not None:
            for other, rows in summarise(table, pa.Table.from_batches(batches)):
                self._put(other, rows.to_batches())
        self._put(table, batches)

    def _put(self, table: Table, batches: Sequence[pa.RecordBatch]) -> None:
        content = encode_segment(table, batches, self._facts())
        folder = self._path / table.name
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self._path)
        number = self._next.get(table.name, 0)
        target = folder / segment_name(number, number)
        replace_file(target, content)
        self._next[table.name] = number + 1
        times = [batch.column(table.order).to_numpy() for batch in batches if batch.num_rows]
        n_rows = sum(batch.num_rows for batch in batches)
        is_small = sum(batch.nbytes for batch in batches) <= KEPT_BYTES
        self._segments.setdefault(table.name, []).append(
            SizedSegment(
                Segment(number, number, target),
                n_rows,
                len(content),
                min(int(part.min()) for part in times),
                max(int(part.max()) for part in times),
                batches=tuple(batches) if is_small else (),
            )
        )
        self.n_rows += n_rows
        self.n_bytes += len(content)
        self.n_segments += 1

    def next_merge(self) -> tuple[str, list[SizedSegment]] | None:
        """Return the next segments to merge, or None."""
        if time.monotonic() < self._merge_after:
            return None
        for name, segments in self._segments.items():
            group = plan_merge(segments)
            if group:
                return name, list(group)
        return None

    def merge(self, name: str, group: list[SizedSegment]) -> None:
        """Merge neighbouring segments; where that fails they stay, and are tried again later."""
        segments = self._segments[name]
        start = segments.index(group[0])
        try:
            with lower_priority():
                merged = merge(self._path / name, declared_table(name), group, self._facts())
        except FAILURES:
            self._merge_after = time.monotonic() + MERGE_RETRY_S
            return
        # A merge holds many rows at once; the allocator would keep the room for the next.
        pa.default_memory_pool().release_unused()
        segments[start : start + len(group)] = [merged]
        now = time.monotonic()
        self._replaced.extend((now, item.segment.path) for item in group)
        self.n_merges += 1

    def delete_replaced(self, age_s: float) -> None:
        """Delete segments that were replaced by a merged one at least so long ago."""
        latest = time.monotonic() - age_s
        while self._replaced and self._replaced[0][0] <= latest:
            with contextlib.suppress(OSError):
                self._replaced.popleft()[1].unlink()

    def retain(self, now_ns: int, is_busy: bool = False) -> None:
        """Drop and thin what is too old or too much, at most every five seconds.

        What cannot be done (a disk that answers no more) is tried again at the next call.

        Args:
            now_ns: Time on the clock of the rows.
            is_busy: Rows wait to be written: do it only if it is late already.
        """
        due_ns = self._retain_ns + (MAX_LATE_NS if is_busy else 0)
        if self.retention is None or now_ns < due_ns:
            return
        self._retain_ns = now_ns + RETAIN_NS
        steps = self.retention.plan(self._segments, now_ns)
        if not steps:
            return
        with contextlib.suppress(*FAILURES), lower_priority():
            self._tell_kept(self.retention.kept.to_json().encode())
            if any(step.is_drop for step in steps):
                # The files that a dropped one covered must not come to light again.
                self.delete_replaced(0.0)
            for step in steps:
                self._do(step)
            max_bytes = self.retention.max_bytes
            if max_bytes is not None:
                # Replaced files count too while there is little room.
                self._delete_under_pressure(max_bytes)

    def _tell_kept(self, content: bytes) -> None:
        """Say what is kept before anything is dropped, also on a full disk.

        Raises:
            OSError: it cannot be said; nothing may be dropped.
        """
        path = self._path / KEPT_NAME
        try:
            replace_file(path, content)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._make_room()
            replace_file(path, content)

    def _do(self, step: Step) -> None:
        segments = self._segments[step.table]
        index = segments.index(step.item)
        if step.is_drop:
            with contextlib.suppress(FileNotFoundError):
                step.item.segment.path.unlink()
            del segments[index]
            if self.retention is not None:
                self.retention.note_dropped(step.item)
            return
        table = declared_table(step.table)
        path = step.item.segment.path
        rows = pq.ParquetFile(path, memory_map=False).read(use_threads=False)
        thinned = thin(table, rows.cast(table.arrow_schema().remove_metadata()))
        content = encode_segment(table, thinned.to_batches(), self._facts())
        replace_file(path, content)
        segments[index] = SizedSegment(
            step.item.segment,
            thinned.num_rows,
            len(content),
            step.item.first_ns,
            step.item.last_ns,
            is_thinned=True,
        )

    def _delete_under_pressure(self, max_bytes: int) -> None:
        n_replaced = 0
        for _, path in self._replaced:
            with contextlib.suppress(OSError):
                n_replaced += path.stat().st_size
        if self.n_bytes_now + n_replaced > max_bytes:
            self.delete_replaced(0.0)
