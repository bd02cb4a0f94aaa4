"""Bulk drain of a BPF ring buffer that holds records of one fixed size.

The kernel maps a consumer page, a producer page and the data twice in a row, so that records that
wrap around are contiguous. Of the second time only the first page is mapped here, which is all that
one record needs: what is mapped counts as memory of this process. Records are viewed in place with
NumPy; nothing is done per record.
"""

from __future__ import annotations

import mmap

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
        record: Layout of one record; its size must be a multiple of 8, and at most a page.

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
            descriptor, 2 * page + size_bytes, prot=mmap.PROT_READ, offset=page
        )
        self._data_offset = page
        # Written as a whole word: the kernel looks at any moment, and struct.pack_into makes it 0
        # first, which the kernel takes for a ring that is full.
        self._consumed = memoryview(self._consumer)[:8].cast("Q")
        self._produced = memoryview(self._shared)[:8].cast("Q")
        #: Records taken so far.
        self.n_records = 0
        #: Most bytes that lay waiting at a drain.
        self.peak_bytes = 0
        #: Whether the last drain reached all that had been reserved when it began.
        self.is_complete = True

    @property
    def n_reserved(self) -> int:
        """Records that were ever put into the ring, the waiting ones included."""
        return self._produced[0] // self._stride

    @property
    def n_waiting(self) -> int:
        """Records that lie in the ring now."""
        return self.n_reserved - self._consumed[0] // self._stride

    @property
    def n_room(self) -> int:
        """Records that fit in the ring."""
        return self._size_bytes // self._stride

    def drain(self, max_records: int | None = None) -> npt.NDArray[np.void]:
        """Return a copy of the records that are complete, oldest first, and free their room.

        Stops at a record that a CPU is still writing. Discarded records are left out.

        Args:
            max_records: Take at most so many.

        Raises:
            RingError: a record has another size; the positions are not moved.
        """
        consumer, producer = self._consumed[0], self._produced[0]
        waiting = producer - consumer
        self.peak_bytes = max(self.peak_bytes, waiting)
        n_waiting = waiting // self._stride
        if max_records is not None:
            n_waiting = min(n_waiting, max_records)
        start = consumer % self._size_bytes
        n_first = min(n_waiting, -(-(self._size_bytes - start) // self._stride))
        copied = np.empty(n_waiting, self._layout["record"])
        n_taken, n_kept = self._copy(start, n_first, copied)
        if n_taken == n_first < n_waiting:
            start += n_first * self._stride - self._size_bytes
            n_more, n_kept_more = self._copy(start, n_waiting - n_first, copied[n_kept:])
            n_taken, n_kept = n_taken + n_more, n_kept + n_kept_more
        self.is_complete = consumer + n_taken * self._stride >= producer
        self._consumed[0] = consumer + n_taken * self._stride
        self.n_records += n_kept
        return copied[:n_kept].view(self._record)

    def _copy(self, start: int, n: int, target: npt.NDArray[np.void]) -> tuple[int, int]:
        """Copy the complete ones of records that lie in a row; return how many those are, and how
        many of them were kept.
        """
        view = np.frombuffer(
            self._shared, dtype=self._layout, count=n, offset=self._data_offset + start
        )
        lengths = view["length"].copy()
        if (lengths == self._record_bytes).all():
            target[:n] = view["record"]
            return n, n
        busy = np.flatnonzero(lengths & _BUSY)
        if busy.size:
            n = int(busy[0])
            view, lengths = view[:n], lengths[:n]
        if np.any((lengths & (_DISCARD - 1)) != self._record_bytes):
            raise RingError(
                "a ring buffer holds a record of unexpected size; "
                "the BPF programs and this version of the tracer do not belong together"
            )
        kept = view["record"][(lengths & _DISCARD) == 0]
        target[: len(kept)] = kept
        return n, len(kept)

    def close(self) -> None:
        """Unmap the buffer."""
        self._consumed.release()
        self._produced.release()
        self._consumer.close()
        self._shared.close()
