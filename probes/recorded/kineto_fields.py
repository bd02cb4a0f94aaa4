"""Which events of a Kineto trace are imported, and which of their fields, in which types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]

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
#: Fields of every event in microseconds, and of one that a thread did.
TIMES = ("ts", "dur")
TASK = ("pid", "tid")
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


@dataclass(frozen=True)
class Arguments:
    """The wanted arguments of a group's events, by type.

    Attributes:
        integers: Whole numbers.
        triples: Lists of three whole numbers.
        texts: Texts.
    """

    integers: frozenset[str]
    triples: tuple[str, ...]
    texts: frozenset[str]


def _arguments(schema: pa.Schema) -> Arguments | None:
    if "args" not in schema.names:
        return None
    fields = list(schema.field("args").type)
    return Arguments(
        frozenset(item.name for item in fields if pa.types.is_integer(item.type)),
        tuple(item.name for item in fields if pa.types.is_list(item.type)),
        frozenset(item.name for item in fields if pa.types.is_string(item.type)),
    )


#: By group; None where none are wanted.
ARGUMENTS = {group: _arguments(schema) for group, schema in SCHEMAS.items()}


def has_task(group: str) -> bool:
    """Return whether the process and thread of a group's events are wanted."""
    return all(name in SCHEMAS[group].names for name in TASK)


def group_of(category: str) -> str | None:
    """Return the group of a category, or None when its events are not imported."""
    return GROUPS.get(category.lower())


@dataclass(frozen=True)
class EventRows:
    """Valid complete events of one group, with times in ns of the trace's own clock.

    Attributes:
        group: ``DEVICE``, ``SYNC``, ``CALL``, ``RANGE`` or ``PYTHON``.
        start_ns: Begin of each.
        duration_ns: Length of each, not negative.
        name: Index of each one's name in ``names``.
        names: The names.
        category: Index of each one's category in ``categories``.
        categories: Categories in lower case.
        integers: Whole numbers by field (0 where there is none), and where there is none.
        triples: Arguments of three numbers by field as (rows, 3), and where there are not three.
        flags: By text argument, who has it.
    """

    group: str
    start_ns: _Ints
    duration_ns: _Ints
    name: _Ints
    names: Sequence[str]
    category: _Ints
    categories: Sequence[str]
    integers: Mapping[str, tuple[_Ints, _Bools]]
    triples: Mapping[str, tuple[_Ints, _Bools]]
    flags: Mapping[str, _Bools]
