"""Memory and external correlation, from real processes on the simulated device and as records."""

from __future__ import annotations

import numpy as np
import pytest

from probes.cupti import ring
from probes.cupti.external import KEPT_NS, ExternalNumbers
from probes.cupti.memory import memory_rows
from tests.probes.cupti.conftest import Collection
from tests.probes.cupti.programs import CONTEXT

MIB = 1 << 20
MEMORY = (
    CONTEXT
    + """
def pointer(): return ctypes.c_void_p()
def size(n): return ctypes.c_size_t(n)
device, managed, pinned, pooled = pointer(), pointer(), pointer(), pointer()
check(cuda.cuMemAlloc_v2(ctypes.byref(device), size(1 << 20)))
check(cuda.cuMemAllocManaged(ctypes.byref(managed), size(2 << 20), 1))
check(cuda.cuMemHostAlloc(ctypes.byref(pinned), size(3 << 20), 0))
check(cuda.cuMemAllocAsync(ctypes.byref(pooled), size(4 << 20), stream))
print(*(item.value for item in (device, managed, pinned, pooled)))
check(cuda.cuMemFreeAsync(pooled, stream))
check(cuda.cuMemFreeHost(pinned))
check(cuda.cuMemFree_v2(managed))
check(cuda.cuMemFree_v2(device))
wait()
"""
)


@pytest.mark.parametrize("major", (12, 13))
def test_each_allocation_and_release_is_a_row(collection: Collection, major: int) -> None:
    code = MEMORY.replace("libcudart.so.12", f"libcudart.so.{major}")
    collection.python(code)
    assert collection.status == 0, collection.out
    addresses = [int(word) for word in collection.out.split()]
    rows = collection.rows("memory_operation")
    names = ("kind", "memory_kind", "device", "size_bytes", "is_async")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("allocation", "device", 0, MIB, False),
        ("allocation", "managed", 0, 2 * MIB, False),
        ("allocation", "pinned", None, 3 * MIB, False),
        ("allocation", "device", 0, 4 * MIB, True),
        ("release", "device", 0, 4 * MIB, True),
        ("release", "pinned", None, 3 * MIB, False),
        ("release", "managed", 0, 2 * MIB, False),
        ("release", "device", 0, MIB, False),
    ]
    assert [row["address"] for row in rows] == addresses + addresses[::-1]
    pools = [row["pool_used_bytes"] for row in rows]
    assert pools == [None, None, None, 4 * MIB, None, None, None, None]
    assert {row["pid"] for row in rows} == {collection.process.pid}
    times = [row["time_ns"] for row in rows]
    assert times == sorted(times)


def test_activities_carry_the_number_that_the_program_gave(collection: Collection) -> None:
    collection.python(
        CONTEXT
        + """
launch()
time.sleep(0.2)
cupti = ctypes.CDLL("libcupti.so.12")
def push(kind, number):
    check(cupti.cuptiActivityPushExternalCorrelationId(kind, ctypes.c_uint64(number)))
def pop(kind): check(cupti.cuptiActivityPopExternalCorrelationId(kind, None))
push(3, 1001); push(4, 77)
launch(); launch()
push(3, 1002); launch(); pop(3)
pop(3); launch()
pop(4); launch()
wait()
assert cupti.cuptiActivityPopExternalCorrelationId(4, None) == 18
assert cupti.cuptiActivityPushExternalCorrelationId(9, 1) == 1
"""
    )
    assert collection.status == 0, collection.out
    rows = collection.table("gpu_activity").sort_by("start_ns").to_pylist()
    assert [row["external_id"] for row in rows] == [None, 1001, 1001, 1002, 77, None]
    assert not collection.rows("loss"), "a number has no times and is not invalid"


def numbered(*pairs: tuple[int, int, int]) -> np.ndarray:
    records = np.zeros(len(pairs), ring.RECORD)
    records["kind"] = ring.EXTERNAL
    for index, (correlation, number, kind) in enumerate(pairs):
        records["correlation"][index] = correlation
        records["bytes"][index], records["detail"][index] = number, kind
    return records


def test_numbers_are_of_the_newest_call_and_forgotten_in_time() -> None:
    numbers = ExternalNumbers()
    numbers.add(numbered((5, 50, 4), (5, 51, 3), (2, 20, 3)), 0)
    asked = np.array([1, 2, 5, 9])
    values, has = numbers.of(asked)
    assert has.tolist() == [False, True, True, False]
    assert values[has].tolist() == [20, 51], "of two kinds the first"
    numbers.add(numbered((2, 21, 3)), KEPT_NS // 2)
    assert numbers.of(asked)[0][1] == 21
    numbers.add(numbered(), KEPT_NS + 1)
    assert numbers.of(asked)[1].tolist() == [False, True, False, False]


def test_odd_records_of_memory_are_rows_or_nothing() -> None:
    records = np.zeros(4, ring.RECORD)
    records["kind"], records["start_ns"] = ring.MEMORY, (100, 100, 0, 100)
    records["detail"] = (1, 9, 1, 2)
    records["device"], records["stream"] = 0xFFFFFFFF, 0xFFFFFFFF
    records["source_kind"], records["bytes"] = 99, 1 << 63
    records["grid"][:, :2] = 0xFFFFFFFF
    records["block"][:, :2] = 0xFFFFFFFF
    batch = memory_rows(records, 7, lambda ordinal: ordinal)
    assert batch is not None
    first, last = batch.rows.to_pylist()
    assert (first["kind"], last["kind"]) == ("allocation", "release")
    assert first["address"] == (1 << 64) - 1
    for name in ("device", "stream", "memory_kind", "size_bytes"):
        assert first[name] is None
    assert memory_rows(records[2:3], 7, lambda ordinal: ordinal) is None
