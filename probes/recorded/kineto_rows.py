"""Columns from the events of a Kineto trace: Arrow parses whole blocks, Python the odd ones."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from probes.recorded.json_events import EventBlock, split_exactly
from probes.recorded.kineto_fields import (
    CALL,
    DEVICE,
    MICROSECONDS,
    NUMBER,
    PYTHON,
    RANGE,
    REDUNDANT,
    SCHEMAS,
    SYNC,
    WIDE_MICROSECONDS,
    WIDE_NUMBER,
    WIDE_SCHEMAS,
    group_of,
)
from probes.recorded.recording import NAME_CHARACTERS, Problems

_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]

_MAX_MICROSECONDS = 4e15
#: Text that one thread parses at a time; a longer event is parsed alone.
_PARSE_BYTES = 1 << 20


@dataclass(frozen=True)
class EventRows:
    """Valid complete events of one group, with times in ns of the trace's own clock.

    Attributes:
        group: ``DEVICE``, ``SYNC``, ``CALL``, ``RANGE`` or ``PYTHON``.
        start_ns: Begin of each.
        duration_ns: Length of each, not negative.
        name: Name of each.
        category: Index of each one's category in ``categories``.
        categories: Categories in lower case.
        table: The other columns as parsed.
    """

    group: str
    start_ns: _Ints
    duration_ns: _Ints
    name: pa.Array
    category: _Ints
    categories: list[str]
    table: pa.Table

    def integers(self, name: str) -> tuple[_Ints, _Bools]:
        """Return a column of integers (0 where it has none), and where it has none."""
        if name in self.table.column_names:
            column = self.table[name]
        else:
            args = self.table["args"].combine_chunks()
            column = pc.struct_field(args, name)
        return _flat(column.fill_null(0)), _flat(column.is_null())

    def text(self, name: str) -> pa.Array:
        """Return a text column of the event's arguments."""
        return pc.struct_field(self.table["args"].combine_chunks(), name)

    def triple(self, name: str) -> tuple[_Ints, _Bools]:
        """Return a list argument as an array (rows, 3), and where a row has not three numbers."""
        lists = pc.struct_field(self.table["args"].combine_chunks(), name)
        has_three = _flat(pc.equal(pc.list_value_length(lists), 3).fill_null(False))
        values = np.zeros((len(lists), 3), np.int64)
        flat = lists.filter(pa.array(has_three)).flatten()
        values[has_three] = _flat(flat.fill_null(-1)).reshape(-1, 3)
        return values, ~has_three | (values < 0).any(axis=1)


