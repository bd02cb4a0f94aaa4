from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from analysis.schema import THREAD_SECOND
from probes.host.threads import ThreadProbe
from probes.probe import ProbeError

Row = dict[str, object]


class Targets:
    def __init__(self, *pids: int) -> None:
        self.now = set(pids)

    def pids(self) -> set[int]:
        return self.now


def rows_of(probe: ThreadProbe) -> list[Row]:
    rows = []
    for batch in probe.drain(time.monotonic_ns()):
        assert batch.rows.schema.equals(THREAD_SECOND.arrow_schema())
        rows.extend(batch.rows.to_pylist())
    return rows


def number(row: Row, name: str) -> int:
    value = row[name]
    assert isinstance(value, int)
    return value


CHILD = """
import os, sys, threading, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def spin():
    while True: pass
def doze():
    while True: time.sleep(0.005)
for target in (spin, doze):
    threading.Thread(target=target, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


def test_running_waiting_and_sleeping_threads_add_up() -> None:
    """Two processes share a CPU with a busy thread each: each runs half and waits half."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        probe = ThreadProbe(
            Targets(*(child.pid for child in children)), hold_ns=0, interval_ns=10**8
        )
        probe.start()
        time.sleep(1.0)
        rows = rows_of(probe)
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert len(rows) == 6
    for row in rows:
        parts = [number(row, f"{part}_ns") for part in ("running", "waiting", "sleeping")]
        assert min(parts) >= 0
        assert sum(parts) == number(row, "duration_ns")
        assert number(row, "duration_ns") >= 10**9
    for child in children:
        mine = [row for row in rows if row["pid"] == child.pid]
        [main] = [row for row in mine if row["tid"] == child.pid]
        assert number(main, "sleeping_ns") > 0.9 * number(main, "duration_ns")
        assert main["n_voluntary_switches"] == 0
        assert main["state"] == "S"
        busiest = max(mine, key=lambda row: number(row, "running_ns"))
        assert 0.05 < number(busiest, "running_ns") / number(busiest, "duration_ns") < 0.75
        assert number(busiest, "waiting_ns") > 0.15 * number(busiest, "duration_ns")
        assert number(busiest, "n_involuntary_switches") > 0
        assert busiest["state"] == "R"
        dozer = max(
            (row for row in mine if row is not busiest), key=lambda r: number(r, "running_ns")
        )
        assert number(dozer, "n_voluntary_switches") > 5


def test_a_thread_that_appears_counts_from_its_birth_and_one_that_ends_vanishes() -> None:
    targets = Targets(os.getpid())
    probe = ThreadProbe(targets, hold_ns=0, interval_ns=10**7)
    probe.start()
    began = time.monotonic_ns()
    time.sleep(0.2)
    stop = threading.Event()
    ready = threading.Event()
    tid = 0

    def work() -> None:
        nonlocal tid
        tid = threading.get_native_id()
        end = time.thread_time_ns() + 50_000_000
        while time.thread_time_ns() < end:
            pass
        ready.set()
        stop.wait()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    time.sleep(0.1)
    [row] = [row for row in rows_of(probe) if row["tid"] == tid]
    assert number(row, "running_ns") >= 45_000_000
    assert number(row, "start_ns") > began + 100_000_000
    assert number(row, "n_voluntary_switches") >= 1
    stop.set()
    thread.join()
    time.sleep(0.05)
    assert tid not in [row["tid"] for row in rows_of(probe)]


def test_an_old_thread_first_seen_late_gets_no_row_for_its_past() -> None:
    targets = Targets()
    probe = ThreadProbe(targets, hold_ns=0, interval_ns=10**6)
    probe.start()
    time.sleep(0.03)
    targets.now = {os.getpid()}
    assert [row for row in rows_of(probe) if row["tid"] == os.getpid()] == []
    time.sleep(0.01)
    [row] = [row for row in rows_of(probe) if row["tid"] == os.getpid()]
    assert number(row, "duration_ns") < 10**9


def test_launchers_are_told_by_the_callable_and_their_migrations_counted() -> None:
    main = os.getpid()
    probe = ThreadProbe(
        Targets(main),
        hold_ns=0,
        interval_ns=10**6,
        is_launcher=lambda pid, tid: True if tid == main else None,
    )
    probe.start()
    time.sleep(0.02)
    for row in rows_of(probe):
        assert row["is_launcher"] is (True if row["tid"] == main else None)
        if row["tid"] == main and Path("/proc/self/sched").exists():
            assert number(row, "n_migrations") >= 0


def test_counters_that_go_back_are_another_thread(tmp_path: Path) -> None:
    task = tmp_path / "7/task/7"
    task.mkdir(parents=True)
    (tmp_path / "self").mkdir()
    (tmp_path / "self/schedstat").write_text("1 1 1\n")
    now = 0
    probe = ThreadProbe(Targets(7), root=tmp_path, hold_ns=0, interval_ns=1, clock=lambda: now)

    def look(text: str, at: int) -> list[Row]:
        nonlocal now
        now = at
        (task / "schedstat").write_text(text)
        return [row for batch in probe.drain(10**12 + at) for row in batch.rows.to_pylist()]

    (task / "schedstat").write_text("100 50 1\n")
    (task / "status").write_text("Name:\tx\n")
    probe.start()
    [row] = look("150 60 2\n", 100)
    assert [row[f"{part}_ns"] for part in ("running", "waiting", "sleeping")] == [50, 10, 40]
    assert row["name"] is None
    assert look("20 5 1\n", 200) == []
    [row] = look("5000 5 1\n", 300)
    assert [row[f"{part}_ns"] for part in ("running", "waiting", "sleeping")] == [100, 0, 0]
    assert look("nonsense", 400) == []


@pytest.mark.parametrize("is_launcher", [True, False, None])
def test_switches_of_a_thread_that_does_not_launch_are_told_once_a_second(
    tmp_path: Path, is_launcher: bool | None
) -> None:
    task = tmp_path / "7/task/7"
    task.mkdir(parents=True)
    (tmp_path / "self").mkdir()
    (tmp_path / "self/schedstat").write_text("1 1 1\n")
    tenth = 10**8
    now = 10**12
    probe = ThreadProbe(
        Targets(7),
        root=tmp_path,
        hold_ns=0,
        interval_ns=tenth,
        is_launcher=lambda _pid, _tid: is_launcher,
        clock=lambda: now,
    )

    def run(turn: int) -> None:
        (task / "schedstat").write_text(f"{turn * 1000} 0 {turn}\n")
        switches = f"voluntary_ctxt_switches:\t{3 * turn}\nnonvoluntary_ctxt_switches:\t{turn}\n"
        (task / "status").write_text(f"Name:\tx\nState:\tR (running)\n{switches}")

    run(0)
    probe.start()
    rows: list[Row] = []
    for turn in range(1, 21):
        now += tenth
        run(turn)
        rows += [row for batch in probe.drain(now) for row in batch.rows.to_pylist()]
    assert len(rows) == 20
    assert {row["name"] for row in rows} == {"x"}
    told = [row["n_voluntary_switches"] for row in rows]
    states = [row["state"] for row in rows]
    if is_launcher:
        assert (told, states) == ([3] * 20, ["R"] * 20)
    else:
        assert told == 2 * ([None] * 8 + [27]) + [None, None]
        assert states == 2 * ([None] * 8 + ["R"]) + [None, None]


def test_without_schedstat_it_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="CONFIG_SCHED_INFO"):
        ThreadProbe(Targets(), root=tmp_path).start()
