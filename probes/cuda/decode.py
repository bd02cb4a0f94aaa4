"""Words of entry records turned into the argument columns of ``cuda_call``, in bulk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

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
    """Argument columns of some calls.

    Attributes:
        present: Numbers of the functions that occur among the calls.
        values: The values, by column.
        is_known: Where they are known, by column.
    """

    present: npt.NDArray[np.uint16]
    values: Mapping[str, npt.NDArray[np.generic]]
    is_known: Mapping[str, _Bool]

    def array(self, name: str) -> pa.Array | None:
        """Arrow array of a column, null where it is not known; None when it never is."""
        if name not in self.values:
            return None
        return pa.array(self.values[name], mask=~self.is_known[name])


@dataclass(frozen=True)
class _Plan:
    """How the arguments of some functions become columns.

    Attributes:
        columns: Name, type, where the values lie (for which functions; the first serves for all
            that follow it not) and for which functions they are known.
        sized: Functions with arguments that only together make a column: bytes and copy kinds.
    """

    columns: tuple[
        tuple[str, np.dtype[np.generic], tuple[tuple[Placement, bytes], ...], bytes], ...
    ]
    sized: tuple[int, ...]


@lru_cache(maxsize=1024)
def _plan(present: bytes) -> _Plan:
    """The plan of the functions with these numbers (16 bits each)."""
    found: dict[str, dict[tuple[int, int, int], list[int]]] = {}
    places: dict[tuple[int, int, int], Placement] = {}
    sized = []
    for number in np.frombuffer(present, np.uint16).tolist():
        declared = FUNCTIONS_BY_INDEX[number]
        _, placements = layout_of(declared)
        roles = {place.role for place in placements}
        if declared.copy_kind is not None or roles & {"size", "copy_kind", "source_memory"}:
            sized.append(number)
        for place in placements:
            if place.role in _COLUMNS:
                key = (place.word, place.shift, place.width)
                places[key] = place
                found.setdefault(place.role, {}).setdefault(key, []).append(number)
    columns = []
    for role, by_place in found.items():
        column, kind = _COLUMNS[role]
        lies = tuple((places[key], _table(numbers)) for key, numbers in by_place.items())
        known = _table([number for numbers in by_place.values() for number in numbers])
        columns.append((column, np.dtype(kind), lies, known))
    return _Plan(tuple(columns), tuple(sized))


def _table(numbers: Iterable[int]) -> bytes:
    """Whether the function with each number is one of some, a byte each."""
    table = np.zeros(len(SYMBOLS), np.bool_)
    table[list(numbers)] = True
    return table.tobytes()


def _present(function: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """Numbers of the functions that occur, ascending."""
    return np.flatnonzero(np.bincount(function, minlength=len(SYMBOLS))).astype(np.uint16)


def decode(entries: _Records) -> Arguments:
    """Return the arguments of the calls of some entry records, each column as long as they.

    A value that is not known is whatever the record holds in its place. Columns that are known for
    the same calls share one array that says so.
    """
    n = len(entries)
    values: dict[str, npt.NDArray[np.generic]] = {}
    known: dict[str, _Bool] = {}
    function = np.ascontiguousarray(entries["function"])
    present = _present(function)
    if not n:
        return Arguments(present, values, known)
    plan = _plan(present.tobytes())
    words = entries["words"]
    is_read = (entries["depth"] & ARGUMENTS_UNREAD) == 0
    is_all_read = bool(is_read.all())
    index = function.astype(np.intp)
    masks: dict[bytes, _Bool] = {}
    unread: dict[bytes, _Bool] = {}
    for column, kind, lies, known_for in plan.columns:
        raw = _extract(words, lies[0][0])
        for place, which in lies[1:]:
            raw = np.where(_of(which, index, masks), _extract(words, place), raw)
        known[column] = _of(known_for, index, masks)
        if not is_all_read:
            known[column] = unread.setdefault(known_for, known[column] & is_read)
        values[column] = raw.astype(kind)
    for number in plan.sized:
        _put_sized(number, np.flatnonzero(function == number), words, is_read, values, known)
    return Arguments(present, values, known)


def _of(table: bytes, index: _I64, masks: dict[bytes, _Bool]) -> _Bool:
    """Which calls are of the functions of a table, looked up once."""
    if table not in masks:
        masks[table] = np.frombuffer(table, np.bool_).take(index)
    return masks[table]


def _put_sized(
    number: int,
    where: _I64,
    words: npt.NDArray[np.uint64],
    is_read: _Bool,
    values: dict[str, npt.NDArray[np.generic]],
    known: dict[str, _Bool],
) -> None:
    """Bytes and copy kind of the calls of one function."""

    def put(
        column: str, kind: np.dtype[np.generic], where: _I64, data: npt.NDArray[np.generic]
    ) -> None:
        if column not in values:
            values[column] = np.zeros(len(words), kind)
            known[column] = np.zeros(len(words), np.bool_)
        values[column][where] = data.astype(kind)
        known[column][where] = True

    declared = FUNCTIONS_BY_INDEX[number]
    if declared.copy_kind is not None:
        index = COPY_KIND_NAMES.index(declared.copy_kind)
        put("copy_kind", np.dtype(np.int8), where, np.full(len(where), index))
    where = where[is_read[where]]
    mine = words[where]
    _, places = layout_of(declared)
    read = [(place.role, _extract(mine, place)) for place in places]
    sizes = [data.astype(np.uint64) for role, data in read if role == "size"]
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


def _put_memory_kinds(
    roles: Mapping[str, npt.NDArray[np.unsignedinteger]], where: _I64, put: _Put
) -> None:
    """Copy kind of a driver copy from the kinds of memory at its ends."""
    for source, first in _MEMORY_LETTERS.items():
        for target, second in _MEMORY_LETTERS.items():
            chosen = (roles["source_memory"] == source) & (roles["target_memory"] == target)
            index = COPY_KIND_NAMES.index(f"{first}2{second}")
            put("copy_kind", np.dtype(np.int8), where[chosen], np.full(int(chosen.sum()), index))


def _extract(words: npt.NDArray[np.uint64], place: Placement) -> npt.NDArray[np.unsignedinteger]:
    """One argument out of the words of some records, as they lie there."""
    if place.width == 4 and place.shift % 32 == 0:
        return words.view(np.uint32)[:, 2 * place.word + place.shift // 32]
    value = words[:, place.word] >> np.uint64(place.shift) if place.shift else words[:, place.word]
    return value & np.uint64(0xFFFFFFFF) if place.width == 4 else value
