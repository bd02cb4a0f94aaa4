"""Streams the events of a trace file in Chrome's JSON format, plain or gzip, in bounded memory.

A trace is ``{"traceEvents": [EVENT, ...], ...}`` or ``[EVENT, ...]``. It is read in blocks of four
MiB, each of which is cut into events (``json_cuts``).
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from probes.recorded.json_cuts import cut_between, split_exactly
from probes.recorded.recording import Problems, RecordingError
from probes.recorded.words import MAX_BYTES, Bools, Ints, Literal, Words, has_byte

try:
    from isal import isal_zlib

    _INFLATER: Any = isal_zlib
except ImportError:  # not made for every processor; the standard one is three times as slow
    _INFLATER = zlib

GZIP_MAGIC = b"\x1f\x8b"

_BLOCK_BYTES = 4 << 20
_MAX_EVENT_BYTES = 16 << 20
_MAX_HEAD_BYTES = 64 << 20
_MAX_TAIL_BYTES = 16 << 20
#: A gzip stream that grows more than this is no trace (traces grow 10 to 30 times).
_MAX_GZIP_RATIO = 200
_RATIO_CHECK_BYTES = 64 << 20

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_CATEGORY = re.compile(rb'"cat"\s*:\s*"([^"\\]{0,60})"')
_SPACES = re.compile(rb"[ \t\r\n]*")

#: With these bits, ``[`` and ``{`` are the same.
_BRACKET_BITS = np.uint64(0x2020202020202020)
#: Bytes of an event before its category that are looked at at once.
_MAX_BEFORE_CATEGORY = 4 * MAX_BYTES
#: Pairs of a category and its place that are read at once.
_MAX_CATEGORY_PLACES = 40


@dataclass(frozen=True)
class EventBlock:
    """Some consecutive events as bytes.

    Attributes:
        text: What the events stand in; more may follow the last.
        starts: Where each piece begins in it.
        ends: Where each piece ends.
        categories: Code of each piece's category, -1 where it has none.
    """

    text: Words
    starts: Ints
    ends: Ints
    categories: Ints


class EventStream:
    """The events of one file, block by block.

    Attributes:
        header: What stood beside the events in the file; complete after iteration.
        categories: Names of the categories by code; grows during iteration.
    """

    def __init__(self, path: Path, problems: Problems) -> None:
        self.path = path
        self.header: dict[str, Any] = {}
        self.categories: list[str] = []
        self._codes: dict[bytes, int] = {}
        self._problems = problems

    def __iter__(self) -> Iterator[EventBlock]:
        """Yield the blocks.

        Raises:
            RecordingError: the file cannot be read, or something in it is absurdly large.
        """
        try:
            yield from self._split(self.text())
        except OSError as error:
            raise RecordingError(
                f"{self.path} cannot be read ({error.strerror}); check the file"
            ) from None

    def text(self) -> Iterator[bytes]:
        """Yield the unpacked file block by block.

        Raises:
            RecordingError: it grows absurdly when unpacked.
        """
        with self.path.open("rb") as file:
            head = file.read(2)
            file.seek(0)
            if head == GZIP_MAGIC:
                yield from _large(self._inflated(file))
                return
            while block := file.read(_BLOCK_BYTES):
                yield block

    def _inflated(self, file: BinaryIO) -> Iterator[bytes]:
        inflate = _INFLATER.decompressobj(31)
        n_read = n_grown = 0
        data = b""
        while True:
            if not data:
                data = file.read(_BLOCK_BYTES // 32)
                n_read += len(data)
            if not data:
                if not inflate.eof:
                    self._problems.add("end of the file: the gzip stream is cut off")
                return
            if inflate.eof:
                if len(data) < len(GZIP_MAGIC):
                    more = file.read(_BLOCK_BYTES // 32)
                    data, n_read = data + more, n_read + len(more)
                if not data.startswith(GZIP_MAGIC):
                    if data.strip(b"\0"):
                        self._problems.add("rest of the file: no gzip stream")
                    return
                inflate = _INFLATER.decompressobj(31)
            try:
                block = inflate.decompress(data, _BLOCK_BYTES)
            except _INFLATER.error:
                self._problems.add("rest of the file: the gzip stream is damaged")
                return
            data = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
            n_grown += len(block)
            if n_grown > _RATIO_CHECK_BYTES and n_grown > _MAX_GZIP_RATIO * n_read:
                raise RecordingError(
                    f"{self.path} grows more than {_MAX_GZIP_RATIO} times when unpacked, which no "
                    "trace does; unpack it yourself if you trust it"
                )
            if block:
                yield block

    def _split(self, blocks: Iterator[bytes]) -> Iterator[EventBlock]:
        rest = self._skip_head(blocks)
        if rest is None:
            return
        while True:
            done, rest, is_end = self._cut(rest)
            if done is not None:
                yield done
            if is_end:
                self._read_tail(rest, blocks)
                return
            if len(rest) > _MAX_EVENT_BYTES:
                raise RecordingError(
                    f"{self.path} has an event of more than {_MAX_EVENT_BYTES >> 20} MiB; "
                    "this is no profiler's trace"
                )
            more = next(blocks, None)
            if more is None:
                if rest.strip(b" \t\r\n,"):
                    self._problems.add("event cut off at the end of the file")
                return
            rest += more

    def _skip_head(self, blocks: Iterator[bytes]) -> bytes | None:
        """Read up to the first event; return what follows, or None when there is no event."""
        head = b""
        position = 0
        for block in blocks:
            head += block
            if head.lstrip()[:1] == b"[":
                return head.lstrip()[1:].lstrip()
            for match in _EVENTS_KEY.finditer(head, max(0, position - 64)):
                try:
                    header = json.loads(head[: match.end()] + b"]}")
                except (ValueError, RecursionError):
                    continue
                if isinstance(header, dict):
                    self._add_header(header)
                    return head[match.end() :].lstrip()
            position = len(head)
            if position > _MAX_HEAD_BYTES:
                break
        raise RecordingError(
            f"{self.path} has no list 'traceEvents' in its first {_MAX_HEAD_BYTES >> 20} MiB; "
            "export the trace again"
        )

    def _add_header(self, header: dict[str, Any]) -> None:
        header.pop("traceEvents", None)
        self.header.update(header)

    def _cut(self, data: bytes) -> tuple[EventBlock | None, bytes, bool]:
        """Return the complete events at the front, what is left, and whether the list ended."""
        text = Words(data)
        spaces = _SPACES.match(data)
        is_end = spaces is not None and data[spaces.end() : spaces.end() + 1] == b"]"
        cuts = None if is_end else cut_between(text)
        if cuts is not None:
            ends, later, end = cuts
            starts = np.append(text.begin, later)
            block = self._block(text, starts[: len(ends)], ends)
            rest = int(starts[-1]) if end is None else end + 1
            return block, data[rest - text.begin :], end is not None
        exact_starts, exact_ends, end = split_exactly(data)
        block = self._block(text, exact_starts + text.begin, exact_ends + text.begin)
        if end is not None:
            return block, data[end + 1 :], True
        last = int(exact_ends[-1]) if len(exact_ends) else 0
        return block, data[last:].lstrip(b", \t\r\n"), False

    def _block(self, text: Words, starts: Ints, ends: Ints) -> EventBlock | None:
        if not len(ends):
            return None
        return EventBlock(text, starts, ends, self._categories(text, starts, ends))

    def _categories(self, text: Words, starts: Ints, ends: Ints) -> Ints:
        """Code of each piece's category, the pieces that look alike at once.

        Events of one kind have their category at the same place: it is looked for in one piece,
        and all that have the same there have it too.
        """
        codes = np.full(len(starts), -1, np.int64)
        left = np.arange(len(starts))
        nested: list[Ints] = []
        for _ in range(_MAX_CATEGORY_PLACES):
            match = None
            while len(left):
                match = _CATEGORY.search(text.data, int(starts[left[0]]), int(ends[left[0]]))
                if match is not None:
                    break
                left = left[1:]
            if match is None:
                break
            literal = Literal(match[0])
            n_before = match.start() - int(starts[left[0]])
            places = starts[left] + n_before
            is_inside = places + literal.n_bytes <= ends[left]
            fits = is_inside & literal.stands_at(text, np.minimum(places, text.end))
            # Behind a bracket it may be the category of something else.
            found = left[fits]
            is_first = _is_flat(text, starts[found], n_before)
            codes[found[is_first]] = self._code(match[1])
            nested.append(found[~is_first])
            left = left[~fits]
        for piece in np.concatenate([*nested, left]).tolist():
            category = _category_of(text.data[starts[piece] : ends[piece]])
            if category is not None:
                codes[piece] = self._code(category)
        return codes

    def _code(self, category: bytes) -> int:
        code = self._codes.get(category)
        if code is None:
            if len(self._codes) >= 10_000:
                return -1
            code = self._codes[category] = len(self.categories)
            self.categories.append(category.decode("utf-8", "replace"))
        return code

    def _read_tail(self, tail: bytes, blocks: Iterator[bytes]) -> None:
        for block in blocks:
            tail += block
            if len(tail) > _MAX_TAIL_BYTES:
                self._problems.add("text after the events: too long to be read")
                return
        text = tail.strip().lstrip(b",")
        if text in (b"", b"}"):
            return
        try:
            header = json.loads(b"{" + text)
        except (ValueError, RecursionError):
            self._problems.add("text after the events: not readable")
            return
        self._add_header(header)


def _large(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in blocks of some size: each is looked at as a whole."""
    held: list[bytes] = []
    n_held = 0
    for block in blocks:
        held.append(block)
        n_held += len(block)
        if n_held >= _BLOCK_BYTES // 8:
            yield b"".join(held)
            held, n_held = [], 0
    if held:
        yield b"".join(held)


