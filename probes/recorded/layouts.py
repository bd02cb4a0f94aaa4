"""Reads events that are written like one another at once: all fields that are wanted, no parser.

Profilers write each kind of event with the same keys in the same order and the same spaces; only
numbers and names differ. The layout of one event is learned by taking it apart; others are then
compared with it byte by byte where it has keys and brackets, and their numbers and names are read
where it has some. What differs in anything else does not fit, and is left to a parser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from probes.recorded.kineto_fields import ARGUMENTS, TASK, TIMES, Arguments, has_task
from probes.recorded.words import Bools, Ints, Literal, Words

#: Layouts per group, fields of a layout, and events in a row that teach none, at most.
MAX_LAYOUTS = 16
_MAX_STEPS = 64
_MAX_ODD = 3
#: A longer event is no example.
_MAX_EXAMPLE_BYTES = 1 << 16

_TOKEN = re.compile(
    rb'[ \t\r\n]+|[{}\[\]:,]|"[^"\\\x00-\x1f]*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null'
)
_ODD_NAME = re.compile(rb"[\x00-\x1f\\]")


@dataclass
class Fields:
    """What was read from some events; one row is one event.

    Attributes:
        rows: Which of the given events they are, ascending.
        integers: By field: ts and dur in ns, whole numbers as they are.
        name: Index of each one's name in ``names``.
        names: The names.
        flags: Texts that all of them have.
    """

    rows: Ints
    integers: dict[str, Ints]
    name: Ints
    names: list[str]
    flags: frozenset[str]


@dataclass
class _Reading:
    """Rows of a layout while they are read.

    Attributes:
        text: What they stand in.
        rows: Which of the events they are.
        at: Where each is read on.
        integers: What was read by field.
        name: Where each one's name begins and ends.
    """

    text: Words
    rows: Ints
    at: Ints
    integers: dict[str, Ints] = field(default_factory=dict)
    name: tuple[Ints, Ints] | None = None

    def keep(self, fits: Bools) -> None:
        """Drop the rows that do not fit."""
        if fits.all():
            return
        self.rows, self.at = self.rows[fits], self.at[fits]
        self.integers = {name: values[fits] for name, values in self.integers.items()}
        if self.name is not None:
            self.name = self.name[0][fits], self.name[1][fits]


_Step = Callable[[_Reading], None]


class Layout:
    """How one kind of event is written.

    Args:
        opening: Text up to the first field.
        steps: What to read, one after the other.
        is_whole: The steps lead to the end of the event.
        flags: Texts that these events have.
    """

    def __init__(
        self, opening: bytes, steps: list[_Step], is_whole: bool, flags: frozenset[str]
    ) -> None:
        self._opening = Literal(opening)
        self._steps = steps
        self._is_whole = is_whole
        self._flags = flags

    def read(self, text: Words, starts: Ints, ends: Ints) -> Fields | None:
        """Return the fields of the events that are written so; None for no event."""
        rows = np.flatnonzero(self._opening.stands_at(text, starts))
        reading = _Reading(text, rows, starts[rows] + self._opening.n_bytes)
        for step in self._steps:
            if not len(reading.rows):
                return None
            step(reading)
        end = ends[reading.rows]
        reading.keep((reading.at == end) if self._is_whole else (reading.at < end))
        assert reading.name is not None
        code, words = _distinct_texts(text.data, *reading.name)
        names = [_readable(word) for word in words]
        if None in names:
            is_readable = np.array([name is not None for name in names], bool)[code]
            reading.keep(is_readable)
            code = code[is_readable]
        if not len(reading.rows):
            return None
        known = [name or "" for name in names]
        return Fields(reading.rows, reading.integers, code, known, self._flags)


class Layouts:
    """The layouts of the events of one recording, as far as they were met."""

    def __init__(self) -> None:
        self._known: dict[str, list[Layout]] = {}

    def read(self, text: Words, starts: Ints, ends: Ints, group: str) -> tuple[list[Fields], Ints]:
        """Return what could be read of the events of one group, and which could not be.

        Args:
            text: What the events stand in.
            starts: Where each begins, ascending.
            ends: Where each ends.
            group: Group of all of them.
        """
        known = self._known.setdefault(group, [])
        left = np.arange(len(starts))
        found: list[Fields] = []
        odd: list[int] = []
        index = 0
        while len(left):
            if index == len(known):
                if len(known) == MAX_LAYOUTS or len(odd) > _MAX_ODD:
                    break
                first = int(left[0])
                layout = learn(text.data[starts[first] : ends[first]], group)
                if layout is None or layout.read(text, starts[left[:1]], ends[left[:1]]) is None:
                    odd.append(first)
                    left = left[1:]
                    continue
                known.append(layout)
            fields = known[index].read(text, starts[left], ends[left])
            index += 1
            if fields is None:
                continue
            is_left = np.ones(len(left), bool)
            is_left[fields.rows] = False
            fields.rows = left[fields.rows]
            found.append(fields)
            left = left[is_left]
        return found, np.sort(np.concatenate([np.array(odd, np.int64), left]))


def _distinct_texts(data: bytes, begins: Ints, ends: Ints) -> tuple[Ints, list[bytes]]:
    """Return the code of the text between each pair of places, and the texts."""
    n = len(begins)
    if not n:
        return np.empty(0, np.int64), []
    offsets = np.empty(2 * n, np.int32)
    offsets[::2], offsets[1::2] = begins, ends
    # What lies between two texts is one too, and null.
    is_text = np.full((2 * n - 1 + 7) // 8, 0b01010101, np.uint8)
    texts = pa.Array.from_buffers(
        pa.binary(),
        2 * n - 1,
        [pa.py_buffer(is_text), pa.py_buffer(offsets), pa.py_buffer(data)],
    )
    encoded = texts.dictionary_encode()
    codes = np.frombuffer(encoded.indices.buffers()[1], np.int32, 2 * n - 1)[::2]
    return codes.astype(np.int64), encoded.dictionary.to_pylist()


def _readable(word: bytes) -> str | None:
    """The text that JSON means by what stands between two quotes; None where it takes a parser."""
    if _ODD_NAME.search(word):
        return None
    try:
        return word.decode()
    except UnicodeDecodeError:
        return None


def _literal(text: bytes) -> _Step:
    literal = Literal(text)

    def step(reading: _Reading) -> None:
        fits = literal.stands_at(reading.text, reading.at)
        reading.at = reading.at + literal.n_bytes
        reading.keep(fits)

    return step


def _number(name: str | None, stop: int) -> _Step:
    """Read a number up to a character; keep it where it has a name."""

    def step(reading: _Reading) -> None:
        if name is None:
            reading.at, is_number = reading.text.numbers(reading.at, stop)
        else:
            text = reading.text
            read = text.nanoseconds if name in TIMES else text.integers
            reading.integers[name], reading.at, is_number = read(reading.at, stop)
        reading.keep(is_number)

    return step


def _text(is_name: bool) -> _Step:
    def step(reading: _Reading) -> None:
        begin = reading.at
        reading.at, is_text = reading.text.quotes_after(begin)
        if is_name:
            reading.name = (begin, reading.at)
        reading.keep(is_text)

    return step


def learn(event: bytes, group: str) -> Layout | None:
    """Return the layout of an event, or None where it is not to be read that way."""
    if len(event) > _MAX_EXAMPLE_BYTES:
        return None
    try:
        value = json.loads(event, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("ph") != "X":
        return None
    return _Learner(event, has_task(group), ARGUMENTS[group]).layout()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; a ValueError where a key is there twice, of which the last holds."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key is there twice")
    return value


class _Learner:
    """Takes one event apart, which is valid JSON.

    Args:
        event: The event.
        has_task: Its process and thread are wanted.
        arguments: Which of its arguments are wanted; None where none are.
    """

    def __init__(self, event: bytes, has_task: bool, arguments: Arguments | None) -> None:
        self._event = event
        self._arguments = arguments
        self._needed = {"name", *TIMES, *(TASK if has_task else ())}
        self._parts: list[bytes | _Step] = []
        self._fixed = bytearray()
        self._flags: set[str] = set()
        self._seen: set[str] = set()

    def layout(self) -> Layout | None:
        """Return its layout, or None."""
        path: list[tuple[bytes, str]] = []
        key, is_key, index, position = "", True, 0, 0
        is_whole = True
        while position < len(self._event):
            token = _TOKEN.match(self._event, position)
            if token is None or len(self._parts) > _MAX_STEPS:
                return None
            word, position = token[0], token.end()
            kind = word[:1]
            if kind in b'"-0123456789tfn' and not is_key:
                if not self._add(word, path, key, index, self._event[position]):
                    return None
                continue
            self._fixed += word
            if kind in b"{[":
                if self._is_odd(kind, path, key):
                    return None
                path.append((kind, key))
                index, is_key = 0, kind == b"{"
                if len(path) == 2 and is_key and key == "args" and self._ends_at_arguments():
                    is_whole = False
                    break
            elif kind in b"}]":
                _, key = path.pop()
            elif kind == b",":
                is_key = path[-1][0] == b"{"
                index += 1
            elif kind == b'"':
                key, is_key = word[1:-1].decode("utf-8", "replace"), False
        self._close()
        if not self._needed <= self._seen or not self._are_triples_whole():
            return None
        opening, *parts = self._parts
        assert isinstance(opening, bytes)
        steps = [_literal(part) if isinstance(part, bytes) else part for part in parts]
        return Layout(opening, steps, is_whole, frozenset(self._flags))

    def _ends_at_arguments(self) -> bool:
        """Whether nothing of interest is in or behind the arguments."""
        return self._arguments is None and self._needed <= self._seen

    def _is_odd(self, kind: bytes, path: list[tuple[bytes, str]], key: str) -> bool:
        """Whether a wanted argument is a list or an object, and should not be."""
        wanted = self._arguments
        if wanted is None or len(path) < 2 or path[1] != (b"{", "args"):
            return False
        if len(path) > 2:
            return path[2][1] in wanted.triples
        is_object = kind == b"{"
        return (
            key in wanted.integers or key in wanted.texts or (key in wanted.triples and is_object)
        )

    def _are_triples_whole(self) -> bool:
        for triple in self._arguments.triples if self._arguments else ():
            parts = {name for name in self._seen if name.startswith(f"args.{triple}.")}
            if parts and parts != {f"args.{triple}.{axis}" for axis in range(3)}:
                return False
        return True

    def _add(
        self, word: bytes, path: list[tuple[bytes, str]], key: str, index: int, stop: int
    ) -> bool:
        """Take over a value; False where the event is not to be read that way."""
        is_text, is_number = word[:1] == b'"', word[:1] in b"-0123456789"
        name, is_flag = self._name([kind for kind, _ in path], path, key, index)
        if name in self._seen:
            return False
        if name:
            self._seen.add(name)
        if name in ("ph", "cat") or word in (b"null", b"true", b"false"):
            self._fixed += word
            is_absent = word == b"null" and name.startswith("args.") and name.count(".") == 1
            return not name or name in ("ph", "cat") or is_absent
        if name == "name" or is_flag:
            self._flags.update((key,) if is_flag else ())
            return is_text and self._slot(_text(is_name=not is_flag), quoted=True)
        if name:
            return is_number and self._slot(_number(name.removeprefix("args."), stop))
        if is_text:
            return self._slot(_text(is_name=False), quoted=True)
        return self._slot(_number(None, stop))

    def _name(
        self, kinds: list[bytes], path: list[tuple[bytes, str]], key: str, index: int
    ) -> tuple[str, bool]:
        """A value's field, empty where it is not wanted; whether only to be there counts."""
        if kinds == [b"{"]:
            return (key if key in self._needed or key in ("ph", "cat") else ""), False
        wanted = self._arguments
        if wanted is None or kinds[:2] != [b"{", b"{"] or path[1][1] != "args":
            return "", False
        if len(kinds) == 2 and (key in wanted.integers or key in wanted.texts):
            return f"args.{key}", key in wanted.texts
        if kinds[2:] == [b"["] and path[2][1] in wanted.triples:
            return f"args.{path[2][1]}.{index}", False
        return "", False

    def _slot(self, step: _Step, quoted: bool = False) -> bool:
        self._fixed += b'"' * quoted
        self._close()
        self._parts.append(step)
        self._fixed += b'"' * quoted
        return True

    def _close(self) -> None:
        """End the text that all events have."""
        if self._fixed:
            self._parts.append(bytes(self._fixed))
            self._fixed.clear()
