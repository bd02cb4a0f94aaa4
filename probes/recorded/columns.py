"""Gathers columns piece by piece, and hands them out as one, sorted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def distinct(codes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the codes of :class:`Names` that occur, ascending, and the place of each row's code
    among them; in linear time, as they are small.
    """
    if not len(codes):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    is_there = np.zeros(int(codes.max()) + 1, bool)
    is_there[codes] = True
    places: npt.NDArray[np.int64] = np.cumsum(is_there) - 1
    return np.flatnonzero(is_there), places[codes]


class Names:
    """Gives each different text a number, in order of appearance."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._codes: dict[str, int] = {}

    def codes(self, names: pa.Array) -> npt.NDArray[np.int64]:
        """Return the number of each text of a string array without nulls."""
        encoded = names.dictionary_encode()
        return self.recode(encoded.dictionary.to_pylist(), encoded.indices.to_numpy())

    def recode(self, texts: Sequence[str], codes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the numbers of texts that are given as indices into some."""
        known = np.array([self._code(text) for text in texts], np.int64)
        recoded: npt.NDArray[np.int64] = known[codes]
        return recoded

    def _code(self, text: str) -> int:
        code = self._codes.setdefault(text, len(self.texts))
        if code == len(self.texts):
            self.texts.append(text)
        return code


class Gathered:
    """Rows of one kind as NumPy columns, gathered over many blocks."""

    def __init__(self, names: Sequence[str]) -> None:
        self._parts: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
        self.n_rows = 0

    def add(self, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add rows; every declared column must be there."""
        for name, parts in self._parts.items():
            parts.append(columns[name])
        self.n_rows += len(next(iter(columns.values())))

    def take(self, order: str) -> dict[str, npt.NDArray[Any]]:
        """Return all rows in ascending order of a column, and forget them."""
        columns = {}
        for name, parts in self._parts.items():
            columns[name] = np.concatenate(parts) if parts else np.empty(0, np.int64)
            parts.clear()
        self.n_rows = 0
        index = np.argsort(columns[order], kind="stable")
        return {name: values[index] for name, values in columns.items()}
