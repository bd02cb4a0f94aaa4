"""A heap that gives back what it does not use: a recorder runs beside what it observes."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
#: Larger blocks are mapped on their own, and unmapped when they are free: those of a segment. The
#: arrays of one drain are smaller, and their pages are used again.
LARGE_BYTES = 4 << 20
#: Heaps that all threads share; by default each thread gets one of its own that only grows.
HEAPS = 2


def make_heap_lean() -> None:
    """Set glibc's allocator so; without effect with another C library.

    Call it before any thread is started.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_ARENA_MAX, HEAPS)
    mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
    mallopt(_TRIM_THRESHOLD, LARGE_BYTES)
