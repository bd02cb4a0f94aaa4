"""CPU time spent in the interpreter, as a program's own Python does."""

from __future__ import annotations

import time


def compute(cpu_ns: int) -> None:
    """Run bytecode for that much CPU time of this thread; reads the clock every few µs only."""
    end_ns = time.thread_time_ns() + cpu_ns
    while time.thread_time_ns() < end_ns:
        for _ in range(200):
            pass
