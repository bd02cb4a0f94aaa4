"""A fast parser of the Prometheus text format that keeps names exactly as exposed.

``prometheus_client`` renames samples of counters without ``_total`` (TGI, Triton) and strips
families of it; an analyst who greps a session for the name on the page must find it.

A page is nearly the same at every scrape, so the text of a series (name and labels) is parsed
once and remembered; afterwards a line costs one dictionary look-up and one ``float``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import compress
from operator import ne
from typing import Literal

#: Series remembered before the memory of a page is dropped (label churn of a hostile page).
MAX_REMEMBERED = 50_000

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
    """One parsed page: series with their values in order, declared types, and what was unreadable.

    ``types`` maps a family's name to its declared type. ``is_complete`` tells whether the text
    ended in a line feed, as the format demands: half a page does not.
    """

    samples: list[tuple[Series, float]]
    types: Mapping[str, str]
    n_bad_lines: int
    is_complete: bool


class ExpositionParser:
    """Parses pages of one endpoint; not thread-safe."""

    def __init__(self) -> None:
        self._remembered: dict[str, Series] = {}
        self._types: dict[str, str] = {}
        self._comments: set[str] = set()
        self._lines: list[str] = []
        self._results: list[tuple[Series, float] | Literal[False] | None] = []
        self._n_bad = 0

    def parse(self, text: str) -> Exposition:
        """Return the samples of a page in order; lines that are none are skipped and counted."""
        if len(self._remembered) > MAX_REMEMBERED or len(self._comments) > MAX_REMEMBERED:
            self._remembered.clear()
            self._comments.clear()
            self._types = {}
            self._lines = []
        # Not splitlines(): label values may hold other line boundaries.
        lines = text.split("\n")
        if len(lines) == len(self._lines):
            # Most lines of a page are the same as at the last scrape, in the same place.
            for place in list(compress(range(len(lines)), map(ne, lines, self._lines))):
                self._n_bad -= self._results[place] is False
                self._results[place] = self._judge(lines[place])
        else:
            self._n_bad = 0
            self._results = list(map(self._judge, lines))
        self._lines = lines
        samples = [result for result in self._results if result]
        return Exposition(samples, self._types, self._n_bad, text.endswith("\n"))

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
        return series, number

    def _comment(self, line: str) -> None:
        """Remember a comment, and the type it declares if it does."""
        self._comments.add(line)
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
