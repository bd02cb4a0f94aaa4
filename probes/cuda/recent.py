"""The calls of the last second, to find the one that something happened inside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from probes.cuda.pairing import Calls, OpenCalls

_I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Chunk:
    """Calls of one drain: those of one thread and depth lie in the order of their begins."""

    pid_tgid: npt.NDArray[np.uint64]
    start_ns: _I64
    end_ns: _I64
    depth: _I64
    call_id: _I64
    function: _I64
    first_ns: int
    last_ns: int


class RecentCalls:
    """Keeps calls that ended lately.

    Args:
        keep_ns: How long after their end.
    """

    def __init__(self, keep_ns: int = 1_000_000_000) -> None:
        self._keep_ns = keep_ns
        self._chunks: list[_Chunk] = []

    def add(self, calls: Calls) -> None:
        """Take over the calls that one drain closed; those without a return hold nothing."""
        has_return = calls.has_return
        if not has_return.any():
            return
        rows = slice(None) if has_return.all() else np.flatnonzero(has_return)
        chunk = _chunk(calls, rows)
        self._chunks.append(chunk)
        oldest = chunk.last_ns - self._keep_ns
        self._chunks = [one for one in self._chunks if one.last_ns >= oldest]

    def innermost(
        self, pid_tgid: npt.NDArray[np.uint64], at_ns: _I64, open_calls: OpenCalls
    ) -> tuple[_I64, _I64]:
        """Return number and function of the innermost call at some moments of threads; -1 for none.

        Args:
            pid_tgid: Thread of each moment.
            at_ns: The moments.
            open_calls: Calls that have not ended yet.
        """
        call_id = np.full(len(at_ns), -1, np.int64)
        function = np.full(len(at_ns), -1, np.int64)
        deepest = np.full(len(at_ns), -1, np.int64)
        if not len(at_ns):
            return call_id, function
        low, high = int(at_ns.min()), int(at_ns.max())
        chunks = [one for one in self._chunks if one.first_ns <= high and one.last_ns > low]
        if len(open_calls.entries):
            chunks.append(_open_chunk(open_calls))
        for chunk in chunks:
            for thread in np.unique(pid_tgid):
                mine = chunk.pid_tgid == thread
                if not mine.any():
                    continue
                rows = np.flatnonzero(pid_tgid == thread)
                for level in np.unique(chunk.depth[mine]):
                    calls = np.flatnonzero(mine & (chunk.depth == level))
                    last = np.searchsorted(chunk.start_ns[calls], at_ns[rows], side="right") - 1
                    is_inside = (last >= 0) & (chunk.end_ns[calls[last]] > at_ns[rows])
                    is_inside &= deepest[rows] < level
                    chosen, where = calls[last[is_inside]], rows[is_inside]
                    call_id[where] = chunk.call_id[chosen]
                    function[where] = chunk.function[chosen]
                    deepest[where] = level
        return call_id, function


def _chunk(calls: Calls, rows: _I64 | slice) -> _Chunk:
    start_ns = calls.start_ns[rows]
    end_ns = calls.end_ns[rows]
    return _Chunk(
        calls.pid_tgid[rows],
        start_ns,
        end_ns,
        calls.depth[rows],
        calls.call_id[rows],
        calls.function[rows],
        int(start_ns.min()),
        int(end_ns.max()),
    )


def _open_chunk(calls: OpenCalls) -> _Chunk:
    start_ns = calls.entries["time_ns"].astype(np.int64)
    order = np.argsort(start_ns, kind="stable")
    far = np.iinfo(np.int64).max
    return _Chunk(
        calls.entries["pid_tgid"][order],
        start_ns[order],
        np.full(len(order), far),
        calls.depth[order],
        calls.call_id[order],
        calls.entries["function"][order].astype(np.int64),
        int(start_ns.min()),
        far,
    )
