"""Text that may hold what a stranger wrote, for a terminal: names of processes, notes, paths."""

from __future__ import annotations

import re

#: Control characters except line feed, bytes that were no text, and marks that turn the direction
#: of writing: a process may call itself by any of them, and a terminal would obey.
_UNSAFE = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plain(text: str) -> str:
    """Return the text with ``?`` in the place of each character that a terminal would obey."""
    return _UNSAFE.sub("?", text)


def plain_line(text: str) -> str:
    """Return the same as one line: a line feed in a name cannot begin a line of its own."""
    return plain(text.replace("\n", "?"))


def shorten(text: str, most: int = 60) -> str:
    """Return a text of at most so many characters, for an error that quotes what was typed."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
