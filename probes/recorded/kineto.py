"""PyTorch profiler (Kineto) traces: one JSON file, or a folder with one file per rank.

Times stay in the trace's own clock, in exact nanoseconds: microseconds since the trace's
``baseTimeNanoseconds`` where it has one, else since the Unix epoch. Ranks with different bases
are shifted to the first's. Activities and calls of a file are joined by their correlation id, so
that calls know their device, stream and kernel, and activities the process that submitted them.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.probe import Batch
from probes.recorded.ahead import ahead
from probes.recorded.devices import DeviceIndex
from probes.recorded.json_events import GZIP_MAGIC, EventStream
from probes.recorded.kineto_rows import BlockParser
from probes.recorded.kineto_tables import add_events
from probes.recorded.layouts import Layouts
from probes.recorded.recording import Problems, RecordingError
from probes.recorded.trace_tables import TraceTables

#: Python functions are kept up to this size of the unpacked trace: deep stacks would be most rows.
_PYTHON_MAX_BYTES = 16 << 20
#: Rows held before they are sorted and handed out.
_HELD_ROWS = 300_000
_MAX_FILES = 10_000
_MAX_RANKS = 10**9
_PROBE_BYTES = 64 << 10
_BASE_KEY = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(-?\d{1,19})')
_RANK_KEY = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d{1,9})')
_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_]?(\d{1,9})(?!\d)", re.IGNORECASE)
_LOOKS = re.compile(rb'"(traceEvents|schemaVersion|deviceProperties|distributedInfo)"|"ph"\s*:')


@dataclass(frozen=True)
class RankFile:
    """One trace of a folder.

    Attributes:
        path: The file.
        base_ns: Its base time, null when it has none or stands alone.
        rank: Its rank, by its content, else by its name; null when it stands alone.
    """

    path: Path
    base_ns: int | None
    rank: int | None


class KinetoRecording:
    """A trace, or the traces of several ranks."""

    format = "kineto"

    def __init__(self, path: Path) -> None:
        self.problems = Problems()
        self._path = path
        self._is_folder = path.is_dir()
        self._files = rank_files(path) if self._is_folder else [RankFile(path, None, None)]
        self._devices = DeviceIndex(self._is_folder)
        self._layouts = Layouts()
        self._ranks: list[int | None] = []
        self._pids: set[int] = set()
        self._bases: set[int | None] = set()
        self._header: dict[str, Any] = {}
        self._start_ns: int | None = None
        self._end_ns: int | None = None

    @property
    def n_files(self) -> int:
        """Traces that it consists of."""
        return len(self._files)

    def manifest_facts(self) -> dict[str, Any]:
        """Return what a session's manifest says of it; see ``Recording``."""
        base_ns = next(iter(self._bases)) if self._bases else None
        realtime_ns = self._start_ns
        if base_ns is not None and self._start_ns is not None:
            realtime_ns = base_ns + self._start_ns
        elif self._start_ns is not None and self._start_ns < 1_000_000_000_000_000_000:
            realtime_ns = None
        header = self._header
        host = {
            "name": header.get("host_name"),
            "cuda_runtime": header.get("cuda_runtime_version"),
            "cuda_driver": header.get("cuda_driver_version"),
            "hip_runtime": header.get("hip_runtime_version"),
        }
        details = {
            "n_files": len(self._files),
            "ranks": [rank for rank in self._ranks if rank is not None],
            "time_base": "Unix epoch" if base_ns is None else "baseTimeNanoseconds",
            "base_time_ns": base_ns,
        }
        return {
            "origin": self.format,
            "host": {
                key: value for key, value in host.items() if isinstance(value, (str, int, float))
            },
            "gpus": self._devices.gpus(),
            "targets": [{"pid": pid} for pid in sorted(self._pids)],
            "sources": [
                {
                    "name": "kineto",
                    "state": "ok",
                    "tables": ["annotation", "cuda_call", "gpu_activity", "kernel_function"],
                    "details": details,
                }
            ],
            "start_ns": self._start_ns,
            "end_ns": self._end_ns,
            "start_realtime_ns": realtime_ns,
        }

    def batches(self) -> Iterator[Batch]:
        """Yield the rows; see ``Recording``."""
        tables = TraceTables(self._devices, self.problems)
        for file in self._files:
            shift_ns = (file.base_ns or 0) - (self._files[0].base_ns or 0)
            try:
                yield from self._read(file, tables, shift_ns)
            except RecordingError:
                if not self._is_folder:
                    raise
                self.problems.add("file of the folder that could not be read")
        if not tables.n_rows_out:
            raise RecordingError(
                f"{self._path} holds no event that can be imported; was the profiler's schedule "
                "active while it ran?"
            )

    def _read(self, file: RankFile, tables: TraceTables, shift_ns: int) -> Iterator[Batch]:
        stream = EventStream(file.path, self.problems)
        keep_python = _unpacked_bytes(file.path) <= _PYTHON_MAX_BYTES
        rank = file.rank
        parser = BlockParser(keep_python, self.problems, self._layouts)
        for block in ahead(stream, 1):
            for rows in parser.rows(block, stream.categories):
                add_events(tables, rows, shift_ns, self.problems)
            if tables.n_held > _HELD_ROWS:
                yield from self._flush(tables, stream, rank)
        known = stream.header.get("distributedInfo")
        if isinstance(known, dict):
            told = known.get("rank")
            rank = told if isinstance(told, int) and 0 <= told < _MAX_RANKS else rank
        self._note_header(stream.header)
        yield from self._flush(tables, stream, rank)
        self._ranks.append(rank)
        self._devices.next_file()

    def _flush(self, tables: TraceTables, stream: EventStream, rank: int | None) -> Iterator[Batch]:
        self._devices.learn(stream.header.get("deviceProperties"))
        yield from tables.flush(rank)
        self._pids |= tables.pids
        self._start_ns, self._end_ns = tables.start_ns, tables.end_ns

    def _note_header(self, header: dict[str, Any]) -> None:
        base_ns = header.get("baseTimeNanoseconds")
        is_base = isinstance(base_ns, int) and 0 < base_ns < 1 << 62
        if not self._bases:
            self._bases.add(base_ns if is_base else None)
            self._header = header


