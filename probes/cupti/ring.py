"""Reads the ring of one process in bulk. What it holds was written by the program: nothing in it is
trusted further than its own rows. It is read by calls and not mapped: of a mapped file that the
program cuts short, a look would end the recorder.
"""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

#: ``struct ring_header`` and ``struct record`` of native/shared.h.
HEADER = np.dtype(
    {
        "names": [
            "magic", "record_bytes", "n_records", "names_bytes", "pid", "start_ticks",
            "attached_ns", "is_early", "state", "site", "error", "cupti_version", "on_ns", "off_ns",
            "helper_ns", "head", "tail", "lost_ring", "lost_cupti", "lost_names", "invalid",
            "names_used", "lost_ranges", "n_forked", "n_devices", "uuid", "library",
        ],
        "formats": [
            "<u8", "<u4", "<u4", "<u4", "<i4", "<u8",
            "<u8", "<u4", "<u4", "<u4", "<u4", "<u4", "<u8", "<u8",
            "<u8", "<u8", "<u8", "<u8", "<u8", "<u8", "<u8",
            "<u8", "<u8", "<u4", "<u4", ("u1", (16, 16)), "S1024",
        ],
        "offsets": [
            0, 8, 12, 16, 20, 24,
            32, 40, 48, 52, 56, 60, 64, 72,
            80, 128, 192, 256, 264, 272, 280,
            288, 296, 304, 312, 320, 576,
        ],
        "itemsize": 1600,
    }
)  # fmt: skip
RECORD = np.dtype(
    [
        ("start_ns", "<u8"),
        ("end_ns", "<u8"),
        ("bytes", "<u8"),
        ("kind", "<u4"),
        ("correlation", "<u4"),
        ("device", "<u4"),
        ("context", "<u4"),
        ("stream", "<u4"),
        ("name", "<u4"),
        ("grid", "<u4", (3,)),
        ("block", "<u4", (3,)),
        ("graph", "<u4"),
        ("thread", "<u4"),
        ("detail", "<u4"),
        ("source_kind", "u1"),
        ("target_kind", "u1"),
        ("pad", "<u2"),
    ]
)
KERNEL, COPY, SET, GRAPH, CALL, SYNC, OVERHEAD, MEMORY, EXTERNAL, RANGE, RANGE_TEXT = range(1, 12)
#: Where the text of a range begins in its records, and its bytes in each.
TEXT_OFFSET, TEXT_BYTES = 32, 44
OFF, ON, FAILED, ENDED = range(4)

_MAGIC = 0x74726372696E6732
_HEADER_BYTES = 4096
_TAIL_PLACE = 192
#: Longest name, with its end.
_MAX_NAME = 4096
_MAX_RECORDS = 1 << 20
#: More cannot have been lost.
_MAX_LOST = 1 << 53
_MAX_NAMES_BYTES = 64 << 20


#: Largest thread id that Linux gives.
_MAX_THREAD = 1 << 22


def threads(
    records: npt.NDArray[np.void],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the thread of each record, and whether it tells one that can be."""
    thread = records["thread"].astype(np.int64)
    return thread, (thread > 0) & (thread <= _MAX_THREAD)


@dataclass(frozen=True)
class Losses:
    """Records that were lost so far, by where."""

    ring: int = 0
    cupti: int = 0
    names: int = 0
    invalid: int = 0
    ranges: int = 0

    def since(self, before: Losses) -> Losses:
        """Return what was lost since then."""
        return Losses(
            self.ring - before.ring,
            self.cupti - before.cupti,
            self.names - before.names,
            self.invalid - before.invalid,
            self.ranges - before.ranges,
        )


class RingError(ValueError):
    """A file is not a ring of this version; the text says what is wrong."""


class RingFile:
    """The consumer's end of one ring.

    Args:
        path: The file.

    Raises:
        RingError: it is none.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            size = os.fstat(descriptor).st_size
            if size < _HEADER_BYTES:
                raise RingError("it is too short")
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        header = self.header()
        self._n_records = int(header["n_records"])
        self._names_bytes = int(header["names_bytes"])
        whole = _HEADER_BYTES + self._names_bytes + self._n_records * RECORD.itemsize
        if (
            header["magic"] != _MAGIC
            or header["record_bytes"] != RECORD.itemsize
            or not 0 < self._n_records <= _MAX_RECORDS
            or self._n_records & (self._n_records - 1)
            or self._names_bytes > _MAX_NAMES_BYTES
            or whole > size
        ):
            os.close(descriptor)
            raise RingError("its header is not of this version")
        self._tail = int(header["tail"])
        self._names: dict[int, str] = {}
        #: Records taken so far, and those that the program overwrote or never wrote.
        self.n_records = 0
        self.n_bad = 0

    @property
    def n_drained(self) -> int:
        """Position up to which the records were taken."""
        return self._tail

    def header(self) -> np.void:
        """Return a copy of the header."""
        header: np.void = np.frombuffer(self._bytes(HEADER.itemsize, 0), HEADER)[0]
        return header

    def skip(self) -> None:
        """Pass over what lies there: it is of an earlier recording."""
        self._pass(int(self.header()["head"]))

    def drain(self, max_records: int = _MAX_RECORDS) -> npt.NDArray[np.void]:
        """Return a copy of the records that were added since the last call, oldest first."""
        head = int(self.header()["head"])
        n = head - self._tail
        if not 0 <= n <= self._n_records:
            # The program has spoiled its own positions: what lies there cannot be told apart.
            self.n_bad += 1
            self._tail, n = head, 0
        n = min(n, max_records)
        first = self._tail & (self._n_records - 1)
        n_first = min(n, self._n_records - first)
        records = np.zeros(n, RECORD)
        self._read_records(records[:n_first], first)
        self._read_records(records[n_first:], 0)
        self._pass(self._tail + n)
        self.n_records += n
        return records

    def name(self, offset: int) -> str | None:
        """Return a kernel's name by its place, None where there is none."""
        if not 0 < offset < self._names_bytes:
            return None
        if offset not in self._names:
            n_bytes = min(_MAX_NAME, self._names_bytes - offset)
            text, end, _ = self._bytes(n_bytes, _HEADER_BYTES + offset).partition(b"\0")
            self._names[offset] = text.decode("utf-8", "replace") if end else ""
        return self._names[offset] or None

    def losses(self) -> Losses:
        """Return what was lost so far."""
        header = self.header()
        names = ("lost_ring", "lost_cupti", "lost_names", "invalid", "lost_ranges")
        lost, *others = (min(int(header[name]), _MAX_LOST) for name in names)
        return Losses(lost + self.n_bad, *others)

    def close(self, *, remove: bool) -> None:
        """Let go of the file; with ``remove`` delete it."""
        os.close(self._descriptor)
        if remove:
            self.path.unlink(missing_ok=True)

    def _bytes(self, n_bytes: int, place: int) -> bytes:
        """Bytes of the file; zeros where it was cut short."""
        return os.pread(self._descriptor, n_bytes, place).ljust(n_bytes, b"\0")

    def _read_records(self, records: npt.NDArray[np.void], first: int) -> None:
        """Fill in records from a position; those stay zero where the file was cut short."""
        if len(records):
            place = _HEADER_BYTES + self._names_bytes + first * RECORD.itemsize
            os.preadv(self._descriptor, [records.view(np.uint8).data], place)

    def _pass(self, tail: int) -> None:
        """Give the program the room up to a position."""
        self._tail = tail
        with contextlib.suppress(OSError):  # the file was cut short, and its disk is full
            os.pwrite(self._descriptor, struct.pack("<Q", tail), _TAIL_PLACE)
