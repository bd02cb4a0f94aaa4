"""A program that spoils its own ring: whatever lies there, the recorder goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from probes.cupti import ring
from probes.cupti.activities import FUTURE_NS, ActivityTables
from probes.cupti.process import CollectedProcess
from probes.cupti.ring import HEADER, RECORD
from probes.probe import Batch
from tests.probes.cupti.test_ring import NAMES, N, write_ring

NOW = 10**12
LAST = NOW + FUTURE_NS
#: Fields of the header that a reader has to trust, or that are looked at only once.
_FIXED = ("magic", "record_bytes", "n_records", "names_bytes", "tail", "uuid", "library")


def spoiled(rng: np.random.Generator, n: int) -> np.ndarray:
    """Records of random bytes, some of them at times that can be."""
    raw = rng.integers(0, 256, (n, RECORD.itemsize), dtype=np.uint8)
    raw[rng.random(raw.shape) < rng.choice((0.0, 0.7))] = 0
    records = np.ascontiguousarray(raw).view(RECORD)[:, 0].copy()
    records["kind"] = rng.integers(0, ring.RANGE_TEXT + 2, n)
    is_sane = rng.random(n) < 0.5
    records["start_ns"][is_sane] = NOW - rng.integers(0, 10**9, is_sane.sum())
    records["end_ns"][is_sane] = records["start_ns"][is_sane] + np.uint64(1000)
    records["correlation"] %= 20
    return records


def spoiled_header(rng: np.random.Generator, turn: int) -> bytes:
    header = np.zeros(1, HEADER)
    write = {"magic": 0x74726372696E6732, "record_bytes": RECORD.itemsize}
    for name, value in (write | {"n_records": N, "names_bytes": NAMES}).items():
        header[name] = value
    for name in HEADER.names or ():
        if name not in _FIXED:
            width = header.dtype[name].itemsize
            values = (0, turn, NOW - turn, int(rng.integers(0, 2**62)) * 4 + 3)
            value = values[rng.integers(0, len(values))] % 256 ** (width - (name == "pid"))
            header[name] = value % 2**31 if name == "pid" else value
    if rng.random() < 0.8:
        header["head"] = N * turn + rng.integers(0, N + 1)
    return header.tobytes()


def check(batches: list[Batch]) -> None:
    """No row is later than now can be, or of a thread that cannot be."""
    for batch in batches:
        for row in batch.rows.to_pylist():
            begin = row.get("start_ns", row.get("time_ns"))
            assert 0 <= begin <= LAST
            assert 0 <= (row.get("duration_ns") or 0) <= LAST
            assert row.get("tid") is None or 0 < row["tid"] <= 1 << 22


@pytest.mark.parametrize("seed", range(40))
def test_records_of_random_bytes_become_sane_rows_or_none(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tables = ActivityTables(1, lambda _: "k")
    for is_last in (False, True):
        check(list(tables.add(spoiled(rng, 60), NOW, is_last=is_last)))
        for is_all in (False, True):
            unanswered = tables.unanswered_ns(is_all=is_all)
            assert unanswered is None or isinstance(unanswered, int)


@pytest.mark.parametrize("seed", range(40))
def test_a_header_of_random_numbers_claims_no_time_that_has_not_been(
    seed: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    path = tmp_path / "ring-1-1"
    write_ring(path)
    process = CollectedProcess(path, 1, NOW - 10**9, NOW - 2 * 10**9)
    for turn in range(5):
        with path.open("r+b") as file:
            file.write(spoiled_header(rng, turn))
            file.seek(4096 + NAMES)
            file.write(spoiled(rng, N).tobytes())
        batches = list(process.drain(NOW, is_last=turn == 4))
        check(batches)
        for batch in batches:
            for row in batch.rows.to_pylist():
                if batch.table.name == "event":
                    assert row["time_ns"] + row["duration_ns"] <= NOW
        assert process.losses().ring >= 0
        assert process.facts()["pid"] == 1
