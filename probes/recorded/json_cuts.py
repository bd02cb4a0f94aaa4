"""Cuts a list of objects in JSON text into its objects.

Between objects is where one ends and, after a comma, another begins. To cut there is fast, and
wrong only where an object holds a list of objects or a string looks like one; where anything hints
at that, the text is cut by following strings and brackets instead.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from probes.recorded.words import Bools, Ints, Literal, Words

#: An object in a list is last, or followed by something else than an object: the list may be one
#: inside of an event, where a cut between objects is wrong, or the list of events may end.
_DOUBT = re.compile(
    rb'\}\s*(?:\]|,\s*(?:[-\d\[]|true|false|null|NaN|Infinity|"(?:[^"\\]|\\.)*"\s*[,\]]))'
)
#: What follows the list of events; within a string a quote would come before.
_AFTER_LIST = re.compile(rb'\s*(?:\}\s*\Z|,\s*"[^"\\]*"\s*:)')
#: Spaces between two objects at most; where there are more, the text is cut the other way.
_MAX_SPACES = 200
_IS_SPACE = np.zeros(256, bool)
_IS_SPACE[np.frombuffer(b" \t\r\n", np.uint8)] = True
#: The usual text between two objects, and between the ends of one and of the one around it; looked
#: for near the begin.
_BETWEEN = re.compile(rb"\}[ \t\r\n]{0,20},[ \t\r\n]{0,20}\{")
_NESTED = re.compile(rb"\}[ \t\r\n]{0,20}\}")
_EXAMPLE_BYTES = 1 << 16
_ESCAPED = re.compile(rb"\\.", re.DOTALL)

_QUOTE, _OPEN, _CLOSE, _ESCAPE = 1, 2, 3, 4
_CLASSES = np.zeros(256, np.uint8)
for _characters, _class in ((b'"', _QUOTE), (b"[{", _OPEN), (b"]}", _CLOSE), (b"\\", _ESCAPE)):
    _CLASSES[np.frombuffer(_characters, np.uint8)] = _class


def cut_between(text: Words) -> tuple[Ints, Ints, int | None] | None:
    """Cut where an object ends before a comma and an object; None where that may be wrong.

    Returns:
        Where each complete object ends, where those behind the first begin (one more where the last
        is not known to be complete), and where the list ends if it does.
    """
    characters = np.frombuffer(text.data, np.uint8)
    opens = np.flatnonzero(characters == ord("{"))
    closes = np.flatnonzero(characters == ord("}"))
    cuts = _cuts(text, characters, opens)
    if cuts is None:
        return None
    ends, starts = cuts
    # After an object comes another, or the end of the one around it; else there may be doubt.
    is_told = np.zeros(len(closes), bool)
    is_told[np.searchsorted(closes, ends - 1)] = True
    is_told[_nested(text, characters, closes) - 1] = True
    end: int | None = None
    for index in np.flatnonzero(~is_told).tolist():
        place = int(closes[index])
        doubt = _DOUBT.match(text.data, place, text.end)
        if doubt is None:
            continue
        if doubt[0][-1:] != b"]" or int(np.searchsorted(opens, place)) != index + 1:
            return None
        if _AFTER_LIST.match(text.data[doubt.end() : text.end]) is None:
            return None
        # As many objects have begun as have ended: it is the list itself that ends here.
        end = doubt.end() - 1
        ends = np.append(ends[ends <= place], place + 1)
        starts = starts[starts < place]
        break
    n_front = int(ends[-1]) if len(ends) else 0
    if np.searchsorted(opens, n_front) != np.searchsorted(closes, n_front):
        return None
    if _is_in_text(text, characters, n_front):
        return None
    return ends, starts, end


def _is_in_text(text: Words, characters: npt.NDArray[np.uint8], place: int) -> bool:
    """Whether a text between quotes is cut at a place."""
    n_quotes = int(np.count_nonzero(characters[text.begin : place] == ord('"')))
    if text.data.find(b"\\", text.begin, place) >= 0:
        escapes = _ESCAPED.finditer(text.data, text.begin, place)
        n_quotes -= sum(escape[0] == b'\\"' for escape in escapes)
    return n_quotes % 2 == 1


def _cuts(text: Words, characters: npt.NDArray[np.uint8], opens: Ints) -> tuple[Ints, Ints] | None:
    """Where objects end before another, and where that begins; None where any is too far away."""
    example = _BETWEEN.search(text.data, text.begin, _EXAMPLE_BYTES)
    is_cut = _ends_with(text, opens, example)
    starts = opens[is_cut]
    ends = starts - (len(example[0]) - 2 if example else 0)
    others = opens[~is_cut]
    others = others[others > 2]
    n_others = len(others)
    others, at = _back_over_space(characters, others, others - 1)
    if len(others) < n_others:
        return None
    is_cut = characters[at] == ord(",")
    n_others = int(np.count_nonzero(is_cut))
    others, at = _back_over_space(characters, others[is_cut], at[is_cut] - 1)
    if len(others) < n_others:
        return None
    is_cut = characters[at] == ord("}")
    if not is_cut.any():
        return ends, starts
    starts = np.concatenate([starts, others[is_cut]])
    order = np.argsort(starts)
    return np.concatenate([ends, at[is_cut] + 1])[order], starts[order]


def _nested(text: Words, characters: npt.NDArray[np.uint8], closes: Ints) -> Ints:
    """Which of the places where objects end come right after another one."""
    is_nested = _ends_with(text, closes, _NESTED.search(text.data, text.begin, _EXAMPLE_BYTES))
    rows = np.flatnonzero(~is_nested)
    rows = rows[closes[rows] > 0]
    others, at = _back_over_space(characters, closes[rows], closes[rows] - 1)
    is_nested[np.searchsorted(closes, others[characters[at] == ord("}")])] = True
    return np.flatnonzero(is_nested)


def _ends_with(text: Words, places: Ints, example: re.Match[bytes] | None) -> Bools:
    """At which of some places the text ends that was found once."""
    if example is None:
        return np.zeros(len(places), bool)
    n_bytes = len(example[0])
    begins = places - (n_bytes - 1)
    return Literal(example[0]).stands_at(text, np.maximum(begins, 0))


def _back_over_space(
    characters: npt.NDArray[np.uint8], starts: Ints, at: Ints
) -> tuple[Ints, Ints]:
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


def _tokens(data: bytes) -> tuple[Ints, npt.NDArray[np.int8]]:
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


def split_exactly(data: bytes) -> tuple[Ints, Ints, int | None]:
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
