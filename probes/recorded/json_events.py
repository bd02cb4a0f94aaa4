"""Streams the events of a trace file in Chrome's JSON format, plain or gzip, in bounded memory.

A trace is ``{"traceEvents": [EVENT, ...], ...}`` or ``[EVENT, ...]``. It is read in blocks of two
MiB. A block is cut between events where one object ends and, after a comma, another begins.
That is fast, and wrong only where an event holds a list of objects or a string looks like one;
where anything hints at that, the block is cut by following strings and brackets instead.
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
import numpy.typing as npt

from probes.recorded.recording import Problems, RecordingError

_Ints = npt.NDArray[np.int64]

GZIP_MAGIC = b"\x1f\x8b"

_BLOCK_BYTES = 2 << 20
_MAX_EVENT_BYTES = 16 << 20
_MAX_HEAD_BYTES = 64 << 20
_MAX_TAIL_BYTES = 16 << 20
#: A gzip stream that grows more than this is no trace (traces grow 10 to 30 times).
_MAX_GZIP_RATIO = 200
_RATIO_CHECK_BYTES = 64 << 20

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
#: An object in a list is last, or followed by something else than an object: the list may be one
#: inside of an event, where a cut between objects is wrong, or the list of events may end.
_DOUBT = re.compile(
    rb'\}\s*(?:\]|,\s*(?:[-\d\[]|true|false|null|NaN|Infinity|"(?:[^"\\]|\\.)*"\s*[,\]]))'
)
_CATEGORY = re.compile(rb'"cat"\s*:\s*"([^"\\]{0,60})"')

#: Spaces between two events at most; events further apart are cut with the next.
_MAX_SPACES = 200
_IS_SPACE = np.zeros(256, bool)
_IS_SPACE[np.frombuffer(b" \t\r\n", np.uint8)] = True
#: Layouts of events that are read at once, and the longest category read that way.
_MAX_LAYOUTS = 12
_MAX_CATEGORY_BYTES = 24
_HASH_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)
_ZERO = np.zeros(1, np.int64)

_QUOTE, _OPEN, _CLOSE, _ESCAPE = 1, 2, 3, 4
_CLASSES = np.zeros(256, np.uint8)
for _characters, _class in ((b'"', _QUOTE), (b"[{", _OPEN), (b"]}", _CLOSE), (b"\\", _ESCAPE)):
    _CLASSES[np.frombuffer(_characters, np.uint8)] = _class


@dataclass(frozen=True)
class EventBlock:
    """Some consecutive events as bytes.

    Attributes:
        raw: The events with what lies between them.
        starts: Where each piece begins in ``raw``.
        ends: Where each piece ends.
        categories: Code of each piece's category, -1 where it has none.
    """

    raw: bytes
    starts: _Ints
    ends: _Ints
    categories: npt.NDArray[np.int64]


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
            yield from self._read(file)

    def _read(self, file: BinaryIO) -> Iterator[bytes]:
        head = file.read(2)
        file.seek(0)
        if head != GZIP_MAGIC:
            while block := file.read(_BLOCK_BYTES):
                yield block
            return
        inflate = zlib.decompressobj(31)
        n_read = n_grown = 0
        data = b""
        while True:
            if not data:
                data = file.read(_BLOCK_BYTES // 16)
                n_read += len(data)
            if not data:
                if not inflate.eof:
                    self._problems.add("end of the file: the gzip stream is cut off")
                return
            if inflate.eof:
                if not data.startswith(GZIP_MAGIC):
                    return
                inflate = zlib.decompressobj(31)
            try:
                block = inflate.decompress(data, _BLOCK_BYTES)
            except zlib.error:
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
                return head.lstrip()[1:]
            for match in _EVENTS_KEY.finditer(head, max(0, position - 64)):
                try:
                    header = json.loads(head[: match.end()] + b"]}")
                except (ValueError, RecursionError):
                    continue
                if isinstance(header, dict):
                    self._add_header(header)
                    return head[match.end() :]
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
        characters = np.frombuffer(data, np.uint8)
        ends, starts = _cuts(characters)
        n_front = int(ends[-1]) if len(ends) else 0
        if (
            _is_balanced(characters[:n_front])
            and not _DOUBT.search(data)
            and data.lstrip()[:1] != b"]"
        ):
            block = self._block(data, np.concatenate([_ZERO, starts[:-1]]), ends)
            return block, data[starts[-1] :] if len(starts) else data, False
        exact_starts, exact_ends, end = split_exactly(data)
        block = self._block(data, exact_starts, exact_ends)
        if end is not None:
            return block, data[end + 1 :], True
        last = int(exact_ends[-1]) if len(exact_ends) else 0
        return block, data[last:].lstrip(b", \t\r\n"), False

    def _block(self, data: bytes, starts: _Ints, ends: _Ints) -> EventBlock | None:
        if not len(ends):
            return None
        end = int(ends[-1])
        return EventBlock(data[:end], starts, ends, self._categories(data, starts, ends))

    def _categories(self, data: bytes, starts: _Ints, ends: _Ints) -> _Ints:
        """Code of each piece's category, the pieces that look alike at once.

        Events of one kind have their category at the same place: it is looked for in one piece
        and then read from all that have it there.
        """
        characters = np.frombuffer(data, np.uint8)
        codes = np.full(len(starts), -1, np.int64)
        left = np.arange(len(starts))
        for _ in range(_MAX_LAYOUTS):
            while len(left):
                match = _CATEGORY.search(data, int(starts[left[0]]), int(ends[left[0]]))
                if match is not None:
                    break
                left = left[1:]
            if not len(left) or match is None:
                return codes
            key = np.frombuffer(match[0][: match.start(1) - match.start()], np.uint8)
            at = starts[left] + (match.start() - starts[left[0]])
            fits = np.flatnonzero(at + len(key) + _MAX_CATEGORY_BYTES < ends[left])
            for place, character in enumerate(key.tolist()):
                fits = fits[characters[at[fits] + place] == character]
            if len(fits):
                begin = at[fits] + len(key)
                words = characters[begin[:, None] + np.arange(_MAX_CATEGORY_BYTES)]
                codes[left[fits]], is_read = self._codes_of(words)
                fits = fits[is_read]
            if not len(fits):
                codes[left[0]] = self._code(match[1])
                fits = np.zeros(1, np.int64)
            rest = np.ones(len(left), bool)
            rest[fits] = False
            left = left[rest]
        for piece in left.tolist():
            match = _CATEGORY.search(data, int(starts[piece]), int(ends[piece]))
            if match is not None:
                codes[piece] = self._code(match[1])
        return codes

    def _codes_of(self, words: npt.NDArray[np.uint8]) -> tuple[_Ints, npt.NDArray[np.bool_]]:
        """Codes of categories that begin each row and end with a quote, and where one does."""
        length = np.argmax(words == ord('"'), axis=1)
        is_read = words[np.arange(len(words)), length] == ord('"')
        is_inside = np.arange(words.shape[1]) < length[:, None]
        is_read &= ~((words == ord("\\")) & is_inside).any(axis=1)
        padded = np.where(is_inside, words, 0)
        text = padded.view(np.dtype((np.bytes_, words.shape[1]))).ravel()
        # Numbers sort faster than texts; two texts of one number are told apart below.
        hashes = (padded.view(np.uint64) * _HASH_FACTORS).sum(axis=1)
        _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        is_read &= text == text[first][inverse]
        known = np.array([self._code(word) for word in text[first].tolist()], np.int64)
        return np.where(is_read, known[inverse], -1), is_read

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


def _cuts(characters: npt.NDArray[np.uint8]) -> tuple[_Ints, _Ints]:
    """Return where an object ends before a comma and an object, and where that one begins."""
    starts = np.flatnonzero(characters == ord("{"))
    starts = starts[starts > 2]
    starts, at = _back_over_space(characters, starts, starts - 1)
    is_cut = characters[at] == ord(",")
    starts, at = _back_over_space(characters, starts[is_cut], at[is_cut] - 1)
    is_cut = characters[at] == ord("}")
    return at[is_cut] + 1, starts[is_cut]


def _back_over_space(
    characters: npt.NDArray[np.uint8], starts: _Ints, at: _Ints
) -> tuple[_Ints, _Ints]:
    """Move each position back to the last character that is no space; drop those that have none."""
    for _ in range(_MAX_SPACES):
        is_space = _IS_SPACE[characters[at]]
        if not is_space.any():
            return starts, at
        at = at - is_space
        if at.min(initial=0) < 0:
            starts, at = starts[at >= 0], at[at >= 0]
    keep = ~_IS_SPACE[characters[at]]
    return starts[keep], at[keep]


def _is_balanced(characters: npt.NDArray[np.uint8]) -> bool:
    """Whether as many objects end as begin."""
    opened = np.count_nonzero(characters == ord("{"))
    return bool(opened == np.count_nonzero(characters == ord("}")))


def _tokens(data: bytes) -> tuple[_Ints, npt.NDArray[np.int8]]:
    """Positions of the brackets outside of strings, and +1 or -1 for each."""
    characters = np.frombuffer(data, np.uint8)
    classes = _CLASSES[characters]
    if b"\\" in data:
        escapes = np.flatnonzero(classes == _ESCAPE)
        index = np.arange(len(escapes))
        is_first = np.r_[True, escapes[1:] != escapes[:-1] + 1]
        in_run = index - np.maximum.accumulate(np.where(is_first, index, 0))
        escaped = escapes[in_run % 2 == 0] + 1
        classes[escaped[escaped < len(classes)]] = 0
    positions = np.flatnonzero(classes)
    kinds = classes[positions]
    is_outside = np.cumsum(kinds == _QUOTE) % 2 == 0
    is_bracket = is_outside & ((kinds == _OPEN) | (kinds == _CLOSE))
    return positions[is_bracket], np.where(kinds[is_bracket] == _OPEN, 1, -1).astype(np.int8)


def split_exactly(data: bytes) -> tuple[_Ints, _Ints, int | None]:
    """Return where each complete object of a sequence begins and ends, strings respected.

    Last is where the sequence ends: at the first closing bracket without an opening one, None
    where there is none.
    """
    positions, steps = _tokens(data)
    depth = np.cumsum(steps, dtype=np.int64)
    below = np.flatnonzero(depth < 0)
    end = int(positions[below[0]]) if len(below) else None
    if end is not None:
        n = below[0]
        positions, steps, depth = positions[:n], steps[:n], depth[:n]
    starts = positions[(steps == 1) & (depth == 1)]
    ends = positions[(steps == -1) & (depth == 0)] + 1
    return starts[: len(ends)], ends, end
