"""Bounded reads of another process's memory: words and strings at many addresses at once."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from probes.host import proc

#: Addresses closer than this are read together; longest single read.
SPAN_BYTES = 65_536
#: Most bytes read for one question, and longest string.
MAX_BYTES = 64 << 20
MAX_STRING_BYTES = 8192

_FIRST_STRING_BYTES = 256
_LAST_ADDRESS = (1 << 63) - SPAN_BYTES

_Addresses = npt.NDArray[np.uint64]


class ProcessMemory:
    """The memory of one process, opened for reading; what cannot be read is absent.

    Args:
        pid: Process id.
        root: Where /proc is.
    """

    def __init__(self, pid: int, root: Path = proc.PROC) -> None:
        try:
            self._descriptor = os.open(f"{root}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = -1
        self._left = MAX_BYTES

    def __enter__(self) -> ProcessMemory:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read(self, address: int, size: int) -> bytes:
        """Return up to ``size`` bytes at an address; fewer where memory ends, none when spent."""
        if self._descriptor < 0 or size > self._left or not 0 < address < _LAST_ADDRESS:
            return b""
        self._left -= size
        try:
            return os.pread(self._descriptor, size, address)
        except OSError:
            return b""

    def words(self, addresses: _Addresses) -> tuple[_Addresses, npt.NDArray[np.bool_]]:
        """Return the eight-byte words at the addresses, and which of them could be read."""
        values = np.zeros(len(addresses), np.uint64)
        is_read = np.zeros(len(addresses), np.bool_)
        for members, start, data in self._spans(addresses, 8):
            places = (addresses[members] - np.uint64(start)).astype(np.int64)
            whole = places + 8 <= len(data)
            if whole.any():
                windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, "u1"), 8)
                held = np.ascontiguousarray(windows[places[whole]]).view("<u8")[:, 0]
                values[members[whole]] = held
                is_read[members[whole]] = True
            for index in members[~whole].tolist():  # behind a hole in the memory
                word = self.read(int(addresses[index]), 8)
                if len(word) == 8:
                    values[index] = int.from_bytes(word, "little")
                    is_read[index] = True
        return values, is_read

    def strings(self, addresses: _Addresses) -> dict[int, str]:
        """Return the text at each address that could be read; bytes that are no text are absent."""
        found: dict[int, str] = {}
        addresses = np.unique(addresses)
        for members, start, data in self._spans(addresses, _FIRST_STRING_BYTES):
            for address in addresses[members].tolist():
                at = address - start
                end = data.find(b"\0", at)
                text = data[at:end] if end >= 0 else self._string(address)
                if text and text.isascii() and text.decode().isprintable():
                    found[address] = text.decode()
        return found

    def _string(self, address: int) -> bytes | None:
        """A long string, or one at the end of what can be read, page by page."""
        text = b""
        while len(text) < MAX_STRING_BYTES:
            part = self.read(address + len(text), 4096 - (address + len(text)) % 4096)
            end = part.find(b"\0")
            if end >= 0:
                return text + part[:end]
            if not part:
                return None
            text += part
        return None

    def _spans(
        self, addresses: _Addresses, size: int
    ) -> list[tuple[npt.NDArray[np.intp], int, bytes]]:
        """Members (indices), start and bytes of reads that cover ``size`` bytes at each address."""
        if not len(addresses):
            return []
        order = np.argsort(addresses, kind="stable")
        spans = []
        begin = 0
        ordered = addresses[order].tolist()
        for index in range(1, len(ordered) + 1):
            if index < len(ordered) and ordered[index] - ordered[begin] < SPAN_BYTES:
                continue
            start = ordered[begin]
            data = self.read(start, ordered[index - 1] + size - start)
            spans.append((order[begin:index], start, data))
            begin = index
        return spans
