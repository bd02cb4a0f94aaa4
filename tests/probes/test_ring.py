"""The ring buffer's layout, drained from memory that looks like the kernel's."""

from __future__ import annotations

import mmap
import os
import struct

import numpy as np
import pytest

from probes.ring import HEADER_BYTES, Ring, RingError

SIZE = 4096
RECORD = np.dtype([("number", "<u8"), ("twice", "<u8")])
STRIDE = HEADER_BYTES + RECORD.itemsize
BUSY, DISCARD = 1 << 31, 1 << 30


class Kernel:
    """Writes records into a file laid out like a ring buffer (the data once more behind it)."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("ring")
        os.ftruncate(self.descriptor, 2 * mmap.PAGESIZE + 2 * SIZE)
        self.map = mmap.mmap(self.descriptor, 0)
        self.producer = 0
        self.number = 0

    @property
    def consumer(self) -> int:
        return struct.unpack_from("<Q", self.map, 0)[0]

    def put(self, flags: int = 0, length: int = RECORD.itemsize) -> int:
        """Write a record; where it begins."""
        assert self.producer + STRIDE - self.consumer <= SIZE, "full"
        data = struct.pack("<IIQQ", length | flags, 0, self.number, 2 * self.number)
        at = self.producer
        for offset, byte in enumerate(data):
            place = (at + offset) % SIZE
            self.map[2 * mmap.PAGESIZE + place] = byte
            self.map[2 * mmap.PAGESIZE + SIZE + place] = byte
        self.producer += STRIDE
        self.number += 1
        struct.pack_into("<Q", self.map, mmap.PAGESIZE, self.producer)
        return at

    def commit(self, at: int) -> None:
        for start in (2 * mmap.PAGESIZE, 2 * mmap.PAGESIZE + SIZE):
            struct.pack_into("<I", self.map, start + at % SIZE, RECORD.itemsize)


@pytest.fixture
def kernel():
    made = Kernel()
    yield made
    os.close(made.descriptor)


def test_records_come_in_order_over_many_rounds(kernel):
    ring = Ring(kernel.descriptor, SIZE, RECORD)
    seen = []
    for n in (1, 100, 0, 37, 170, 170, 99):
        for _ in range(n):
            kernel.put()
        records = ring.drain()
        assert len(records) == n and ring.is_complete
        assert kernel.consumer == kernel.producer
        seen.extend(records["number"].tolist())
        assert (records["twice"] == 2 * records["number"]).all()
    assert seen == list(range(577)) and ring.n_records == 577
    assert ring.peak_bytes == 170 * STRIDE
    ring.close()


def test_it_stops_at_a_record_that_is_being_written(kernel):
    ring = Ring(kernel.descriptor, SIZE, RECORD)
    kernel.put()
    late = kernel.put(BUSY)
    kernel.put()
    assert ring.drain()["number"].tolist() == [0] and not ring.is_complete
    assert ring.drain().size == 0 and not ring.is_complete
    kernel.commit(late)
    assert ring.drain()["number"].tolist() == [1, 2] and ring.is_complete


def test_discarded_records_are_left_out(kernel):
    ring = Ring(kernel.descriptor, SIZE, RECORD)
    kernel.put()
    kernel.put(DISCARD)
    kernel.put()
    assert ring.drain()["number"].tolist() == [0, 2]
    assert kernel.consumer == kernel.producer


def test_a_part_may_be_taken(kernel):
    ring = Ring(kernel.descriptor, SIZE, RECORD)
    for _ in range(5):
        kernel.put()
    assert ring.drain(2)["number"].tolist() == [0, 1] and not ring.is_complete
    assert ring.drain()["number"].tolist() == [2, 3, 4] and ring.is_complete


def test_a_record_of_another_size_is_an_error_and_stays(kernel):
    ring = Ring(kernel.descriptor, SIZE, RECORD)
    kernel.put(length=8)
    with pytest.raises(RingError, match="unexpected size"):
        ring.drain()
    assert kernel.consumer == 0


def test_drained_records_are_copies(kernel):
    ring = Ring(kernel.descriptor, SIZE, RECORD)
    kernel.put()
    records = ring.drain()
    for _ in range(170):
        kernel.put()
    assert records["number"].tolist() == [0]


def test_the_kernel_never_sees_a_position_go_back(kernel):
    ring = Ring(kernel.descriptor, SIZE, RECORD)
    stop_read, stop_write = os.pipe()
    child = os.fork()
    if not child:  # looks at the consumer's position as the kernel does, at any moment
        word = memoryview(kernel.map)[:8].cast("Q")
        os.set_blocking(stop_read, False)
        last, has_gone_back = 0, False
        while True:
            for _ in range(1000):
                now = word[0]
                has_gone_back |= now < last
                last = now
            try:
                os.read(stop_read, 1)
            except BlockingIOError:
                continue
            os._exit(int(has_gone_back))
    for _ in range(20_000):
        kernel.put()
        assert len(ring.drain()) == 1
    os.write(stop_write, b"x")
    _, status = os.waitpid(child, 0)
    ring.close()
    os.close(stop_read)
    os.close(stop_write)
    assert os.waitstatus_to_exitcode(status) == 0
