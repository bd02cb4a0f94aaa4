"""Bulk drain of a BPF ring buffer that holds records of one fixed size.

The kernel maps a consumer page, a producer page and the data twice in a row, so that records that
wrap around are contiguous. Records are viewed in place with NumPy; nothing is done per record.
"""

from __future__ import annotations

import mmap
import struct

import numpy as np
import numpy.typing as npt

_BUSY = 1 << 31
_DISCARD = 1 << 30
#: Bytes before each record: its length with two flags, and a page offset.
HEADER_BYTES = 8


class RingError(ValueError):
    """The ring buffer holds what it should not; the text says what."""


class Ring:
    """The consumer's end of one BPF ring buffer.

    Args:
        descriptor: File descriptor of the map; stays open and owned by the caller.
        size_bytes: Size of the data, a power of two of at least a page.
        record: Layout of one record; its size must be a multiple of 8.

    Raises:
        OSError: the map cannot be mapped.
    """

    def __init__(self, descriptor: int, size_bytes: int, record: np.dtype[np.void]) -> None:
        page = mmap.PAGESIZE
        self._size_bytes = size_bytes
        self._record_bytes = record.itemsize
        self._stride = HEADER_BYTES + record.itemsize
        self._record = record
        # Bytes without fields are copied several times as fast as a structure.
        bytes_ = f"V{record.itemsize}"
        self._layout = np.dtype([("length", "<u4"), ("page", "<u4"), ("record", bytes_)])
        self._consumer = mmap.mmap(descriptor, page)
        self._shared = mmap.mmap(
            descriptor, page + 2 * size_bytes, prot=mmap.PROT_READ, offset=page
        )
        self._data_offset = page
        #: Records taken so far.
        self.n_records = 0
        #: Most bytes that lay waiting at a drain.
        self.peak_bytes = 0
        #: Whether the last drain reached all that had been reserved when it began.
        self.is_complete = True

    @property
    def n_reserved(self) -> int:
        """Records that were ever put into the ring, the waiting ones included."""
        (producer,) = struct.unpack_from("<Q", self._shared, 0)
        return int(producer // self._stride)

    def drain(self, max_records: int | None = None) -> npt.NDArray[np.void]:
        """Return a copy of the records that are complete, oldest first, and free their room.

        Stops at a record that a CPU is still writing. Discarded records are left out.

        Args:
            max_records: Take at most so many.

        Raises:
            RingError: a record has another size; the positions are not moved.
        """
        (consumer,) = struct.unpack_from("<Q", self._consumer, 0)
        (producer,) = struct.unpack_from("<Q", self._shared, 0)
        waiting = producer - consumer
        self.peak_bytes = max(self.peak_bytes, waiting)
        n_waiting = waiting // self._stride
        if max_records is not None:
            n_waiting = min(n_waiting, max_records)
        start = self._data_offset + consumer % self._size_bytes
        view = np.frombuffer(self._shared, dtype=self._layout, count=n_waiting, offset=start)
        lengths = view["length"].copy()
        busy = np.flatnonzero(lengths & _BUSY)
        if busy.size:
            n_waiting = int(busy[0])
            view, lengths = view[:n_waiting], lengths[:n_waiting]
        self.is_complete = consumer + n_waiting * self._stride >= producer
        if np.any((lengths & (_DISCARD - 1)) != self._record_bytes):
            raise RingError(
                "a ring buffer holds a record of unexpected size; "
                "the BPF programs and this version of the tracer do not belong together"
            )
        is_kept = (lengths & _DISCARD) == 0
        copied = view["record"].copy() if is_kept.all() else view["record"][is_kept]
        records = copied.view(self._record)
        del view
        struct.pack_into("<Q", self._consumer, 0, consumer + n_waiting * self._stride)
        self.n_records += len(records)
        return records

    def close(self) -> None:
        """Unmap the buffer."""
        self._consumer.close()
        self._shared.close()
