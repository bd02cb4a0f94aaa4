"""Compact columns of a large table: filled part by part, text as codes, looked at in blocks.

What is made of a whole column of ten million rows takes as much memory again; a block does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from analysis.timeline import Session

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Rows that are looked at together.
BLOCK = 1 << 18
#: Types of codes.
_SIZES = (np.int8, np.int16, np.int32)


def positions(mask: Bools) -> npt.NDArray[np.int32]:
    """Return where a mask over all rows holds, in order."""
    found = np.empty(int(np.count_nonzero(mask)), dtype=np.int32)
    n = 0
    for first in range(0, len(mask), BLOCK):
        part = np.flatnonzero(mask[first : first + BLOCK])
        np.add(part, first, out=found[n : n + len(part)], casting="unsafe")
        n += len(part)
    return found


def tally(codes: npt.NDArray[Any], mask: Bools | None, n_codes: int) -> Ints:
    """Return how often each code from 0 on comes, where ``mask`` holds if it is given."""
    result = np.zeros(n_codes, dtype=np.int64)
    for first in range(0, len(codes), BLOCK):
        part = codes[first : first + BLOCK]
        if mask is not None:
            part = part[mask[first : first + BLOCK]]
        result += np.bincount(part, minlength=n_codes)
    return result


class Vocabulary:
    """Values seen so far, in order of appearance, and their codes."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._codes: dict[Any, int] = {}

    def code(self, value: Any) -> int:
        """Return the code of one value."""
        if value not in self._codes:
            self._codes[value] = len(self.values)
            self.values.append(value)
        return self._codes[value]

    def codes(self, column: pa.ChunkedArray) -> npt.NDArray[Any]:
        """Return the codes of a column, -1 for null, in the smallest type that holds them."""
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        array = column.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0) if array.num_chunks else pa.array([], column.type)
        local = array.dictionary.to_pylist()
        own = [*(self.code(value) for value in local), -1]
        # One more than the largest code must fit too.
        limits = (np.iinfo(size).max for size in _SIZES)
        size = next(
            size for size, most in zip(_SIZES, limits, strict=True) if len(self.values) <= most
        )
        table = np.array(own, dtype=size)
        result: npt.NDArray[Any] = table[filled(array.indices, len(local))]
        return result


def filled(column: pa.Array | pa.ChunkedArray, null: int) -> npt.NDArray[Any]:
    """Return the values of a column of whole numbers, ``null`` where it is null."""
    if column.null_count:
        column = pc.fill_null(column, null)
    values: npt.NDArray[Any] = column.to_numpy()
    return values


class Columns:
    """Columns that are filled part by part in place, so that no second copy is made."""

    def __init__(self, n_rows: int) -> None:
        self._n_rows = max(n_rows, 1)
        self._arrays: list[npt.NDArray[Any]] = []
        self._n = 0

    def append(self, *parts: npt.NDArray[Any]) -> None:
        """Add one part of every column; all of one length."""
        end = self._n + len(parts[0])
        if not self._arrays:
            self._arrays = [np.empty(max(self._n_rows, end), part.dtype) for part in parts]
        elif end > len(self._arrays[0]):
            # The recorder wrote on since the rows were counted.
            self._arrays = [np.resize(array, 2 * end) for array in self._arrays]
        for index, part in enumerate(parts):
            if part.dtype.itemsize > self._arrays[index].itemsize:
                self._arrays[index] = self._arrays[index].astype(part.dtype)
            self._arrays[index][self._n : end] = part
        self._n = end

    def finish(self) -> list[Any]:
        """Return the columns, sorted by the first."""
        columns: list[Any] = [array[: self._n] for array in self._arrays]
        if columns and (columns[0][1:] < columns[0][:-1]).any():
            order = np.argsort(columns[0], kind="stable")
            columns = [column[order] for column in columns]
        return columns


def collect_columns(
    session: Session,
    table: str,
    names: Sequence[str],
    convert: Callable[[pa.Table], Sequence[npt.NDArray[Any]]],
) -> list[Any]:
    """Return what ``convert`` makes of the parts of a table, as whole columns sorted by the first;
    empty where the table has no part.

    Args:
        session: An opened session.
        table: Name of the table, which the session has.
        names: Columns to read; text comes as Arrow dictionaries.
        convert: Returns the columns of a part, all of one length.
    """
    rows = Columns(0)

    def start_over() -> None:
        nonlocal rows
        rows = Columns(session.n_rows(table))

    session.collect(
        table,
        names,
        lambda part: rows.append(*convert(part)),
        keep_dictionaries=True,
        start_over=start_over,
    )
    return rows.finish()
