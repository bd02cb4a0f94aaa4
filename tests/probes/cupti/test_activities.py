"""Records to rows: the join with calls, what is cut off, names, and what a window can know."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from probes.cupti import ring
from probes.cupti.activities import CALL_WAIT_NS, ActivityTables
from probes.cupti.coverage import OPENING_NS, Coverage, Opening

NOW = 10_000_000_000


def records(*rows: dict[str, object]) -> np.ndarray:
    found = np.zeros(len(rows), ring.RECORD)
    for index, row in enumerate(rows):
        for name, value in row.items():
            found[name][index] = value
    return found


def kernel(start: int, end: int, correlation: int, **more: object) -> dict[str, object]:
    return {
        "kind": ring.KERNEL,
        "start_ns": start,
        "end_ns": end,
        "correlation": correlation,
    } | more


def call(start: int, end: int, correlation: int, thread: int = 11) -> dict[str, object]:
    times = {"start_ns": start, "end_ns": end}
    return {"kind": ring.CALL, "correlation": correlation, "thread": thread} | times


def add(tables: ActivityTables, *rows: dict[str, object], now: int = NOW, last: bool = False):
    batches = list(tables.add(records(*rows), now, is_last=last))
    found = [b.rows for b in batches if b.table.name == "gpu_activity"]
    return pa.Table.from_batches(found).to_pylist() if found else []


def test_the_outermost_of_the_calls_with_one_id_is_the_one_that_submitted() -> None:
    tables = ActivityTables(7, lambda _: None)
    runtime, driver = call(100, 400, 1), call(150, 300, 1)
    (row,) = add(tables, driver, kernel(500, 600, 1), runtime)
    assert (row["call_start_ns"], row["call_duration_ns"], row["tid"]) == (100, 300, 11)


def test_an_outer_call_that_comes_later_takes_the_place_of_the_inner() -> None:
    tables = ActivityTables(7, lambda _: None)
    (row,) = add(tables, call(NOW - 600, NOW - 500, 1), kernel(NOW - 400, NOW - 300, 1))
    assert row["call_start_ns"] == NOW - 600
    assert add(tables, call(NOW - 700, NOW - 450, 1)) == []
    (node,) = add(tables, kernel(NOW - 200, NOW - 100, 1))
    assert node["call_start_ns"] == NOW - 700
    assert tables.unanswered_ns(is_all=False) is None, "it has its activity already"


def test_an_activity_waits_for_its_call_but_not_for_ever() -> None:
    tables = ActivityTables(7, lambda _: None)
    run = NOW - 1000, NOW - 500
    assert add(tables, kernel(*run, 1), kernel(*run, 2)) == []
    (joined,) = add(tables, call(NOW - 2000, NOW - 1900, 1))
    assert joined["call_start_ns"] == NOW - 2000
    (alone,) = add(tables, now=NOW + CALL_WAIT_NS)
    assert alone["call_start_ns"] is None
    assert tables.n_unjoined == 1


def test_the_nodes_of_a_graph_share_one_call() -> None:
    tables = ActivityTables(7, lambda _: None)
    launched = call(NOW - 5000, NOW - 4900, 9)
    rows = add(tables, launched, kernel(NOW - 4000, NOW - 3000, 9, graph=3))
    rows += add(tables, kernel(NOW - 2000, NOW - 1000, 9, graph=3))
    assert [row["call_start_ns"] for row in rows] == [NOW - 5000] * 2
    assert [row["graph_id"] for row in rows] == [3, 3]


def test_what_was_cut_off_leaves_its_call_unanswered() -> None:
    tables = ActivityTables(7, lambda _: None)
    done, running = call(NOW - 900, NOW - 800, 1), call(NOW - 700, NOW - 600, 2)
    captured = call(NOW - 950, NOW - 940, 3)
    rows = add(tables, captured, done, kernel(NOW - 500, NOW - 400, 1), running, kernel(0, 0, 2))
    assert len(rows) == 1
    assert tables.n_invalid == 1
    assert tables.unanswered_ns(is_all=True) == NOW - 700
    assert tables.unanswered_ns(is_all=False) == NOW - 950


def test_times_that_run_backwards_are_no_activity() -> None:
    tables = ActivityTables(7, lambda _: None)
    assert add(tables, kernel(500, 400, 1), last=True) == []
    assert tables.n_invalid == 1


def test_shapes_and_devices_that_cannot_be_are_left_out() -> None:
    tables = ActivityTables(7, lambda _: None, devices=[3, -1])
    shape = {"grid": (0xFFFFFFFF, 1, 1), "block": (64, 1, 1)}
    rows = add(
        tables,
        kernel(100, 200, 1, device=0, **shape),
        kernel(200, 300, 2, device=1, grid=(4, 2, 1), block=(64, 1, 1)),
        kernel(300, 400, 3, device=0xFFFFFFFF),
        last=True,
    )
    assert [row["device"] for row in rows] == [3, 1, 63]
    assert rows[0]["grid_x"] is None
    assert (rows[1]["grid_x"], rows[1]["block_x"]) == (4, 64)


def test_collectives_are_known_by_their_names() -> None:
    names = {8: "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 64: "_Z4axpyPf"}
    tables = ActivityTables(7, names.get)
    rows = add(tables, kernel(1, 2, 1, name=8), kernel(3, 4, 2, name=64), last=True)
    assert [(row["is_collective"], row["name"]) for row in rows] == [
        (True, names[8]),
        (False, "axpy(float*)"),
    ]


def test_coverage_reaches_to_what_is_known_and_never_back() -> None:
    coverage = Coverage(7)
    coverage.advance(500, None)
    assert coverage.take(1) is None, "nothing began"
    coverage.begin(1000)
    coverage.advance(3000, 2500)
    assert coverage.take(1) == (1000, 2500)
    coverage.advance(2000, None)
    assert coverage.take(1) is None
    coverage.advance(3000, None)
    assert coverage.take(1) == (2500, 3000)


def test_a_window_knows_all_once_earlier_work_has_drained() -> None:
    opening = Opening(1000)
    opening.see(records(kernel(1500, 1600, 1, stream=1), kernel(4000, 4100, 2, stream=2)))
    assert opening.begin_ns(1000 + OPENING_NS - 1, is_over=False) is None
    assert opening.begin_ns(1000 + OPENING_NS, is_over=False) == 4000
    synced = {"kind": ring.SYNC, "detail": 4, "start_ns": 1100, "end_ns": 2000}
    opening.see(records(synced))
    assert opening.begin_ns(1000 + OPENING_NS, is_over=False) == 2000
    assert Opening(1000).begin_ns(10 * OPENING_NS, is_over=True) is None, "nothing shows it"
