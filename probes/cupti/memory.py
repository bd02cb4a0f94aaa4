"""From CUPTI's records of memory to rows of ``memory_operation``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from analysis.schema import MEMORY_OPERATION
from probes.cupti import ring
from probes.probe import Batch, make_batch

_I64 = npt.NDArray[np.int64]
_OPERATIONS = {1: "allocation", 2: "release"}
_KINDS = {
    1: "pageable",
    2: "pinned",
    3: "device",
    4: "array",
    5: "managed",
    6: "device_static",
    7: "managed_static",
}
_HOST_KINDS = (1, 2)
#: What CUPTI gives where there is no device or stream.
_NONE = 0xFFFFFFFF
_POSITIVE = (1 << 63) - 1


def memory_rows(
    records: npt.NDArray[np.void], pid: int, devices_of: Callable[[_I64], _I64]
) -> Batch | None:
    """Return the rows of the memory records among others, None without any.

    Args:
        records: As drained from the ring.
        pid: The process.
        devices_of: Returns the GPU index of each CUDA ordinal.
    """
    is_known = (records["kind"] == ring.MEMORY) & np.isin(records["detail"], list(_OPERATIONS))
    found = records[is_known & (records["start_ns"] > 0)]
    if not len(found):
        return None
    kind, size = found["source_kind"], found["bytes"].astype(np.int64)
    device, stream = found["device"].astype(np.int64), found["stream"].astype(np.uint64)
    pool = _wide(found["block"])
    columns: dict[str, Any] = {
        "time_ns": found["start_ns"].astype(np.int64),
        "pid": np.full(len(found), pid),
        "device": pa.array(devices_of(device), mask=np.isin(kind, _HOST_KINDS) | (device == _NONE)),
        "stream": pa.array(stream, mask=stream == _NONE),
        "kind": [_OPERATIONS[code] for code in found["detail"].tolist()],
        "memory_kind": [_KINDS.get(code) for code in kind.tolist()],
        "address": _wide(found["grid"]),
        "size_bytes": pa.array(size, mask=size <= 0),
        "is_async": found["target_kind"] != 0,
        "pool_used_bytes": pa.array(np.minimum(pool, _POSITIVE).astype(np.int64), mask=pool == 0),
        "correlation_id": found["correlation"].astype(np.int64),
    }
    return make_batch(MEMORY_OPERATION, columns)


def _wide(parts: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """A number of 64 bits that lies in the first two of three fields."""
    wide = np.ascontiguousarray(parts[:, :2]).view("<u8")[:, 0]
    return wide.astype(np.uint64)
