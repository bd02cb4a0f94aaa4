"""Markers that a program declares for tracers (SystemTap's): where they lie, what turns them on."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from probes.cuda.elf import ElfFile

_NOTE_SECTION = ".note.stapsdt"
_NOTE_BYTES = 1 << 20
_NOTE = struct.Struct("<III")
_KIND = 3
_ADDRESSES = struct.Struct("<QQQ")


@dataclass(frozen=True)
class Marker:
    """One place of one marker.

    Attributes:
        provider: Who declares it, e.g. ``python``.
        name: Its name, e.g. ``gc__start``.
        offset: Offset in the file of the instruction to probe.
        counter: Offset in the file of the counter that turns it on; 0 for none.
    """

    provider: str
    name: str
    offset: int
    counter: int


def read_markers(elf: ElfFile) -> list[Marker]:
    """Return the markers that a file declares, in its order; damaged ones are skipped.

    Raises:
        ElfError: the file cannot be read.
    """
    data = elf.section(_NOTE_SECTION, _NOTE_BYTES)
    found = []
    at = 0
    while at + _NOTE.size <= len(data):
        name_size, size, kind = _NOTE.unpack_from(data, at)
        begin = at + _NOTE.size + _padded(name_size)
        at = begin + _padded(size)
        words = data[begin + _ADDRESSES.size : begin + size].split(b"\0")
        if kind != _KIND or begin + size > len(data) or size < _ADDRESSES.size or len(words) < 2:
            continue
        address, _base, counter = _ADDRESSES.unpack_from(data, begin)
        offset = elf.file_offset(address)
        switch = elf.file_offset(counter) if counter else 0
        if offset is not None and switch is not None:
            provider, name = (word.decode("ascii", "replace") for word in words[:2])
            found.append(Marker(provider, name, offset, switch))
    return found


def _padded(size: int) -> int:
    return (size + 3) // 4 * 4
