"""A heap that gives back what it does not use, and is searched for garbage seldom: a recorder runs
beside what it observes.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
#: Larger blocks are mapped on their own, and unmapped when they are free: those of a segment. The
#: arrays of one drain are smaller, and their pages are used again.
LARGE_BYTES = 4 << 20
#: Heaps that all threads share; by default each thread gets one of its own that only grows.
HEAPS = 2
#: Blocks up to this come from the heap of an import (the most that glibc allows).
KEPT_BLOCK_BYTES = 32 << 20
#: New objects after which the collector looks at them (700 by default).
NEW_OBJECTS = 20_000


def make_heap_lean() -> None:
    """Set glibc's allocator so; without effect with another C library.

    Call it before any thread is started.
    """
    _set(HEAPS, LARGE_BYTES, LARGE_BYTES)


def make_heap_steady() -> None:
    """Let all threads share one heap, which keeps what is freed: an import needs the same few MB
    again for every block, and to get new pages from the kernel costs as much as to fill them.
    """
    _set(1, KEPT_BLOCK_BYTES, 2 * KEPT_BLOCK_BYTES)


def _set(n_heaps: int, largest_bytes: int, trim_bytes: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_ARENA_MAX, n_heaps)
    mallopt(_MMAP_THRESHOLD, largest_bytes)
    mallopt(_TRIM_THRESHOLD, trim_bytes)


def collect_garbage_seldom() -> Callable[[], None]:
    """Let Python's collector leave alone what there is now, and look at the rest seldom; return
    what undoes it.

    A recorder makes rows, which die without the collector. By default it goes through all objects
    of all libraries now and then, for 20 to 40 ms each time.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *before[1:])

    def undo() -> None:
        gc.set_threshold(*before)
        gc.unfreeze()

    return undo