def _is_flat(text: Words, starts: Ints, n_bytes: int) -> Bools:
    """Where no list or object begins in so many bytes behind the first one; none where many."""
    if not 0 < n_bytes <= _MAX_BEFORE_CATEGORY:
        return np.zeros(len(starts), bool)
    is_flat = np.ones(len(starts), bool)
    for begin in range(0, n_bytes, MAX_BYTES):
        n = min(MAX_BYTES, n_bytes - begin)
        before = text.at(np.minimum(starts + begin, text.end), -(-n // 8))
        for index, words in enumerate(before.T):
            # The first byte begins the event, and those behind the last do not count.
            n_first, n_last = int(begin + index == 0), min(8, n - 8 * index)
            mask = np.uint64((1 << 8 * n_last) - (1 << 8 * n_first))
            is_flat &= ~has_byte((words | _BRACKET_BITS) & mask, ord("{"))
    return is_flat


def _category_of(piece: bytes) -> bytes | None:
    """The category of one event; None where it has none."""
    found = list(_CATEGORY.finditer(piece))
    if not found:
        return None
    before = piece[: found[0].start()]
    if len(found) == 1 and before.count(b"{") == before.count(b"}") + 1:
        return found[0][1]
    try:
        event = json.loads(piece)
    except (ValueError, RecursionError):
        return found[0][1]
    category = event.get("cat") if isinstance(event, dict) else None
    return category.encode("utf-8", "replace") if isinstance(category, str) else None
