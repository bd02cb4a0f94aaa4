"""The few parts of protobuf's wire format that a trace needs, one at a time and by column.

Numbers in columns are written with a fixed number of bytes (leading groups of zero bits are
allowed in a varint), so that messages of one kind have one length and are made as one array.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

_VARINT, _FIXED64, _BYTES = 0, 1, 2


def varint(value: int) -> bytes:
    """Return a number from 0 on as a varint."""
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


def number(field: int, value: int) -> bytes:
    """Return a field that holds a number from 0 on."""
    return varint(field << 3 | _VARINT) + varint(value)


def signed(field: int, value: int) -> bytes:
    """Return a field of type int32 or int64; negative numbers take ten bytes."""
    return number(field, value & 0xFFFF_FFFF_FFFF_FFFF)


def message(field: int, *parts: bytes) -> bytes:
    """Return a field that holds a message made of these parts."""
    content = b"".join(parts)
    return varint(field << 3 | _BYTES) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    """Return a field that holds text; what is no Unicode is replaced."""
    return message(field, value.encode("utf-8", "replace"))


def width(largest: int) -> int:
    """Return the bytes that the varint of a number takes."""
    return len(varint(largest))


def constant(content: bytes, n: int) -> Bytes:
    """Return the same bytes ``n`` times: ``(n, len(content))``."""
    return np.broadcast_to(np.frombuffer(content, dtype=np.uint8), (n, len(content)))


def number_column(field: int, values: npt.NDArray[np.int64], n_bytes: int) -> Bytes:
    """Return a field that holds a number from 0 on, one row a value, ``n_bytes`` for each."""
    shifts = np.arange(n_bytes, dtype=np.uint64) * np.uint64(7)
    groups = (values.astype(np.uint64)[:, None] >> shifts) & np.uint64(0x7F)
    groups[:, :-1] |= np.uint64(0x80)
    tag = varint(field << 3 | _VARINT)
    return np.concatenate((constant(tag, len(values)), groups.astype(np.uint8)), axis=1)


def fixed64_column(field: int, values: npt.NDArray[np.int64]) -> Bytes:
    """Return a field of type fixed64, one row a value."""
    raw = np.ascontiguousarray(values.astype("<u8")).view(np.uint8).reshape(len(values), 8)
    return np.concatenate((constant(varint(field << 3 | _FIXED64), len(values)), raw), axis=1)


def double_column(field: int, values: npt.NDArray[np.float64]) -> Bytes:
    """Return a field of type double, one row a value."""
    raw = np.ascontiguousarray(values.astype("<f8")).view(np.uint8).reshape(len(values), 8)
    return np.concatenate((constant(varint(field << 3 | _FIXED64), len(values)), raw), axis=1)


def message_column(field: int, *columns: Bytes) -> Bytes:
    """Return a field that holds a message made of these columns, one row each."""
    content = np.concatenate(columns, axis=1)
    head = varint(field << 3 | _BYTES) + varint(content.shape[1])
    return np.concatenate((constant(head, len(content)), content), axis=1)
