"""The allocator's settings, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from tracer.lean_heap import HEAPS

SCRIPT = """
import threading
from pathlib import Path
from tracer.lean_heap import make_heap_lean
make_heap_lean()
def resident_kb():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])
before = resident_kb()
blocks = [bytes([1]) * (6 << 20) for _ in range(6)]
full = resident_kb()
# A small block behind them would keep the top of an ordinary heap in place.
kept = bytes([1]) * 1000
del blocks
print(full - before, resident_kb() - before)
"""


def test_large_blocks_are_given_back_when_they_are_free():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    used_kb, left_kb = map(int, done.stdout.split())
    assert used_kb > 25_000
    assert left_kb < 5_000
    assert HEAPS >= 1


COLLECTOR = """
import gc
from tracer.lean_heap import NEW_OBJECTS, collect_garbage_seldom
before = gc.get_threshold()
undo = collect_garbage_seldom()
told = [gc.get_freeze_count() > 1000, gc.get_threshold() == (NEW_OBJECTS, *before[1:])]
undo()
print(*told, gc.get_freeze_count() == 0, gc.get_threshold() == before)
"""


def test_the_collector_leaves_libraries_alone_until_the_end_of_the_recording():
    done = subprocess.run(
        [sys.executable, "-c", COLLECTOR], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["True"] * 4