def _peek(path: Path) -> tuple[int | None, int | None]:
    """Return base time and rank from the first and last part of a file (rank else by name)."""
    first = last = b""
    try:
        for block in EventStream(path, Problems()).text():
            first = first or block[:_PROBE_BYTES]
            if _BASE_KEY.search(first) and _RANK_KEY.search(first):
                break
            last = (last + block)[-_PROBE_BYTES:]
    except (OSError, RecordingError):
        return None, None
    base = _BASE_KEY.search(first) or _BASE_KEY.search(last)
    rank = _RANK_KEY.search(first) or _RANK_KEY.search(last)
    if rank is not None:
        return (int(base[1]) if base else None), int(rank[1])
    named = _RANK_IN_NAME.search(path.name)
    return (int(base[1]) if base else None), int(named[1]) if named else None


def _unpacked_bytes(path: Path) -> int:
    """Size of a file when unpacked, as far as it says (gzip: its last four bytes)."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(2) != GZIP_MAGIC or size < 8:
            return size
        file.seek(-4, 2)
        return max(size, int.from_bytes(file.read(4), "little"))


def is_trace_file(path: Path) -> bool:
    """Whether a file is a trace in Chrome's JSON format, plain or gzip, by its content."""
    try:
        with path.open("rb") as file:
            data = file.read(_PROBE_BYTES)
    except OSError:
        return False
    if data.startswith(GZIP_MAGIC):
        try:
            data = zlib.decompressobj(31).decompress(data, _PROBE_BYTES)
        except zlib.error:
            return False
    return data.lstrip()[:1] in (b"{", b"[") and _LOOKS.search(data) is not None


def rank_files(folder: Path) -> list[RankFile]:
    """Return the trace files of a folder by rank; links and subfolders are not followed.

    Raises:
        RecordingError: there are too many files.
    """
    entries = sorted(folder.iterdir())
    if len(entries) > _MAX_FILES:
        raise RecordingError(
            f"{folder} has more than {_MAX_FILES} files; give a folder of the traces alone"
        )
    traces = [
        path for path in entries if not path.is_symlink() and path.is_file() and is_trace_file(path)
    ]
    files = [RankFile(path, *_peek(path)) for path in traces]
    return sorted(files, key=lambda file: (file.rank is None, file.rank or 0))
