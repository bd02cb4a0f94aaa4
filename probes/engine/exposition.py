"""A fast parser of the Prometheus text format that keeps names exactly as exposed.

``prometheus_client`` renames samples of counters without ``_total`` (TGI, Triton) and strips
families of it; an analyst who greps a session for the name on the page must find it.

A page is nearly the same at every scrape: a line that did not change is compared and nothing else,
and for one that did, the text of its series (name and labels) is parsed once and remembered.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import ne
from typing import Literal

import numpy as np
from numpy.typing import NDArray

#: Series remembered before the memory of a page is dropped (label churn of a hostile page).
MAX_REMEMBERED = 50_000
#: The same for the characters of their texts: names of hundreds of adapters in one label.
MAX_REMEMBERED_CHARACTERS = 16 << 20
#: Most lines of a page that is read; a real one has some 300 to 20,000.
MAX_LINES = 50_000
#: Characters of the shortest line with a sample.
_LEAST_LINE = len("a 1\n")

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*,?\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", '"': '"', "\\": "\\"}


@dataclass(frozen=True, eq=False)
class Series:
    """One time series of a page: its name as exposed and its labels; compared by identity."""

    name: str
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Exposition:
    """One parsed page.

    Attributes:
        series: The series in the order of the page; the same object as that of the page before
            where nothing but values changed. Not to be changed.
        values: Value of each series.
        types: Declared type by name of the family.
        n_bad_lines: Lines that could not be read.
        is_complete: Whether the text ended in a line feed, as the format demands: half a page does
            not.
        is_too_long: Whether it has more lines than are read: then there are no series.
    """

    series: Sequence[Series]
    values: NDArray[np.float64]
    types: Mapping[str, str]
    n_bad_lines: int
    is_complete: bool
    is_too_long: bool = False

    @property
    def samples(self) -> list[tuple[Series, float]]:
        """Each series with its value."""
        return list(zip(self.series, self.values.tolist(), strict=True))


class ExpositionParser:
    """Parses pages of one endpoint; not thread-safe."""

    def __init__(self) -> None:
        self._remembered: dict[str, Series] = {}
        self._types: dict[str, str] = {}
        self._comments: set[str] = set()
        self._n_characters = 0
        self._lines: list[str] = []
        #: Where the sample of each line is in ``_series``, -1 where it has none.
        self._places: list[int] = []
        self._series: list[Series] = []
        self._values: NDArray[np.float64] = np.empty(0)
        self._n_bad = 0

    def parse(self, text: str) -> Exposition:
        """Return the samples of a page in order; lines that are none are skipped and counted."""
        is_full = self._n_characters > MAX_REMEMBERED_CHARACTERS
        if is_full or max(len(self._remembered), len(self._comments)) > MAX_REMEMBERED:
            self._forget()
        if len(text) >= _LEAST_LINE * MAX_LINES and text.count("\n") >= MAX_LINES:
            self._forget()
            self._series, self._values = [], np.empty(0)
            return Exposition([], np.empty(0), {}, 0, text.endswith("\n"), True)
        # Not splitlines(): label values may hold other line boundaries.
        lines = text.split("\n")
        if not self._update(lines):
            self._read_anew(lines)
        self._lines = lines
        return Exposition(
            self._series, self._values.copy(), self._types, self._n_bad, text.endswith("\n")
        )

    def _forget(self) -> None:
        self._remembered.clear()
        self._comments.clear()
        self._n_characters = 0
        self._types = {}
        self._lines = []

    def _update(self, lines: list[str]) -> bool:
        """Take over what changed since the last page; False where more than values did."""
        if len(lines) != len(self._lines):
            return False
        for line in compress(range(len(lines)), map(ne, lines, self._lines)):
            place = self._places[line]
            result = self._line(lines[line]) if place >= 0 else None
            if result is None or result[0] is not self._series[place]:
                return False
            self._values[place] = result[1]
        return True

    def _read_anew(self, lines: list[str]) -> None:
        """Read every line of a page."""
        self._n_bad = 0
        results = [self._judge(line) for line in lines]
        samples = [result for result in results if result]
        self._series = [series for series, _ in samples]
        self._values = np.array([value for _, value in samples], np.float64)
        index = iter(range(len(samples)))
        self._places = [next(index) if result else -1 for result in results]

    def _judge(self, line: str) -> tuple[Series, float] | Literal[False] | None:
        """The sample of one line; None for a comment or an empty line; False (counted) for none."""
        result = self._line(line)
        if result is None and line and line[0] != "#" and line.strip():
            self._n_bad += 1
            return False
        return result

    def _line(self, line: str) -> tuple[Series, float] | None:
        """The sample of one line; None for a comment, an empty line, and one that is none."""
        if not line or line[0] == "#":
            if line and line not in self._comments:
                self._comment(line)
            return None
        text_of_series, _, value = line.rpartition(" ")
        series = self._remembered.get(text_of_series)
        if series is not None:
            try:
                return series, float(value)
            except ValueError:
                pass
        slow = _parse_line(line)
        if slow is None:
            return None
        series, number, is_plain = slow
        if is_plain:
            self._remembered[text_of_series] = series
            self._n_characters += len(text_of_series)
        return series, number

    def _comment(self, line: str) -> None:
        """Remember a comment, and the type it declares if it does."""
        self._comments.add(line)
        self._n_characters += len(line)
        words = line.split()
        if len(words) >= 4 and words[1] == "TYPE":
            self._types[words[2]] = words[3]


def parse_exposition(text: str) -> Exposition:
    """Return the samples of one page in order; lines that are none are skipped and counted."""
    return ExpositionParser().parse(text)


def _parse_line(line: str) -> tuple[Series, float, bool] | None:
    """One line read with care: its series, value, and whether a single space parts the two."""
    match = _NAME.match(line.lstrip(" \t"))
    if match is None:
        return None
    name = match[0]
    position = line.index(name) + len(name)
    labels: dict[str, str] = {}
    if line[position : position + 1] == "{" or line[position:].lstrip().startswith("{"):
        position = line.index("{", position) + 1
        while True:
            label = _LABEL.match(line, position)
            if label is None:
                break
            labels[label[1]] = _ESCAPE.sub(_unescape, label[2]) if "\\" in label[2] else label[2]
            position = label.end()
        rest = line[position:].lstrip(" \t,")
        if not rest.startswith("}"):
            return None
        rest = rest[1:]
    else:
        rest = line[position:]
        if rest[:1] not in (" ", "\t"):
            return None
    words = rest.split()
    if not words or (len(words) > 2 and words[1] != "#" and words[2] != "#"):
        return None
    try:
        number = float(words[0])
        if len(words) > 1 and words[1] != "#":
            float(words[1])
    except ValueError:
        return None
    is_plain = len(words) == 1 and line.endswith(" " + words[0]) and len(rest) == len(words[0]) + 1
    return Series(name, labels), number, is_plain


def _unescape(match: re.Match[str]) -> str:
    return _ESCAPED.get(match[1], match[0])
