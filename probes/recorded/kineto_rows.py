"""Columns from the events of a Kineto trace: by their layout where they have one, else parsed."""

from __future__ import annotations

from collections.abc import Iterator

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
from probes.recorded.words import Words

_Ints = npt.NDArray[np.int64]

_GROUPS = (DEVICE, SYNC, CALL, RANGE, PYTHON)
#: Place of the events that are not imported, behind the groups.
_OTHER = len(_GROUPS)


class BlockParser:
    """Turns the blocks of one trace into rows.

    Args:
        keep_python: Whether Python function ranges are kept.
        problems: Where skipped events are counted.
    """

    def __init__(self, keep_python: bool, problems: Problems) -> None:
        self._keep_python = keep_python
        self._problems = problems
        self._layouts = Layouts()
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
        text: Words | None = None
        for place, group in enumerate(_GROUPS):
            pieces = np.flatnonzero(members == place)
            if len(pieces) == 0:
                continue
            if group == PYTHON and not self._keep_python:
                reason = "Python function of a large trace: left out"
                self._problems.add(reason, len(pieces))
                continue
            text = text or Words(block.raw)
            yield from self._group_rows(block, text, pieces, group, known)

    def _group_rows(
        self, block: EventBlock, text: Words, pieces: _Ints, group: str, names: list[str]
    ) -> Iterator[EventRows]:
        starts, ends = block.starts[pieces], block.ends[pieces]
        found, left = self._layouts.read(text, starts, ends, group)
        if len(left):
            parsed = self._parser.rows(block, pieces[left], group, names)
            if parsed is None:
                # Where it is not certain that the pieces are events, none is read as one.
                found = []
                parsed = self._parser.tolerant_rows(block, group)
            if parsed is not None and len(parsed.start_ns):
                yield parsed
        for fields in found:
            yield _as_rows(fields, group, block.categories[pieces[fields.rows]], names)

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


def _as_rows(fields: Fields, group: str, category: _Ints, categories: list[str]) -> EventRows:
    n = len(fields.rows)
    none, all_null, no_null = np.zeros(n, np.int64), np.ones(n, bool), np.zeros(n, bool)
    wanted = ARGUMENTS[group]
    names = [*(TASK if has_task(group) else ()), *(wanted.integers if wanted else ())]
    integers = {
        name: (fields.integers[name], no_null) if name in fields.integers else (none, all_null)
        for name in names
    }
    triples = {}
    for name in wanted.triples if wanted else ():
        axes = [fields.integers.get(f"{name}.{axis}", none) for axis in range(3)]
        values = np.stack(axes, axis=1)
        is_odd: npt.NDArray[np.bool_] = (values < 0).any(axis=1)
        triples[name] = (values, is_odd if f"{name}.0" in fields.integers else all_null)
    flags = {
        name: all_null if name in fields.flags else no_null
        for name in (wanted.texts if wanted else ())
    }
    begin, length = (fields.integers[name] for name in TIMES)
    texts = [text[:NAME_CHARACTERS] for text in fields.names]
    return EventRows(
        group, begin, length, fields.name, texts, category, categories, integers, triples, flags
    )
