"""Columns from the events of a Kineto trace: by their layout where they have one, else parsed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from probes.recorded.json_events import EventBlock
from probes.recorded.kineto_arrow import ArrowParser
from probes.recorded.kineto_fields import (
    ARGUMENTS,
    CALL,
    DEVICE,
    PYTHON,
    RANGE,
    REDUNDANT,
    SYNC,
    TASK,
    TIMES,
    EventRows,
    group_of,
    has_task,
)
from probes.recorded.layouts import Fields, Layouts
from probes.recorded.recording import NAME_CHARACTERS, Problems

_Ints = npt.NDArray[np.int64]

_GROUPS = (DEVICE, SYNC, CALL, RANGE, PYTHON)
#: Place of the events that are not imported, behind the groups.
_OTHER = len(_GROUPS)


class BlockParser:
    """Turns the blocks of one trace into rows.

    Args:
        keep_python: Whether Python function ranges are kept.
        problems: Where skipped events are counted.
        layouts: Layouts met so far; more are added.
    """

    def __init__(self, keep_python: bool, problems: Problems, layouts: Layouts) -> None:
        self._keep_python = keep_python
        self._problems = problems
        self._layouts = layouts
        self._parser = ArrowParser(problems)

    def rows(self, block: EventBlock, categories: list[str]) -> Iterator[EventRows]:
        """Yield the rows of a block, group by group; what is not imported is counted.

        Args:
            block: The events.
            categories: Names of the categories by code.
        """
        groups = [group_of(name) for name in categories] + [None]
        places = [_OTHER if group is None else _GROUPS.index(group) for group in groups]
        members = np.array(places, np.int8)[block.categories]
        counts = np.bincount(block.categories + 1, minlength=len(groups))
        self._count_others(counts.tolist(), categories, places)
        known = [name.lower() for name in categories]
        for place, group in enumerate(_GROUPS):
            pieces = np.flatnonzero(members == place)
            if len(pieces) == 0:
                continue
            if group == PYTHON and not self._keep_python:
                reason = "Python function of a large trace: left out"
                self._problems.add(reason, len(pieces))
                continue
            yield from self._group_rows(block, pieces, group, known)

    def _group_rows(
        self, block: EventBlock, pieces: _Ints, group: str, names: list[str]
    ) -> Iterator[EventRows]:
        starts, ends = block.starts[pieces], block.ends[pieces]
        found, left = self._layouts.read(block.text, starts, ends, group)
        if len(left):
            parsed = self._parser.rows(block, pieces[left], group, names)
            if parsed is None:
                # Where it is not certain that the pieces are events, none is read as one.
                found = []
                parsed = self._parser.tolerant_rows(block, group)
            if parsed is not None and len(parsed.start_ns):
                yield parsed
        if found:
            rows = _together(found, len(pieces), group)
            yield replace(rows, category=block.categories[pieces[rows.category]], categories=names)

    def _count_others(self, counts: list[int], categories: list[str], places: list[int]) -> None:
        reason = "event without category (metadata, marks, memory): not imported"
        self._problems.add(reason, counts[0])
        for name, place, count in zip(categories, places, counts[1:], strict=False):
            if place != _OTHER:
                continue
            if name.lower() in REDUNDANT:
                reason = "link or summary event: says nothing that others do not"
            else:
                reason = f"event of category '{name[:60]}': not imported"
            self._problems.add(reason, count)


def _together(found: list[Fields], n_pieces: int, group: str) -> EventRows:
    """What was read of some pieces, in their order; the category is the index of the piece."""
    is_read = np.zeros(n_pieces, bool)
    for fields in found:
        is_read[fields.rows] = True
    place = np.cumsum(is_read) - 1
    n = int(place[-1]) + 1
    wanted = ARGUMENTS[group]
    integers = {name: _absent(n) for name in (TASK if has_task(group) else ())}
    integers |= {name: _absent(n) for name in (wanted.integers if wanted else ())}
    triples = {name: _absent(n, 3) for name in (wanted.triples if wanted else ())}
    flags = {name: np.zeros(n, bool) for name in (wanted.texts if wanted else ())}
    begin, length, code = (np.empty(n, np.int64) for _ in range(3))
    names: list[str] = []
    for fields in found:
        at = place[fields.rows]
        read = fields.integers
        begin[at], length[at] = (read[name] for name in TIMES)
        code[at] = fields.name + len(names)
        names += (text[:NAME_CHARACTERS] for text in fields.names)
        for name, (values, is_null) in integers.items():
            if name in read:
                values[at], is_null[at] = read[name], False
        for name, (values, is_null) in triples.items():
            if f"{name}.0" in read:
                axes = np.stack([read[f"{name}.{axis}"] for axis in range(3)], axis=1)
                values[at], is_null[at] = axes, (axes < 0).any(axis=1)
        for name in fields.flags:
            flags[name][at] = True
    pieces = np.flatnonzero(is_read)
    return EventRows(group, begin, length, code, names, pieces, (), integers, triples, flags)


def _absent(n: int, *shape: int) -> tuple[_Ints, npt.NDArray[np.bool_]]:
    """A column without any value."""
    return np.zeros((n, *shape), np.int64), np.ones(n, bool)
