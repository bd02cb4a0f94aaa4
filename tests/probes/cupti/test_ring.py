"""The ring's reader against what a program may have written into it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from probes.cupti.rendezvous import N_RECORDS, NAMES_BYTES, Rendezvous
from probes.cupti.ring import HEADER, RECORD, RingError, RingFile
from tests.probes.cupti.producing import build_producer, figures

N = 8
NAMES = 4096


def write_ring(path: Path, head: int = 0, **fields: int) -> None:
    header = np.zeros(1, HEADER)
    header["magic"] = 0x74726372696E6732
    header["record_bytes"] = RECORD.itemsize
    header["n_records"] = N
    header["names_bytes"] = NAMES
    header["head"] = head
    for name, value in fields.items():
        header[name] = value
    names = b"\0" * 8 + b"axpy\0" + b"x" * (NAMES - 13)
    records = np.zeros(N, RECORD)
    records["correlation"] = np.arange(N) + 1
    content = header.tobytes().ljust(4096, b"\0") + names + records.tobytes()
    path.write_bytes(content)


def set_head(path: Path, head: int) -> None:
    with path.open("r+b") as file:
        file.seek(128)
        file.write(head.to_bytes(8, "little"))


def test_records_come_in_order_also_around_the_end(tmp_path: Path) -> None:
    path = tmp_path / "ring-1-1"
    write_ring(path, head=6)
    ring = RingFile(path)
    assert ring.drain()["correlation"].tolist() == [1, 2, 3, 4, 5, 6]
    assert ring.header()["tail"] == 6, "the program sees the room"
    set_head(path, 11)
    assert ring.drain()["correlation"].tolist() == [7, 8, 1, 2, 3]
    assert len(ring.drain()) == 0
    ring.close(remove=True)
    assert not path.exists()


@pytest.mark.parametrize("head", (2**64 - 1, N + 1, 2**40))
def test_positions_that_cannot_be_are_counted_and_passed_over(tmp_path: Path, head: int) -> None:
    path = tmp_path / "ring-1-1"
    write_ring(path, head=head)
    ring = RingFile(path)
    assert len(ring.drain()) == 0
    assert ring.losses().ring == 1
    ring.close(remove=False)


@pytest.mark.parametrize(
    "fields",
    (
        {"magic": 1},
        {"record_bytes": 96},
        {"n_records": 0},
        {"n_records": 7},
        {"n_records": 1 << 30},
        {"names_bytes": 0xFFFFFFFF},
    ),
)
def test_a_header_of_another_kind_is_refused(tmp_path: Path, fields: dict[str, int]) -> None:
    path = tmp_path / "ring-1-1"
    write_ring(path, **fields)
    with pytest.raises(RingError):
        RingFile(path)


def test_a_short_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ring-1-1"
    path.write_bytes(b"short")
    with pytest.raises(RingError):
        RingFile(path)


def test_a_ring_that_is_cut_short_does_not_end_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "ring-1-1"
    write_ring(path, head=4)
    ring = RingFile(path)
    set_head(path, 6)
    for size in (4096 + NAMES + 2 * RECORD.itemsize, 200, 0):
        os.truncate(path, size)
        ring.drain()
        assert ring.name(8) in ("axpy", None)
        ring.losses()
    assert ring.n_records == 6
    path.write_bytes(b"")
    assert len(ring.drain()) == 0
    ring.close(remove=True)


def test_names_end_where_their_room_does(tmp_path: Path) -> None:
    path = tmp_path / "ring-1-1"
    write_ring(path)
    ring = RingFile(path)
    assert ring.name(8) == "axpy"
    assert ring.name(0) is None
    assert ring.name(NAMES + 100) is None
    assert ring.name(13) is None, "a name without an end is none"
    ring.close(remove=False)


def test_a_million_records_that_nobody_reads_take_no_more_memory(tmp_path: Path) -> None:
    meeting = Rendezvous.create(tmp_path / "meeting")
    meeting.close(remove=False)
    command = [str(build_producer(tmp_path)), str(meeting.directory), "1000000", "0"]
    line = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    told = figures(line)
    assert told["pushed"] == N_RECORDS
    assert told["lost"] == 1_000_000 - N_RECORDS
    ring_bytes = N_RECORDS * RECORD.itemsize + NAMES_BYTES
    assert told["peak_kb"] * 1024 < ring_bytes + 20_000_000
    (path,) = meeting.directory.glob("ring-*")
    ring = RingFile(path)
    rows = ring.drain()
    assert rows["correlation"].tolist() == list(range(1, N_RECORDS + 1))
    assert {ring.name(int(place)) for place in set(rows["name"].tolist())} == {
        "_Z4axpyPfS_i",
        "gemm_f16_128x64",
        "softmax",
    }
    assert ring.losses().ring == told["lost"]
    ring.close(remove=True)
