"""Garbage collections of Python interpreters, at the markers by which they tell of them.

Pythons built with SystemTap's markers (Debian's are) have ``gc__start`` and ``gc__done``; they cost
nothing while nobody looks, and two probes a collection while this one does. Only the recorded
processes are probed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

import numpy as np

from analysis.schema import EVENT, LOSS, Table
from probes.attach import Attachment, Place, close_together
from probes.cuda.calls import CudaCalls
from probes.cuda.elf import ElfError, ElfFile
from probes.cuda.loading import COLLECTOR_PROGRAM
from probes.cuda.tracing import Tracing
from probes.host import proc
from probes.probe import Batch, PidSource, ProbeError, SourceReport, make_batch
from probes.scheduler.markers import read_markers

#: Marker to the cookie that the program gets.
_COOKIES = {"gc__start": 0, "gc__done": 1}
#: A process without an interpreter is looked at again after so long: it may call exec.
_RETRY_NS = 5_000_000_000


class GarbageCollections:
    """Records collections from :data:`probes.cuda.program.SHORTEST_COLLECTION_NS` on as events.

    Args:
        calls: The probe of calls of the same recording; it must be started first.
        tree: Processes that are recorded.
    """

    name = "interpreter"
    tables: Sequence[Table] = (EVENT, LOSS)
    period_ns = 1_000_000_000

    def __init__(self, calls: CudaCalls, tree: PidSource) -> None:
        self._calls = calls
        self._tree = tree
        self._tracing: Tracing | None = None
        self._attached: dict[int, Attachment] = {}
        self._watched: set[int] = set()
        self._looked_ns: dict[int, int] = {}
        self._n_rows = 0
        self._n_lost = 0

    def start(self) -> None:
        """Attach to the interpreters that run.

        Raises:
            ProbeError: CUDA calls are not recorded, beside which it runs.
        """
        self._tracing = self._calls.tracing
        if self._tracing is None:
            raise ProbeError(
                "garbage collections are recorded beside CUDA calls, which cannot be recorded; "
                "run 'tracer doctor'"
            )
        self._follow(self._tracing, time.monotonic_ns())

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Return the collections that ended, and look for new interpreters."""
        tracing = self._tracing
        if tracing is None or self._calls.tracing is None:
            return []
        batches = self._collect(tracing, now_ns)
        self._follow(tracing, now_ns)
        return batches

    def stop(self) -> Iterable[Batch]:
        """Detach and return what is left."""
        tracing, self._tracing = self._tracing, None
        close_together(self._attached.values())
        self._attached.clear()
        if tracing is None:
            return []
        with tracing.lock:
            return [] if tracing.is_closed else self._collect(tracing, time.monotonic_ns())

    def report(self) -> SourceReport:
        """Return the rows and losses so far, and the processes that tell of their collections;
        that none does (no Python, or one without markers) is no fault of the recording.
        """
        details = {"pids": sorted(self._watched)}
        return SourceReport(self.name, self._n_rows, self._n_lost, details=details)

    def _follow(self, tracing: Tracing, now_ns: int) -> None:
        """Attach to interpreters that were not seen yet, and let go of those that ended."""
        living = self._tree.pids()
        for pid in self._attached.keys() - living:
            self._attached.pop(pid).close()
        for pid in living - self._attached.keys():
            looked_ns = self._looked_ns.get(pid)
            if looked_ns is not None and now_ns - looked_ns < _RETRY_NS:
                continue
            self._looked_ns[pid] = now_ns
            attachment = _attach(tracing, pid)
            if attachment is not None:
                self._attached[pid] = attachment
                self._watched.add(pid)

    def _collect(self, tracing: Tracing, now_ns: int) -> list[Batch]:
        records = tracing.collections.drain()
        batches = []
        if len(records):
            start_ns = records["start_ns"].astype(np.int64)
            pid_tgid = records["pid_tgid"]
            columns = {
                "time_ns": start_ns,
                "kind": ["gc"] * len(records),
                "pid": (pid_tgid >> np.uint64(32)).astype(np.int32),
                "tid": pid_tgid.astype(np.uint32).astype(np.int32),
                "duration_ns": records["end_ns"].astype(np.int64) - start_ns,
                "name": ["python"] * len(records),
            }
            batches.append(make_batch(EVENT, columns))
            self._n_rows += len(records)
        n_lost = tracing.counters()["collections_lost"]
        if n_lost > self._n_lost:
            columns = {
                "time_ns": [now_ns],
                "source": [self.name],
                "reason": ["ring_full"],
                "n_lost": [n_lost - self._n_lost],
                "detail": ["Garbage collections are missing: the ring buffer was full."],
            }
            batches.append(make_batch(LOSS, columns))
            self._n_lost = n_lost
        return batches


def _attach(tracing: Tracing, pid: int) -> Attachment | None:
    """What holds the probes in the interpreter of a process; None where it has no markers."""
    seen: set[tuple[int, int]] = set()
    for mapping in proc.read_maps(pid, executable_only=True):
        key = (mapping.device, mapping.inode)
        if key in seen or "python" not in os.path.basename(mapping.path):  # noqa: PTH119
            continue
        seen.add(key)
        path = f"{proc.PROC}/{pid}/map_files/{mapping.range_name}"
        try:
            with ElfFile(path) as elf:
                markers = read_markers(elf)
        except ElfError:
            continue
        places = [
            Place(
                marker.offset,
                _COOKIES[marker.name],
                COLLECTOR_PROGRAM,
                has_return=False,
                counter=marker.counter,
            )
            for marker in markers
            if marker.provider == "python" and marker.name in _COOKIES
        ]
        if {place.cookie for place in places} != set(_COOKIES.values()):
            continue
        try:
            return tracing.attacher.attach(path, places, pid)
        except ProbeError:
            continue
    return None
