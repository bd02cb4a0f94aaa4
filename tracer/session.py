"""Writes a session directory that can be read at every moment, also after a kill or a full disk.

Rows are gathered per table for a few seconds and become closed Parquet segments (names and the
reader's rule: ``tracer/segments.py``). A single thread encodes, writes, merges old segments while
it has nothing else to do, and replaces the manifest; the recorder's thread never waits for a disk.

When a write fails (disk full, quota, read-only file system) the rows of that segment are dropped
and counted, the recording goes on, and what was lost is written as rows of ``loss`` and ``event``
as soon as something can be written again, at the latest at the end: the session holds back a little
room for that (``tracer/reserve.py``).
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from analysis.manifest import FILE_NAME, Manifest, Source
from analysis.schema import EVENT, LOSS, Table
from probes.probe import Batch
from tracer.compaction import SizedSegment
from tracer.encoding import FEW_SAMPLES, is_sampled
from tracer.errors import SessionError
from tracer.place import Place
from tracer.reserve import Reserve
from tracer.retention import Retention
from tracer.segment_store import FAILURES, FULL, KEEP_REPLACED_S, SegmentStore
from tracer.segments import replace_file
from tracer.session_folder import make_folder
from tracer.session_losses import SOURCE_NAME, Loss, loss_batch, notice_batch

#: A table's rows become a segment when the oldest has waited this long, or at so many rows.
SEGMENT_NS = 2_000_000_000
SEGMENT_ROWS = 131_072
#: A table of fewer rows (of samples: ``FEW_SAMPLES``) waits this many times as long: a segment
#: costs the same for one row as for a thousand. With what a probe keeps back, no row is on its way
#: for more than five seconds.
FEW_ROWS = 2_048
FEW_ROWS_FACTOR = 1.5
#: Rows that wait for the disk beyond this are dropped: memory stays bounded.
MAX_PENDING_BYTES = 96 << 20
#: Notices (lost, recovered) kept for a disk that takes nothing.
MAX_NOTICES = 100


@dataclass
class _Buffer:
    """Rows of one table that are not in a segment yet."""

    table: Table
    since_ns: int
    batches: list[pa.RecordBatch] = field(default_factory=list)
    n_rows: int = 0


@dataclass(frozen=True)
class _Job:
    """Rows that are to become one segment."""

    table: Table
    batches: list[pa.RecordBatch]
    n_rows: int
    n_bytes: int


class SessionWriter:
    """The one writer of a session directory.

    Args:
        path: Directory to make.
        manifest: Written at once and at every :meth:`write_manifest`; the caller changes it.
        force: Replace an existing session.
        clock: CLOCK_MONOTONIC in ns.
        segment_ns: Longest time that a row waits for its segment, where there are many.
        segment_rows: Rows at which a segment is closed early.
        max_pending_bytes: Rows waiting for the disk beyond this are dropped and counted.
        retention: What is kept of old rows; None for everything.

    Raises:
        SessionError: the directory exists, or cannot be made.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        *,
        force: bool = False,
        clock: Callable[[], int] = time.monotonic_ns,
        segment_ns: int = SEGMENT_NS,
        segment_rows: int = SEGMENT_ROWS,
        max_pending_bytes: int = MAX_PENDING_BYTES,
        retention: Retention | None = None,
    ) -> None:
        self.path = path
        self.manifest = manifest
        self._clock = clock
        self._segment_ns = segment_ns
        self._segment_rows = segment_rows
        self._max_pending_bytes = max_pending_bytes
        self._lock = make_folder(path, force)
        self._retention = retention
        self._pins: deque[tuple[int, int]] = deque()
        self._buffers: dict[str, _Buffer] = {}
        self._condition = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._pending_bytes = 0
        self._manifest_text: str | None = None
        self._is_stopping = False
        self._is_busy = False
        # Owned by the writing thread.
        self._reserve = Reserve(path)
        self._store = SegmentStore(path, self._facts, retention, self._reserve.lend)
        self._failed_ns: int | None = None
        self._losses: dict[tuple[str, str], Loss] = {}
        self._notices: list[tuple[int, str, str]] = []
        self._n_lost = 0
        self._problem = ""
        text = manifest.to_json().encode()
        try:
            self._place = Place(path)
            replace_file(path / FILE_NAME, text)
        except OSError as error:
            self._lock.release()
            raise SessionError(
                f"{path} cannot be written ({error.strerror}); choose another place with -o DIR"
            ) from None
        self._reserve.hold(len(text))
        self._thread = threading.Thread(target=self._run, name="session-writer", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._reserve.release()
            self._place.close()
            self._lock.release()
            raise SessionError(
                f"{path} cannot be written (no room for a thread); raise the limit of memory or "
                "of processes (ulimit -v, ulimit -u)"
            ) from None

    # Called by the recorder's thread ------------------------------------------------------------

    def append(self, batch: Batch) -> None:
        """Take over the rows of a batch; its arrays must not change afterwards."""
        if batch.rows.num_rows == 0:
            return
        since_ns = self._clock() - batch.held_ns
        buffer = self._buffers.get(batch.table.name)
        if buffer is None:
            buffer = self._buffers[batch.table.name] = _Buffer(batch.table, since_ns)
        buffer.since_ns = min(buffer.since_ns, since_ns)
        buffer.batches.append(batch.rows)
        buffer.n_rows += batch.rows.num_rows
        if buffer.n_rows >= self._segment_rows:
            self._close_buffer(buffer)

    def flush(self, force: bool = False, timeout_s: float = 10.0) -> bool:
        """Close the segments that are due; return whether nothing waits for the disk any more.

        Args:
            force: Close all of them and wait until they are on disk.
            timeout_s: Longest wait in s.
        """
        now_ns = self._clock()
        buffers = list(self._buffers.values())
        if force or any(now_ns - buffer.since_ns >= self._longest_ns(buffer) for buffer in buffers):
            # All that have waited half as long go along: one after the other they cost half of
            # what each costs alone after a pause.
            half_ns = 0 if force else self._segment_ns // 2
            for buffer in buffers:
                if now_ns - buffer.since_ns >= half_ns:
                    self._close_buffer(buffer)
        with self._condition:
            if force:
                self._condition.wait_for(self._is_idle, timeout_s)
            return self._is_idle()

    def flush_soon(self) -> None:
        """Close all segments now; they reach the disk in the background."""
        for buffer in list(self._buffers.values()):
            self._close_buffer(buffer)

    def wait_for_room(self, timeout_s: float) -> bool:
        """Wait until a large batch would not be dropped; return whether that is so.

        Args:
            timeout_s: Longest wait in s.
        """
        with self._condition:
            return self._condition.wait_for(
                lambda: self._pending_bytes * 2 <= self._max_pending_bytes, timeout_s
            )

    def write_manifest(self) -> None:
        """Replace the manifest by its present state, soon."""
        text = self.manifest.to_json(is_brief=True)
        with self._condition:
            self._manifest_text = text
            self._condition.notify_all()

    def pin(self, start_ns: int, end_ns: int) -> None:
        """Keep the detail between two times (CLOCK_MONOTONIC), as far as it is still there."""
        self._pins.append((start_ns, end_ns))

    def source(self) -> Source:
        """Return the writer's own entry among the sources of the manifest."""
        return Source(
            name=SOURCE_NAME,
            state="degraded" if self._n_lost else "ok",
            n_rows=self._store.n_rows,
            n_lost=self._n_lost,
            note=self._problem,
            details=self._store.details(),
        )

    @property
    def problem(self) -> str:
        """One sentence about the last failed write; empty when nothing was lost."""
        return self._problem

    def is_in_place(self) -> bool:
        """Return whether the directory was still where it was made when it was written last."""
        return self._place.is_kept

    def close(self, timeout_s: float = 30.0) -> bool:
        """Write what is left and the manifest; return whether everything reached the disk.

        Args:
            timeout_s: Longest wait in s, for a disk that does not answer.
        """
        if self._is_stopping:
            return not self._thread.is_alive()
        for buffer in list(self._buffers.values()):
            self._close_buffer(buffer)
        with self._condition:
            self._is_stopping = True
            self._condition.notify_all()
        self._thread.join(timeout_s)
        is_done = not self._thread.is_alive()
        if is_done:
            if self._place.look():
                self._store.delete_replaced(0.0)
                self._reserve.release()
            is_done = self._tell_end()
            if not is_done and self._place.look():
                self._reserve.settle()
                is_done = self._tell_end()
        self._place.close()
        self._lock.release()
        return is_done

    def _close_buffer(self, buffer: _Buffer) -> None:
        del self._buffers[buffer.table.name]
        n_bytes = sum(batch.get_total_buffer_size() for batch in buffer.batches)
        job = _Job(buffer.table, buffer.batches, buffer.n_rows, n_bytes)
        with self._condition:
            if self._pending_bytes + n_bytes > self._max_pending_bytes:
                self._count_loss(job, "writer_behind", "The disk did not keep up.")
            else:
                self._jobs.append(job)
                self._pending_bytes += n_bytes
            self._condition.notify_all()

    def _longest_ns(self, buffer: _Buffer) -> float:
        """Longest time that rows wait for their segment."""
        few = FEW_SAMPLES if is_sampled(buffer.table) else FEW_ROWS
        return self._segment_ns * (FEW_ROWS_FACTOR if buffer.n_rows < few else 1.0)

    def _is_idle(self) -> bool:
        return not self._jobs and not self._is_busy and self._manifest_text is None

    def _tell_end(self) -> bool:
        """Write what was lost and the last manifest; return whether both are on disk."""
        self._tell_losses()
        return self._write_last_manifest() and not self._losses

    def _write_last_manifest(self) -> bool:
        """Write the manifest after all rows, with the writer's final counts."""
        sources = self.manifest.sources
        sources[:] = [source for source in sources if source.name != SOURCE_NAME]
        sources.append(self.source())
        return self._replace_manifest(self.manifest.to_json())

    # The writing thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            group = None
            with self._condition:
                while not (self._jobs or self._manifest_text or self._is_stopping):
                    group = self._next_merge()
                    if group is not None:
                        break
                    self._condition.wait()
                job = self._jobs.popleft() if self._jobs else None
                text, self._manifest_text = self._manifest_text, None
                self._is_busy = True
            if job is not None:
                self._write(job)
            elif group is not None and self._place.look():
                self._store.merge(*group)
            if not self._jobs:
                self._tell_losses()
            if text is not None and self._replace_manifest(text):
                # The last one is written at length.
                self._reserve.hold(2 * len(text.encode()))
            if self._place.look():
                self._store.delete_replaced(KEEP_REPLACED_S)
                self._retain()
            with self._condition:
                self._is_busy = False
                if job is not None:
                    self._pending_bytes -= job.n_bytes
                self._condition.notify_all()
                if self._is_stopping and not self._jobs:
                    return

    def _retain(self) -> None:
        """Drop and thin what is too old, but nothing that was pinned."""
        while self._pins:
            pin = self._pins.popleft()
            if self._retention is not None:
                self._retention.pin(*pin)
        self._store.retain(self._clock(), is_busy=bool(self._jobs))
        self._reserve.take_back()

    def _write(self, job: _Job) -> None:
        """Write one segment, or count its rows as lost."""
        try:
            self._place.check()
            self._store.write(job.table, job.batches)
        except FAILURES as error:
            code = error.errno if isinstance(error, OSError) else None
            reason = "disk_full" if code in FULL else "write_error"
            why = os.strerror(code) if code else str(error) or "no memory"
            detail = f"The session could not be written ({why})."
            if self._failed_ns is None:
                self._notices.append((self._clock(), "source_lost", detail))
            self._failed_ns = self._clock()
            with self._condition:
                self._count_loss(job, reason, detail)
            return
        failed_ns = self._failed_ns
        if failed_ns is not None and self._clock() - failed_ns > 2 * self._segment_ns:
            self._failed_ns = None
            self._notices.append(
                (self._clock(), "source_recovered", "The session is written again.")
            )

    def _facts(self) -> dict[str, object]:
        """What a segment's footer says besides format, table and clock."""
        host = self.manifest.host
        return {
            "boot_id": host.get("boot_id", ""),
            "hostname": host.get("hostname", ""),
            "n_lost_rows": self._n_lost,
        }

    def _count_loss(self, job: _Job, reason: str, detail: str) -> None:
        """Count the rows of a segment as lost (with the lock held)."""
        self._n_lost += job.n_rows
        self._problem = f"{detail} {self._n_lost} rows were dropped."
        loss = self._losses.setdefault((job.table.name, reason), Loss(self._clock(), 0, detail))
        loss.n_rows += job.n_rows

    def _tell_losses(self) -> None:
        """Write rows about what was lost; keep them for later where that fails too."""
        with self._condition:
            losses, self._losses = self._losses, {}
        notices, self._notices = self._notices, []
        now_ns = self._clock()
        try:
            self._place.check()
            if losses:
                batch = loss_batch(losses, now_ns)
                self._store.write(LOSS, [batch.rows])
                losses = {}
            if notices:
                batch = notice_batch(notices)
                self._store.write(EVENT, [batch.rows])
                notices = []
        except FAILURES:
            self._notices = notices[-MAX_NOTICES:]
            with self._condition:
                for key, loss in losses.items():
                    newer = self._losses.get(key)
                    if newer is not None:
                        loss.n_rows += newer.n_rows
                    self._losses[key] = loss

    def _replace_manifest(self, text: str) -> bool:
        try:
            self._place.check()
            replace_file(self.path / FILE_NAME, text.encode())
        except OSError as error:
            if not self._problem:
                self._problem = f"The manifest could not be replaced ({error.strerror or error})."
            return False
        return True

    def _next_merge(self) -> tuple[str, list[SizedSegment]] | None:
        """The next segments to merge, or None."""
        return None if self._failed_ns is not None else self._store.next_merge()
