"""Symbol tables of an ELF file as NumPy arrays: only names that can match are decoded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

#: Longest symbol name that is decoded, and most places of a text that are looked at.
MAX_NAME_BYTES = 65_536
MAX_PLACES = 1 << 20

#: One entry of a symbol table.
SYMBOL = np.dtype(
    [
        ("name", "<u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("section", "<u2"),
        ("value", "<u8"),
        ("size", "<u8"),
    ]
)

_STT_OBJECT, _STT_FUNC = 1, 2

_Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Symbol:
    """A symbol: name, address as linked (0 if imported), size in bytes, version (None without)."""

    name: str
    address: int
    size: int
    version: str | None = None


@dataclass(frozen=True)
class SymbolTable:
    """The symbols of a table, its strings, and a version number each (empty without versions)."""

    symbols: _Array
    strings: bytes
    versions: _Array

    @property
    def _is_function(self) -> npt.NDArray[np.bool_]:
        """Which symbols are functions that the file defines."""
        is_function = (self.symbols["info"] & 15) == _STT_FUNC
        return np.asarray(is_function & (self.symbols["section"] != 0))

    def functions(self, names: Collection[str], version_names: Mapping[int, str]) -> list[Symbol]:
        """Return the defined functions of those names; of several versions the default one."""
        found: dict[str, Symbol] = {}
        for index, name in self._matching(np.flatnonzero(self._is_function), names):
            number = int(self.versions[index]) if index < len(self.versions) else 0
            if name in found and number & 0x8000:
                continue
            version = version_names.get(number & 0x7FFF) if number & 0x7FFF > 1 else None
            row = self.symbols[index]
            found[name] = Symbol(name, int(row["value"]), int(row["size"]), version)
        return list(found.values())

    def imports(self, names: Collection[str]) -> list[str]:
        """Return those of the names that are undefined, sorted."""
        is_undefined = np.flatnonzero(self.symbols["section"] == 0)
        return sorted({name for _, name in self._matching(is_undefined, names)})

    def containing(self, text: bytes, is_undefined: bool) -> list[Symbol]:
        """Return the undefined symbols, or defined functions and variables, named with a text."""
        places = _find_all(self.strings, text)
        if not len(places):
            return []
        wanted = (self.symbols["section"] == 0) == is_undefined
        if not is_undefined:
            kind = self.symbols["info"] & 15
            wanted &= (kind == _STT_FUNC) | (kind == _STT_OBJECT)
        indices = np.flatnonzero(wanted)
        offsets = self.symbols["name"][indices].astype(np.int64)
        # A name holds the text if the next place of it comes before the name's end.
        ends = np.flatnonzero(np.frombuffer(self.strings, "u1") == 0)
        ends = np.append(ends, len(self.strings))
        end = ends[np.minimum(np.searchsorted(ends, offsets), len(ends) - 1)]
        following = np.searchsorted(places, offsets)
        place = places[np.minimum(following, len(places) - 1)]
        holds = (following < len(places)) & (place + len(text) <= end)
        return [
            Symbol(name_at(self.strings, int(row["name"])), int(row["value"]), int(row["size"]))
            for row in self.symbols[indices[holds]]
        ]

    def functions_at(self, addresses: npt.NDArray[np.uint64]) -> dict[int, str]:
        """Return the name of the function that begins at each address, global before local."""
        names: dict[int, str] = {}
        hits = np.flatnonzero(self._is_function & np.isin(self.symbols["value"], addresses))
        is_local = (self.symbols["info"][hits] >> 4) == 0
        for index in hits[np.argsort(is_local, kind="stable")].tolist():
            name = name_at(self.strings, int(self.symbols["name"][index]))
            if name:
                names.setdefault(int(self.symbols["value"][index]), name)
        return names

    def _matching(
        self, indices: npt.NDArray[np.intp], names: Collection[str]
    ) -> list[tuple[int, str]]:
        """Index and name of those symbols whose name is one of the wanted.

        The first eight bytes of all names are compared at once; what is left is decoded.
        """
        if not len(indices) or not names or not self.strings:
            return []
        padded = np.frombuffer(self.strings + b"\0" * 8, "u1")
        offsets = self.symbols["name"][indices].astype(np.int64)
        offsets[offsets >= len(self.strings)] = len(self.strings)
        heads = np.lib.stride_tricks.sliding_window_view(padded, 8)[offsets]
        keys = np.ascontiguousarray(heads).view("<u8")[:, 0]
        wanted = frozenset(names)
        long, short = _heads(wanted)
        is_candidate = np.isin(keys, long)
        for head, mask in short:
            is_candidate |= (keys & mask) == head
        found = []
        for place in np.flatnonzero(is_candidate).tolist():
            name = name_at(self.strings, int(offsets[place]))
            if name in wanted:
                found.append((int(indices[place]), name))
        return found


#: Table of a file that has none.
EMPTY_TABLE = SymbolTable(np.empty(0, SYMBOL), b"", np.empty(0, "<u2"))


def name_at(strings: bytes, offset: int) -> str:
    """Return the name at an offset of a string table; "" outside it or without an end."""
    end = strings.find(b"\0", offset, offset + MAX_NAME_BYTES)
    return strings[offset:end].decode("utf-8", "replace") if 0 <= offset < end else ""


@lru_cache(maxsize=16)
def _heads(names: frozenset[str]) -> tuple[_Array, list[tuple[np.uint64, np.uint64]]]:
    """First eight bytes of the names as numbers; of shorter ones with the mask of their bytes."""
    encoded = [name.encode() for name in names]
    long = {int.from_bytes(name[:8], "little") for name in encoded if len(name) >= 8}
    short = [
        (np.uint64(int.from_bytes(name, "little")), np.uint64((1 << (8 * (len(name) + 1))) - 1))
        for name in encoded
        if len(name) < 8
    ]
    return np.array(sorted(long), "<u8"), short


def _find_all(data: bytes, text: bytes) -> npt.NDArray[np.int64]:
    """Places of a text in data, ascending, at most ``MAX_PLACES`` of them."""
    places: list[int] = []
    at = data.find(text)
    while at >= 0 and len(places) < MAX_PLACES:
        places.append(at)
        at = data.find(text, at + 1)
    return np.array(places, np.int64)
