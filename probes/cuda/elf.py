"""The few things of a 64-bit ELF file that attaching needs: functions, imports, names, segments.

Files are read with bounded ``pread`` calls and never mapped: a file that is cut short while it is
looked at gives an error instead of SIGBUS. Symbol tables are filtered as NumPy arrays; only names
that can match are decoded, so a library of several hundred megabytes opens in milliseconds.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from probes.cuda.symbols import EMPTY_TABLE, SYMBOL, Symbol, SymbolTable, name_at

#: Largest section that is read (symbol or string table), and most headers of a kind.
MAX_SECTION_BYTES = 512 << 20
MAX_HEADERS = 65_535

ET_EXEC, ET_DYN = 2, 3
EM_X86_64, EM_AARCH64 = 62, 183

_PT_LOAD, _PT_DYNAMIC, _PT_NOTE = 1, 2, 4
_SHT_SYMTAB, _SHT_NOTE, _SHT_NOBITS, _SHT_DYNSYM = 2, 7, 8, 11
_SHT_VERSYM, _SHT_VERDEF = 0x6FFFFFFF, 0x6FFFFFFD
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SONAME = 1, 4, 5, 6, 10, 14
_DT_GNU_HASH = 0x6FFFFEF5

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = np.dtype(
    [
        ("type", "<u4"),
        ("flags", "<u4"),
        ("offset", "<u8"),
        ("address", "<u8"),
        ("physical", "<u8"),
        ("file_size", "<u8"),
        ("memory_size", "<u8"),
        ("align", "<u8"),
    ]
)
_SECTION = np.dtype(
    [
        ("name", "<u4"),
        ("type", "<u4"),
        ("flags", "<u8"),
        ("address", "<u8"),
        ("offset", "<u8"),
        ("size", "<u8"),
        ("link", "<u4"),
        ("info", "<u4"),
        ("align", "<u8"),
        ("entry_size", "<u8"),
    ]
)
_DYNAMIC = np.dtype([("tag", "<i8"), ("value", "<u8")])

_Array = npt.NDArray[Any]


class ElfError(ValueError):
    """The file is not an ELF file that can be used here; the text says why."""


class ElfFile:
    """One ELF file opened for reading.

    Args:
        path: File to open, or an open file descriptor, which is then owned.

    Raises:
        ElfError: it cannot be opened, is no little-endian 64-bit ELF file, or is damaged.
    """

    def __init__(self, path: Path | str | int) -> None:
        self.name = f"file descriptor {path}" if isinstance(path, int) else str(path)
        if isinstance(path, int):
            self._descriptor = path
        else:
            try:
                self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise ElfError(f"{path} cannot be opened ({error.strerror})") from None
        try:
            self._read_headers()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ElfFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what was read before stays usable."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read_headers(self) -> None:
        self.size = os.fstat(self._descriptor).st_size
        header = self.read(0, _HEADER.size)
        if len(header) < _HEADER.size or header[:4] != b"\x7fELF":
            raise ElfError(f"{self.name} is not an ELF file")
        if header[4] != 2 or header[5] != 1:
            raise ElfError(f"{self.name} is not a 64-bit little-endian ELF file")
        fields = _HEADER.unpack(header)
        self.type: int = fields[1]
        self.machine: int = fields[2]
        segments_at, sections_at = fields[5], fields[6]
        segment_size, n_segments, section_size, n_sections, self._names_section = fields[9:14]
        if n_segments and segment_size != _SEGMENT.itemsize:
            raise ElfError(f"{self.name} is damaged (program headers of {segment_size} bytes)")
        self._segments = self._read_array(segments_at, n_segments, _SEGMENT, "program headers")
        self._sections = np.empty(0, _SECTION)
        if sections_at and section_size == _SECTION.itemsize:
            if n_sections == 0:  # the number did not fit: it is in the first section header
                first = self._read_array(sections_at, 1, _SECTION, "section headers")
                n_sections = min(int(first["size"][0]), MAX_HEADERS)
            if sections_at + n_sections * _SECTION.itemsize <= self.size:
                self._sections = self._read_array(
                    sections_at, n_sections, _SECTION, "section headers"
                )

    def read(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes at a file offset, fewer at the end of the file."""
        if offset >= 1 << 63 or size <= 0:
            return b""
        parts = []
        while size > 0:
            try:
                part = os.pread(self._descriptor, min(size, 1 << 26), offset)
            except OSError as error:
                raise ElfError(f"{self.name} cannot be read ({error.strerror})") from None
            if not part:
                break
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return b"".join(parts)

    def _read_array(self, offset: int, count: int, dtype: np.dtype[Any], what: str) -> _Array:
        """Read ``count`` fixed-size entries, or say that the file is damaged."""
        size = count * dtype.itemsize
        if size > MAX_SECTION_BYTES or offset + size > self.size:
            raise ElfError(f"{self.name} is damaged ({what} reach beyond the file)")
        data = self.read(offset, size)
        if len(data) < size:
            raise ElfError(f"{self.name} was cut short while it was read")
        return np.frombuffer(data, dtype)

    def _section_bytes(self, section: Any, what: str) -> bytes:
        """The bytes of a section, or say that the file is damaged."""
        return self._read_array(
            int(section["offset"]), int(section["size"]), np.dtype("u1"), what
        ).tobytes()

    @cached_property
    def _dynamic(self) -> _Array:
        """Entries of the dynamic segment; empty without one."""
        found = self._segments[self._segments["type"] == _PT_DYNAMIC]
        if not len(found):
            return np.empty(0, _DYNAMIC)
        count = int(found[0]["file_size"]) // _DYNAMIC.itemsize
        entries = self._read_array(int(found[0]["offset"]), count, _DYNAMIC, "dynamic entries")
        ends = np.flatnonzero(entries["tag"] == 0)
        return entries[: ends[0]] if len(ends) else entries

    def _dynamic_value(self, tag: int) -> int | None:
        values = self._dynamic["value"][self._dynamic["tag"] == tag]
        return int(values[0]) if len(values) else None

    @cached_property
    def _dynamic_strings(self) -> bytes:
        """String table of the dynamic segment."""
        address, size = self._dynamic_value(_DT_STRTAB), self._dynamic_value(_DT_STRSZ)
        offset = None if address is None else self.file_offset(address)
        if offset is None or not size:
            return b""
        return self._read_array(offset, size, np.dtype("u1"), "dynamic strings").tobytes()

    @property
    def is_static(self) -> bool:
        """Whether it has no dynamic segment (no library can be loaded by its interpreter)."""
        return not len(self._dynamic)

    @property
    def soname(self) -> str | None:
        """Name that the library gives itself, or None."""
        at = self._dynamic_value(_DT_SONAME)
        return None if at is None else (name_at(self._dynamic_strings, at) or None)

    @property
    def needed(self) -> list[str]:
        """Sonames of the libraries that it is linked against."""
        values = self._dynamic["value"][self._dynamic["tag"] == _DT_NEEDED]
        return [name_at(self._dynamic_strings, int(value)) for value in values[:4096]]

    @cached_property
    def build_id(self) -> str | None:
        """GNU build id as hex text, or None."""
        notes = [
            (int(segment["offset"]), int(segment["file_size"]))
            for segment in self._segments[self._segments["type"] == _PT_NOTE]
        ]
        notes += [
            (int(section["offset"]), int(section["size"]))
            for section in self._sections[self._sections["type"] == _SHT_NOTE]
        ]
        for offset, size in notes[:64]:
            found = _build_id_of(self.read(offset, min(size, 1 << 16)))
            if found:
                return found
        return None

    @property
    def has_symtab(self) -> bool:
        """Whether it has a full symbol table, i.e. was not stripped."""
        return bool((self._sections["type"] == _SHT_SYMTAB).any())

    def section(self, name: str, limit: int = MAX_SECTION_BYTES) -> bytes:
        """Return the first ``limit`` bytes of the section of that name; empty without one."""
        if self._names_section >= len(self._sections):
            return b""
        names = self._section_bytes(self._sections[self._names_section], "section names")
        for section in self._sections:
            if name_at(names, int(section["name"])) == name and section["type"] != _SHT_NOBITS:
                return self.read(int(section["offset"]), min(int(section["size"]), limit))
        return b""

    @cached_property
    def _dynsym(self) -> SymbolTable:
        """Table of exported and imported symbols."""
        table = self._table_of_section(_SHT_DYNSYM)
        return table if table is not None else self._table_of_dynamic()

    @cached_property
    def _symtab(self) -> SymbolTable:
        """Full table of symbols; empty when stripped."""
        table = self._table_of_section(_SHT_SYMTAB)
        return table if table is not None else EMPTY_TABLE

    def _table_of_section(self, kind: int) -> SymbolTable | None:
        places = np.flatnonzero(self._sections["type"] == kind)
        if not len(places):
            return None
        section = self._sections[places[0]]
        link = int(section["link"])
        if section["entry_size"] != SYMBOL.itemsize or link >= len(self._sections):
            raise ElfError(f"{self.name} is damaged (its symbol table names no strings)")
        count = int(section["size"]) // SYMBOL.itemsize
        symbols = self._read_array(int(section["offset"]), count, SYMBOL, "symbols")
        strings = self._section_bytes(self._sections[link], "symbol names")
        versions = np.empty(0, "<u2")
        for version in self._sections[self._sections["type"] == _SHT_VERSYM]:
            if kind == _SHT_DYNSYM and int(version["size"]) == 2 * count:
                versions = self._read_array(
                    int(version["offset"]), count, versions.dtype, "versions"
                )
        return SymbolTable(symbols, strings, versions)

    def _table_of_dynamic(self) -> SymbolTable:
        """Exported and imported symbols of a file without section headers."""
        address = self._dynamic_value(_DT_SYMTAB)
        offset = None if address is None else self.file_offset(address)
        if offset is None:
            return EMPTY_TABLE
        count = self._count_by_hash()
        symbols = self._read_array(offset, count, SYMBOL, "symbols")
        return SymbolTable(symbols, self._dynamic_strings, np.empty(0, "<u2"))

    def _count_by_hash(self) -> int:
        """Number of dynamic symbols, from the hash table that the loader uses."""
        address = self._dynamic_value(_DT_HASH)
        offset = None if address is None else self.file_offset(address)
        word = np.dtype("<u4")
        if offset is not None:
            return int(self._read_array(offset, 2, word, "hash table")[1])
        address = self._dynamic_value(_DT_GNU_HASH)
        offset = None if address is None else self.file_offset(address)
        if offset is None:
            return 0
        n_buckets, first, n_bloom, _ = self._read_array(offset, 4, word, "hash table").tolist()
        buckets_at = offset + 16 + 8 * n_bloom
        buckets = self._read_array(buckets_at, n_buckets, word, "hash buckets")
        last = int(buckets.max(initial=0))
        if last < first:
            return int(first)
        chain_at = buckets_at + 4 * n_buckets + 4 * (last - first)
        chain = np.frombuffer(self.read(chain_at, 1 << 20)[: 1 << 20] + b"\1\0\0\0", "u1")
        chain = chain[: len(chain) // 4 * 4].view(word)
        return last + 1 + int(np.flatnonzero(chain & 1)[0])

    @cached_property
    def _version_names(self) -> dict[int, str]:
        """Name of each version that the file defines, by index."""
        names: dict[int, str] = {}
        for section in self._sections[self._sections["type"] == _SHT_VERDEF][:1]:
            link = int(section["link"])
            if link >= len(self._sections):
                break
            data = self._section_bytes(section, "version definitions")
            strings = self._section_bytes(self._sections[link], "version names")
            at = 0
            for _ in range(min(int(section["info"]), 4096)):
                if at + 20 > len(data):
                    break
                _, _, index, count, _, names_at, step = struct.unpack_from("<HHHHIII", data, at)
                if count and at + names_at + 4 <= len(data):
                    (place,) = struct.unpack_from("<I", data, at + names_at)
                    names[index & 0x7FFF] = name_at(strings, place)
                if not step:
                    break
                at += step
        return names

    def functions(self, names: Collection[str], table: str = "dynsym") -> list[Symbol]:
        """Return the defined functions of those names; of several versions the default one.

        Args:
            names: Names wanted, without version.
            table: ``dynsym`` for exported functions, ``symtab`` for all of an unstripped file.
        """
        chosen = self._dynsym if table == "dynsym" else self._symtab
        return chosen.functions(names, self._version_names if len(chosen.versions) else {})

    def imports(self, names: Collection[str]) -> list[str]:
        """Return those of the names that the file takes from other libraries, sorted."""
        return self._dynsym.imports(names)

    def imports_containing(self, text: bytes) -> list[str]:
        """Return the names with a text in them that the file takes from other libraries."""
        return sorted({symbol.name for symbol in self._dynsym.containing(text, True)})

    def symbols_containing(self, text: bytes) -> list[Symbol]:
        """Return functions and variables with a text in their name, of the fuller table."""
        table = self._symtab if len(self._symtab.symbols) else self._dynsym
        return table.containing(text, False)

    def functions_at(self, addresses: npt.NDArray[np.uint64]) -> list[str | None]:
        """Return for each address as linked the name of the function that begins there, or None.

        Of several names of one function a global one is taken before a local one.
        """
        names: dict[int, str] = {}
        for table in (self._dynsym, self._symtab):
            names |= table.functions_at(addresses)
        return [names.get(address) for address in addresses.tolist()]

    def file_offset(self, address: int) -> int | None:
        """Return the file offset of an address as linked; None when no segment holds it."""
        for segment in self._segments[self._segments["type"] == _PT_LOAD]:
            start = int(segment["address"])
            if start <= address < start + int(segment["file_size"]):
                return address - start + int(segment["offset"])
        return None

    def load_bias(self, start: int, offset: int) -> int | None:
        """Return by how much addresses in memory exceed those as linked; None when unknown.

        Args:
            start: Address of an executable mapping of the file.
            offset: File offset that the mapping begins at.
        """
        is_code = (self._segments["type"] == _PT_LOAD) & (self._segments["flags"] & 1 != 0)
        for segment in self._segments[is_code]:
            first = int(segment["offset"])
            if first - first % _PAGE_BYTES <= offset < first + int(segment["file_size"]):
                bias = start - (int(segment["address"]) - first + offset)
                return bias if bias >= 0 else None
        return None


def _build_id_of(notes: bytes) -> str | None:
    """The GNU build id among the notes, as hex text."""
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        name_at = at + 12
        data_at = name_at + (name_size + 3) // 4 * 4
        if kind == 3 and notes[name_at : name_at + 4] == b"GNU\0" and 0 < size <= 64:
            return notes[data_at : data_at + size].hex() or None
        at = data_at + (size + 3) // 4 * 4
    return None
