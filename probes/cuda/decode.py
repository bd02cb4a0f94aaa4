"""Words of entry records turned into the argument columns of ``cuda_call``, in bulk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from probes.cuda.functions import (
    COPY_KINDS,
    NCCL_ELEMENT_BYTES,
    SYMBOLS,
    Function,
    by_symbol,
)
from probes.cuda.program import ARGUMENTS_UNREAD, Placement, layout_of

_Records = npt.NDArray[np.void]
_I64 = npt.NDArray[np.int64]
_Bool = npt.NDArray[np.bool_]

_Put = Callable[[str, np.dtype[np.generic], _I64, npt.NDArray[np.generic]], None]

#: Roles that are columns of their own, with the column's name and NumPy type.
_COLUMNS: dict[str, tuple[str, type[np.generic]]] = {
    "stream": ("stream", np.uint64),
    "kernel": ("kernel", np.uint64),
    "shared": ("shared_memory_bytes", np.int64),
    "device": ("device", np.int32),
    "rank": ("rank", np.int32),
    **{
        f"{shape}_{axis}": (f"{shape}_{axis}", np.int32)
        for shape in ("grid", "block")
        for axis in "xyz"
    },
}
#: Kind of memory by ``CUmemorytype``: host, device, array; unified is not told.
_MEMORY_LETTERS = {1: "h", 2: "d", 3: "d"}

#: Every copy kind; ``copy_kind`` of a call is an index into it.
COPY_KIND_NAMES = (*COPY_KINDS, "p2p")

#: Functions by the number in the records.
FUNCTIONS_BY_INDEX: tuple[Function, ...] = tuple(by_symbol[symbol] for symbol in SYMBOLS)

#: Whether the function with that number returns an error code.
HAS_CODE: _Bool = np.array([function.has_code for function in FUNCTIONS_BY_INDEX])


@dataclass(frozen=True)
class Arguments:
    """Argument columns of some calls: values and where they are known, by column."""

    values: Mapping[str, npt.NDArray[np.generic]]
    is_known: Mapping[str, _Bool]

    def array(self, name: str) -> pa.Array | None:
        """Arrow array of a column, null where it is not known; None when it never is."""
        if name not in self.values:
            return None
        return pa.array(self.values[name], mask=~self.is_known[name])


def decode(entries: _Records) -> Arguments:
    """Return the arguments of the calls of some entry records, each column as long as they."""
    n = len(entries)
    values: dict[str, npt.NDArray[np.generic]] = {}
    known: dict[str, _Bool] = {}
    if not n:
        return Arguments(values, known)

    def put(
        column: str, kind: np.dtype[np.generic], where: _I64, data: npt.NDArray[np.generic]
    ) -> None:
        if column not in values:
            values[column] = np.zeros(n, kind)
            known[column] = np.zeros(n, np.bool_)
        values[column][where] = data.astype(kind)
        known[column][where] = True

    words = entries["words"]
    is_read = (entries["depth"] & ARGUMENTS_UNREAD) == 0
    function = entries["function"]
    order = np.argsort(function, kind="stable")
    sorted_function = function[order]
    starts = np.flatnonzero(np.diff(sorted_function.astype(np.int64), prepend=-1))
    for start, end in zip(starts, np.append(starts[1:], n), strict=True):
        declared = FUNCTIONS_BY_INDEX[int(sorted_function[start])]
        where = order[start:end]
        if declared.copy_kind is not None:
            index = COPY_KIND_NAMES.index(declared.copy_kind)
            put("copy_kind", np.dtype(np.int8), where, np.full(len(where), index))
        if not declared.fields:
            continue
        where = where[is_read[where]]
        mine = words[where]
        _, places = layout_of(declared)
        read = [(place.role, _extract(mine, place)) for place in places]
        for role, data in read:
            if role in _COLUMNS:
                column, kind = _COLUMNS[role]
                put(column, np.dtype(kind), where, data)
        sizes = [data for role, data in read if role == "size"]
        if sizes:
            size = sizes[0] * np.uint64(declared.element_bytes)
            for factor in sizes[1:]:
                size = size * factor
            is_sane = size < np.uint64(1 << 63)
            for role, data in read:
                if role == "nccl_type":
                    is_sane &= data < len(NCCL_ELEMENT_BYTES)
                    table = np.array(NCCL_ELEMENT_BYTES, np.uint64)
                    size = size * table[np.minimum(data, len(table) - 1).astype(np.int64)]
            put("size_bytes", np.dtype(np.int64), where[is_sane], size[is_sane])
        for role, data in read:
            if role == "copy_kind":
                is_sane = data < len(COPY_KINDS)
                put("copy_kind", np.dtype(np.int8), where[is_sane], data[is_sane])
        roles = dict(read)
        if "source_memory" in roles and declared.copy_kind is None:
            _put_memory_kinds(roles, where, put)
    return Arguments(values, known)


def _put_memory_kinds(roles: Mapping[str, npt.NDArray[np.uint64]], where: _I64, put: _Put) -> None:
    """Copy kind of a driver copy from the kinds of memory at its ends."""
    for source, first in _MEMORY_LETTERS.items():
        for target, second in _MEMORY_LETTERS.items():
            chosen = (roles["source_memory"] == source) & (roles["target_memory"] == target)
            index = COPY_KIND_NAMES.index(f"{first}2{second}")
            put("copy_kind", np.dtype(np.int8), where[chosen], np.full(int(chosen.sum()), index))


def _extract(words: npt.NDArray[np.uint64], place: Placement) -> npt.NDArray[np.uint64]:
    """One argument out of the words of some records."""
    value = words[:, place.word] >> np.uint64(place.shift)
    if place.width == 4:
        value = value & np.uint64(0xFFFFFFFF)
    return value
