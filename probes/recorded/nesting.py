"""Which call ran inside which other call of the same thread, from times alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_Ints = npt.NDArray[np.int64]

#: Deeper nesting than this is not real; it bounds the work on hostile input.
MAX_DEPTH = 64


def nest(start_ns: _Ints, end_ns: _Ints, thread: _Ints) -> tuple[_Ints, _Ints]:
    """Return for each call the index of the call around it (-1 for none) and its depth.

    A call is inside the latest earlier call of its thread that had not ended when it began.
    Calls that begin together are ordered by end, the longer one outside, then by position.

    Args:
        start_ns: Begin of each call.
        end_ns: End of each call.
        thread: A number per thread; equal numbers are one thread.

    Note:
        Vectorised by pointer jumping: a candidate that ended too early is replaced by its own
        candidate, which halves the distance, so the passes grow with the logarithm of the rows.
    """
    n = len(start_ns)
    if n == 0:
        empty = np.empty(0, np.int64)
        return empty, empty.copy()
    order = np.lexsort((np.arange(n), -end_ns, start_ns, thread))
    start, end, group = start_ns[order], end_ns[order], thread[order]
    candidate = np.arange(-1, n - 1)
    candidate[np.flatnonzero(np.r_[True, group[1:] != group[:-1]])] = -1
    open_rows = np.flatnonzero(candidate >= 0)
    while len(open_rows):
        ended = end[candidate[open_rows]] <= start[open_rows]
        open_rows = open_rows[ended]
        candidate[open_rows] = candidate[candidate[open_rows]]
        open_rows = open_rows[candidate[open_rows] >= 0]
    depth = np.zeros(n, np.int64)
    inside = np.flatnonzero(candidate >= 0)
    for _ in range(MAX_DEPTH):
        deeper = depth[candidate[inside]] + 1
        if np.array_equal(deeper, depth[inside]):
            break
        depth[inside] = deeper
    parent = np.full(n, -1, np.int64)
    parent[order] = np.where(candidate >= 0, order[candidate], -1)
    unsorted_depth = np.empty(n, np.int64)
    unsorted_depth[order] = depth
    return parent, unsorted_depth
