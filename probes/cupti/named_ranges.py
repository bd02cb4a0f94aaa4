"""From the ranges that a program names with NVTX to rows of ``annotation``."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis.schema import ANNOTATION
from probes.cupti import ring
from probes.probe import Batch, make_batch
from probes.recorded.activity_names import RANGE_COUNTERS, range_category

_COUNTERS = re.compile(RANGE_COUNTERS)
#: What a range without a text is called.
UNNAMED = "unnamed range"


def range_rows(records: npt.NDArray[np.void], pid: int) -> Batch | None:
    """Return the rows of the ranges among records, None without any.

    Args:
        records: As drained from the ring, in their order: a long name goes on in the next record.
        pid: The process that named them.
    """
    at = np.flatnonzero(records["kind"] == ring.RANGE)
    at = at[(records["start_ns"][at] > 0) & (records["end_ns"][at] >= records["start_ns"][at])]
    if not len(at):
        return None
    found = records[at]
    words, code = _texts(records, at)
    start = found["start_ns"].astype(np.int64)
    thread, has_thread = ring.threads(found)
    columns: dict[str, Any] = {
        "start_ns": start,
        "duration_ns": found["end_ns"].astype(np.int64) - start,
        "pid": np.full(len(found), pid),
        "tid": pa.array(thread, mask=~has_thread),
        "category": pa.array([range_category(word) for word in words], pa.string()).take(code),
        "name": pa.array(words, pa.string()).take(code),
    }
    return make_batch(ANNOTATION, columns)


def _texts(
    records: npt.NDArray[np.void], at: npt.NDArray[np.int64]
) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The distinct names of the ranges at some places, and the name of each."""
    raw = np.ascontiguousarray(records).view(np.uint8).reshape(len(records), -1)
    text = raw[:, ring.TEXT_OFFSET : ring.TEXT_OFFSET + ring.TEXT_BYTES]
    whole = np.zeros((len(at), 2 * ring.TEXT_BYTES), np.uint8)
    whole[:, : ring.TEXT_BYTES] = text[at]
    following = np.minimum(at + 1, len(records) - 1)
    goes_on = (at + 1 < len(records)) & (records["kind"][following] == ring.RANGE_TEXT)
    whole[goes_on, ring.TEXT_BYTES :] = text[following[goes_on]]
    distinct, code = np.unique(whole.view(f"S{2 * ring.TEXT_BYTES}")[:, 0], return_inverse=True)
    words = [
        _COUNTERS.sub("", name.split(b"\0")[0].decode("utf-8", "replace")) or UNNAMED
        for name in distinct.tolist()
    ]
    return words, code.astype(np.int64)
