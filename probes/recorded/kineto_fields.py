"""Which events of a Kineto trace are imported, and which of their fields, in which types."""

from __future__ import annotations

import pyarrow as pa

#: Group of rows that a category belongs to, old and new names.
DEVICE, SYNC, CALL, RANGE, PYTHON = "device", "sync", "call", "range", "python"
GROUPS = {
    "kernel": DEVICE,
    "gpu_memcpy": DEVICE,
    "gpu_memset": DEVICE,
    "memcpy": DEVICE,
    "memset": DEVICE,
    "cuda_sync": SYNC,
    "cuda_runtime": CALL,
    "cuda_driver": CALL,
    "hip_runtime": CALL,
    "hip_driver": CALL,
    "runtime": CALL,
    "driver": CALL,
    "cpu_op": RANGE,
    "operator": RANGE,
    "user_annotation": RANGE,
    "overhead": RANGE,
    "python_function": PYTHON,
}
#: Categories that only repeat or connect what other events say.
REDUNDANT = frozenset(
    {
        "ac2g",
        "async",
        "async_cpu_to_gpu",
        "async_gpu",
        "fwdbwd",
        "forward_backward",
        "gpu_user_annotation",
        "trace",
        "cpu_instant_event",
    }
)

#: Microseconds to the nanosecond, exactly; process and thread.
MICROSECONDS = pa.decimal128(38, 3)
NUMBER = pa.int64()
#: The same for traces that give more digits, or numbers as text.
WIDE_MICROSECONDS = pa.decimal128(38, 18)
WIDE_NUMBER = pa.decimal128(38, 0)
_COMMON = [
    pa.field("ph", pa.string()),
    pa.field("name", pa.string()),
    pa.field("ts", MICROSECONDS),
    pa.field("dur", MICROSECONDS),
    pa.field("pid", NUMBER),
]
SCHEMAS = {
    DEVICE: pa.schema(
        [
            *_COMMON[:4],
            pa.field(
                "args",
                pa.struct(
                    [
                        pa.field("device", pa.int64()),
                        pa.field("stream", pa.int64()),
                        pa.field("correlation", pa.int64()),
                        pa.field("bytes", pa.int64()),
                        pa.field("graph id", pa.int64()),
                        pa.field("grid", pa.list_(pa.int64())),
                        pa.field("block", pa.list_(pa.int64())),
                        pa.field("Collective name", pa.string()),
                    ]
                ),
            ),
        ]
    ),
    SYNC: pa.schema(
        [
            *_COMMON[:4],
            pa.field(
                "args",
                pa.struct(
                    [pa.field(name, pa.int64()) for name in ("device", "stream", "correlation")]
                ),
            ),
        ]
    ),
    CALL: pa.schema(
        [
            *_COMMON,
            pa.field("tid", NUMBER),
            pa.field("args", pa.struct([pa.field("correlation", pa.int64())])),
        ]
    ),
    RANGE: pa.schema([*_COMMON, pa.field("tid", NUMBER)]),
}
SCHEMAS[PYTHON] = SCHEMAS[RANGE]
_WIDER = {
    "ts": WIDE_MICROSECONDS,
    "dur": WIDE_MICROSECONDS,
    "pid": WIDE_NUMBER,
    "tid": WIDE_NUMBER,
}
WIDE_SCHEMAS = {
    group: pa.schema([item.with_type(_WIDER.get(item.name, item.type)) for item in schema])
    for group, schema in SCHEMAS.items()
}


def group_of(category: str) -> str | None:
    """Return the group of a category, or None when its events are not imported."""
    return GROUPS.get(category.lower())
