"""Whose lock a thread sleeps on: the interpreter's of a real Python, or another one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probes.host import proc
from probes.scheduler.interpreter import RETRY_NS, InterpreterLocks
from tests.probes.traced import build_library, recording

#: Where a Python program's launches come from: the library is loaded by its path.
LAUNCHER = """
import ctypes, sys, threading, time
library = ctypes.CDLL(sys.argv[1])
def launch():
    library.cudaSetDevice(0)
def hold():
    while True:
        sum(range(10_000))
launch()
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[2] == "interpreter":
    threading.Thread(target=hold, daemon=True).start()
    wait = lambda: time.sleep(0.001)
else:
    lock = threading.Lock()
    lock.acquire()
    wait = lambda: lock.acquire(timeout=0.005)
end = time.monotonic() + 1.0
while time.monotonic() < end:
    launch()
    wait()
print("done", flush=True)
sys.stdin.readline()
"""


def test_the_interpreter_of_this_process_is_found() -> None:
    locks = InterpreterLocks()
    where = locks._find(os.getpid())
    if where is None:
        pytest.skip("this Python exports no _PyRuntime; run the tests with one that does")
    start, end = where
    maps = proc.read_maps(os.getpid())
    assert any(item.start <= start < item.end and "w" in item.permissions for item in maps)
    pid = os.getpid()
    assert locks.is_interpreter(pid, start, 0) is True
    assert locks.is_interpreter(pid, end - 4, 0) is True
    assert locks.is_interpreter(pid, end, 0) is False


def test_a_process_without_one_says_nothing_and_is_asked_again_later(tmp_path: Path) -> None:
    locks = InterpreterLocks(root=tmp_path)
    assert locks.is_interpreter(77, 4096, now_ns=0) is None
    looked = []
    locks._find = lambda pid: looked.append(pid) or (4096, 8192)  # type: ignore[assignment, func-returns-value]
    assert locks.is_interpreter(77, 4096, now_ns=RETRY_NS - 1) is None
    assert locks.is_interpreter(77, 4096, now_ns=RETRY_NS + 1) is True
    assert looked == [77]


def test_a_file_that_is_no_library_is_skipped(tmp_path: Path) -> None:
    folder = tmp_path / "5"
    (folder / "map_files").mkdir(parents=True)
    (folder / "maps").write_text("1000-2000 r-xp 00000000 08:01 12 /usr/bin/python3\n")
    (folder / "map_files" / "1000-2000").write_bytes(b"not an ELF file")
    assert InterpreterLocks(root=tmp_path).is_interpreter(5, 4096, now_ns=0) is None


@pytest.mark.root
@pytest.mark.parametrize("lock", ["interpreter", "other"])
def test_sleeps_of_a_launching_thread_name_the_lock(tmp_path: Path, lock: str) -> None:
    library = build_library(tmp_path)
    cpu = max(os.sched_getaffinity(0))
    process = subprocess.Popen(
        ["taskset", "-c", str(cpu), sys.executable, "-c", LAUNCHER, str(library), lock],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        with recording(process.pid, with_offcpu=True) as found:
            process.stdin.write("\n")
            process.stdin.flush()
            end = time.monotonic() + 1.6
            while time.monotonic() < end:
                time.sleep(0.05)
                found.drain()
    finally:
        process.kill()
        process.wait()
    rows = [row for row in found.rows("offcpu") if row["tid"] == process.pid]
    told = [row["lock"] for row in rows if row["state"] == "sleeping"]
    assert told.count(lock) >= 10
    assert told.count(lock) > 3 * sum(name not in (lock, None) for name in told)
    assert all(row["lock"] is None for row in rows if row["state"] == "running")