def _flat(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
    """NumPy array of an Arrow array without nulls."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    flat: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
    return flat


class BlockParser:
    """Turns the blocks of one trace into rows.

    Args:
        keep_python: Whether Python function ranges are kept.
        problems: Where skipped events are counted.
    """

    def __init__(self, keep_python: bool, problems: Problems) -> None:
        self._keep_python = keep_python
        self._problems = problems
        self._is_wide = False

    def rows(self, block: EventBlock, categories: list[str]) -> Iterator[EventRows]:
        """Yield the rows of a block, group by group; what is not imported is counted.

        Args:
            block: The events.
            categories: Names of the categories by code.
        """
        members = np.array([group_of(name) or "" for name in categories] + [""])[block.categories]
        _count_others(block, categories, members, self._problems)
        # Lines are what parts events for the parser.
        raw = block.raw.replace(b"\n", b" ").replace(b"\r", b" ")
        known = [name.lower() for name in categories]
        for group in (DEVICE, SYNC, CALL, RANGE, PYTHON):
            rows = np.flatnonzero(members == group)
            if len(rows) == 0:
                continue
            if group == PYTHON and not self._keep_python:
                reason = "Python function of a large trace: left out"
                self._problems.add(reason, len(rows))
                continue
            starts, ends = block.starts[rows].tolist(), block.ends[rows].tolist()
            table = self._parse_short(raw, starts, ends, group)
            if table is None:
                spans = zip(starts, ends, strict=True)
                table = self._parse([raw[start:end] for start, end in spans], group)
            codes, names = block.categories[rows], known
            if table is None:
                table, codes, names = self._parse_tolerantly(block, group)
            found = _valid(table, group, codes, names, self._problems)
            if found is not None:
                yield found

    def _parse_short(
        self, raw: bytes, starts: list[int], ends: list[int], group: str
    ) -> pa.Table | None:
        """Parse ranges without their arguments, which are most of their text and not imported.

        None when any has none, or something of interest behind them.
        """
        if group not in (RANGE, PYTHON):
            return None
        cuts = [raw.find(b'"args":', start, end) for start, end in zip(starts, ends, strict=True)]
        if min(cuts) < 0:
            return None
        spans = zip(starts, cuts, strict=True)
        table = self._parse([raw[start:cut] + b'"":0}' for start, cut in spans], group)
        if table is None or any(table[name].null_count for name in ("ph", "name", "ts", "dur")):
            return None
        return table

    def _parse(self, lines: list[bytes], group: str) -> pa.Table | None:
        """Parse events of one line each, or return None when any of them is not as expected."""
        text = b"\n".join([*lines, b""])
        if not text.isascii():
            try:
                text.decode("utf-8")
            except UnicodeDecodeError:
                text = text.decode("utf-8", "replace").encode()
        for is_wide in (True,) if self._is_wide else (False, True):
            try:
                table = _read_json(text, (WIDE_SCHEMAS if is_wide else SCHEMAS)[group])
                table = _narrowed(table) if is_wide else table
            except pa.ArrowInvalid:
                continue
            if table.num_rows != len(lines):
                return None
            self._is_wide = is_wide
            return table
        return None

    def _parse_tolerantly(self, block: EventBlock, group: str) -> tuple[pa.Table, _Ints, list[str]]:
        """Parse one group of a block event by event; count and drop what is not readable."""
        lines, names = [], []
        starts, ends, _ = split_exactly(block.raw)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            piece = block.raw[start:end]
            try:
                event = json.loads(piece.decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                if group_of(_category_of(piece)) == group:
                    self._problems.add("event that is no valid JSON")
                continue
            category = event.get("cat") if isinstance(event, dict) else None
            if not isinstance(category, str) or group_of(category) != group:
                continue
            try:
                clean = _cleaned(event, SCHEMAS[group])
            except ValueError as error:
                self._problems.add(str(error))
                continue
            lines.append(json.dumps(clean).encode())
            names.append(category.lower())
        table = self._parse(lines, group) if lines else None
        if table is None:
            self._problems.add("event that is no valid JSON", len(lines))
            return SCHEMAS[group].empty_table(), np.empty(0, np.int64), []
        unique, codes = np.unique(np.array(names), return_inverse=True)
        return table, codes.astype(np.int64), unique.tolist()


def _count_others(
    block: EventBlock, categories: list[str], members: npt.NDArray[Any], problems: Problems
) -> None:
    codes, counts = np.unique(block.categories[members == ""], return_counts=True)
    for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
        if code < 0:
            problems.add("event without category (metadata, marks, memory): not imported", count)
        elif categories[code].lower() in REDUNDANT:
            problems.add("link or summary event: says nothing that others do not", count)
        else:
            problems.add(f"event of category '{categories[code][:60]}': not imported", count)


def _read_json(text: bytes, schema: pa.Schema) -> pa.Table:
    """The declared fields of events of one line each.

    Raises:
        ArrowInvalid: a value is not of its declared type.
    """
    return pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(use_threads=True, block_size=_PARSE_BYTES),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )


def _narrowed(table: pa.Table) -> pa.Table:
    """Numbers of the wide types in the usual ones, times rounded to the nanosecond.

    Raises:
        ArrowInvalid: a number does not fit.
    """
    for index, name in enumerate(table.column_names):
        column = table[name]
        if column.type == WIDE_MICROSECONDS:
            column = pc.round(column, 3).cast(MICROSECONDS)
        elif column.type == WIDE_NUMBER:
            column = column.cast(NUMBER)
        table = table.set_column(index, name, column)
    return table


def _category_of(piece: bytes) -> str:
    _, _, after = piece.partition(b'"cat"')
    words = after[:80].split(b'"')
    return words[1].decode("utf-8", "replace") if len(words) > 1 else ""


def _cleaned(event: Mapping[str, Any], fields: pa.Schema | pa.StructType) -> dict[str, Any]:
    """Keep the declared fields of an event, each in its declared type.

    Raises:
        ValueError: a time is not a number; the text is the reason to count under.
    """
    clean: dict[str, Any] = {}
    for field in fields:
        value = event.get(field.name)
        if field.name in ("ts", "dur"):
            clean[field.name] = _microseconds(value)
        elif pa.types.is_struct(field.type):
            clean[field.name] = _cleaned(value if isinstance(value, dict) else {}, field.type)
        elif pa.types.is_list(field.type):
            items = value if isinstance(value, list) else []
            clean[field.name] = [_integer(item) for item in items[:3]]
        elif pa.types.is_string(field.type):
            text = value if isinstance(value, str) else "" if value is None else str(value)
            text = text[:NAME_CHARACTERS].encode("utf-8", "replace").decode()
            clean[field.name] = text if value is not None else None
        else:
            clean[field.name] = _integer(value)
    return clean


def _integer(value: object) -> int | None:
    if isinstance(value, str):
        value = value.strip()
        if not value.lstrip("-").isdecimal() or len(value) > 20:
            return None
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -(1 << 63) <= value < 1 << 63 else None


def _microseconds(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str):
        try:
            number = Decimal(value[:64])
        except InvalidOperation:
            raise ValueError("event whose time is not a number") from None
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("event whose time is not a number")
    else:
        number = Decimal(value)
    if not number.is_finite():
        raise ValueError("event whose time is not a number")
    if abs(number) > _MAX_MICROSECONDS:
        raise ValueError("event with an impossible time")
    return f"{number:.9f}"


def _nanoseconds(column: pa.ChunkedArray) -> tuple[_Ints, _Bools]:
    """Exact ns of microseconds with three digits, and where there is none or it is out of range."""
    values = column.combine_chunks()
    words = np.frombuffer(values.buffers()[1], np.int64).reshape(-1, 2)
    low = words[values.offset : values.offset + len(values), 0]
    high = words[values.offset : values.offset + len(values), 1]
    is_null = _flat(values.is_null())
    limit = int(_MAX_MICROSECONDS) * 1000
    is_out = (high != (low >> 63)) | (low > limit) | (low < -limit)
    return np.where(is_null, 0, low), is_null | is_out


def _valid(
    table: pa.Table, group: str, codes: _Ints, names: list[str], problems: Problems
) -> EventRows | None:
    """Keep the complete events with possible times; count the others."""
    if table.num_rows == 0:
        return None
    is_complete = _flat(pc.equal(table["ph"], "X").fill_null(False))
    start, has_no_start = _nanoseconds(table["ts"])
    duration, has_no_duration = _nanoseconds(table["dur"])
    is_named = _flat(table["name"].is_valid())
    checks: tuple[tuple[str, _Bools], ...] = (
        ("event that is no range (ph is not X)", ~is_complete),
        ("event without name", ~is_named),
        ("event without a possible begin", has_no_start),
        ("event without a possible duration", has_no_duration),
        ("event with a negative duration", duration < 0),
    )
    keep = np.ones(table.num_rows, bool)
    for reason, is_bad in checks:
        problems.add(reason, int((keep & is_bad).sum()))
        keep &= ~is_bad
    if not keep.any():
        return None
    if not keep.all():
        table = table.filter(pa.array(keep))
        start, duration, codes = start[keep], duration[keep], codes[keep]
    name = pc.utf8_slice_codeunits(table["name"].combine_chunks(), 0, NAME_CHARACTERS)
    return EventRows(group, start, duration, name, codes, names, table)
