"""Fewer points for a screen: every minimum and maximum is kept, and gaps stay gaps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: A pause longer than this many usual spacings is a gap: the line is broken there.
GAP_SPACINGS = 5


def thin(
    time_ns: Ints, value: Floats, start_ns: int, end_ns: int, n_buckets: int
) -> tuple[Ints, Floats]:
    """Return at most two points a bucket of equal time: its smallest and its largest value.

    Args:
        time_ns: ``(n,)`` times in ns, ascending.
        value: ``(n,)`` values; NaN is no sample.
        start_ns: Begin of the first bucket, ns.
        end_ns: End of the last bucket, ns.
        n_buckets: Number of buckets, at least 1.

    Returns:
        Times in ns and values, in order of time.
    """
    is_told = np.isfinite(value)
    time_ns, value = time_ns[is_told], value[is_told]
    if len(time_ns) <= 2 * n_buckets:
        return time_ns, value
    span = max(end_ns - start_ns, 1)
    share = np.clip((time_ns - start_ns) / span, 0.0, 1.0)
    bucket = np.minimum((share * n_buckets).astype(np.int64), n_buckets - 1)
    order = np.lexsort((value, bucket))
    is_first = np.empty(len(order), dtype=bool)
    is_first[0] = True
    is_first[1:] = bucket[order][1:] != bucket[order][:-1]
    first = np.flatnonzero(is_first)
    last = np.append(first[1:] - 1, len(order) - 1)
    kept = np.unique(np.concatenate((order[first], order[last])))
    return time_ns[kept], value[kept]


def break_gaps(time_ns: Ints, value: Floats, spacing_ns: int) -> tuple[Ints, Floats]:
    """Return the points with a NaN in the middle of each pause longer than five spacings."""
    at = np.flatnonzero(np.diff(time_ns) > GAP_SPACINGS * max(spacing_ns, 1))
    if len(at) == 0:
        return time_ns, value
    middle = time_ns[at] + (time_ns[at + 1] - time_ns[at]) // 2
    return np.insert(time_ns, at + 1, middle), np.insert(value, at + 1, np.nan)
