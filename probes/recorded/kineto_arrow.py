"""Events of a Kineto trace parsed by Arrow, and the odd ones in Python."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from probes.recorded.json_cuts import split_exactly
from probes.recorded.json_events import EventBlock
from probes.recorded.kineto_fields import (
    ARGUMENTS,
    MICROSECONDS,
    NUMBER,
    SCHEMAS,
    TASK,
    WIDE_MICROSECONDS,
    WIDE_NUMBER,
    WIDE_SCHEMAS,
    EventRows,
    group_of,
    has_task,
)
from probes.recorded.recording import NAME_CHARACTERS, Problems
from probes.recorded.words import MAX_MICROSECONDS

_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]

#: Text that one thread parses at a time; a longer event is parsed alone.
_PARSE_BYTES = 1 << 20
_WHOLE = re.compile(r"-?[0-9]{1,19}")
#: Arrow's parser ends the process at a null instead of an event, and at decimals with so many
#: places.
_FATAL = re.compile(rb'\A\s*[^\s{]|[:\s"]-?\d[\d.]*[eE]-\d{4}')


class ArrowParser:
    """Parses the events of one trace.

    Args:
        problems: Where skipped events are counted.
    """

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._is_wide = False

    def rows(
        self, block: EventBlock, pieces: _Ints, group: str, names: list[str]
    ) -> EventRows | None:
        """Return the valid events among some pieces of a block, all of one group; None where any
        is not as expected.

        Args:
            block: The events.
            pieces: Which of them.
            group: Their group.
            names: Names of the categories in lower case, by code.
        """
        starts, ends = block.starts[pieces].tolist(), block.ends[pieces].tolist()
        # Lines are what parts events for the parser.
        lines = [
            block.text.data[start:end].replace(b"\n", b" ").replace(b"\r", b" ")
            for start, end in zip(starts, ends, strict=True)
        ]
        if any(_FATAL.search(line) for line in lines):
            return None
        table = self._parse_short(lines, group)
        table = self._parse(lines, group) if table is None else table
        if table is None:
            return None
        return _valid(table, group, block.categories[pieces], names, self._problems)

    def tolerant_rows(self, block: EventBlock, group: str) -> EventRows | None:
        """Return the valid events of a group in a block, looked at one by one."""
        table, codes, names = self._parse_tolerantly(block, group)
        return _valid(table, group, codes, names, self._problems)

    def _parse_short(self, lines: list[bytes], group: str) -> pa.Table | None:
        """Parse ranges without their arguments, which are most of their text and not imported.

        None when any has none, or something of interest behind them.
        """
        if ARGUMENTS[group] is not None:
            return None
        cuts = [line.find(b'"args":') for line in lines]
        if min(cuts) < 0:
            return None
        spans = zip(lines, cuts, strict=True)
        table = self._parse([line[:cut] + b'"":0}' for line, cut in spans], group)
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
        raw = block.text.data[block.text.begin : int(block.ends[-1])]
        starts, ends, _ = split_exactly(raw)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            piece = raw[start:end]
            try:
                event = json.loads(piece.decode("utf-8", "replace"), parse_float=_exact)
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


def _read_json(text: bytes, schema: pa.Schema) -> pa.Table:
    """The declared fields of events of one line each.

    Raises:
        ArrowInvalid: a value is not of its declared type.
    """
    import pyarrow.json as pj

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
            clean[field.name] = [_integer(item) for item in items[:4]]
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
        if not _WHOLE.fullmatch(value):
            return None
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        return None
    # The bounds come first: a number of few characters can have a billion digits.
    if not -(1 << 63) <= value < 1 << 63 or value != int(value):
        return None
    return int(value)


def _exact(text: str) -> Decimal | float:
    """A number with all its digits; infinite where it is beyond any."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return float(text)


def _microseconds(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        return None
    try:
        number = Decimal(value[:64] if isinstance(value, str) else value)
    except InvalidOperation:
        raise ValueError("event whose time is not a number") from None
    if not number.is_finite():
        raise ValueError("event whose time is not a number")
    if not -MAX_MICROSECONDS <= number <= MAX_MICROSECONDS:
        raise ValueError("event with an impossible time")
    return f"{number:.3f}"


def _nanoseconds(column: pa.ChunkedArray) -> tuple[_Ints, _Bools]:
    """Exact ns of microseconds with three digits, and where there is none or it is out of range."""
    values = column.combine_chunks()
    words = np.frombuffer(values.buffers()[1], np.int64).reshape(-1, 2)
    low = words[values.offset : values.offset + len(values), 0]
    high = words[values.offset : values.offset + len(values), 1]
    is_null = _flat(values.is_null())
    limit = MAX_MICROSECONDS * 1000
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
    encoded = name.dictionary_encode()
    integers, triples, flags = {}, {}, {}
    if has_task(group):
        integers = {item: _integers(table[item]) for item in TASK}
    wanted = ARGUMENTS[group]
    if wanted is not None:
        args = table["args"].combine_chunks()
        for item in wanted.integers:
            integers[item] = _integers(pc.struct_field(args, item))
        triples = {item: _triple(pc.struct_field(args, item)) for item in wanted.triples}
        flags = {item: ~_flat(pc.struct_field(args, item).is_null()) for item in wanted.texts}
    return EventRows(
        group,
        start,
        duration,
        _flat(encoded.indices).astype(np.int64),
        encoded.dictionary.to_pylist(),
        codes,
        names,
        integers,
        triples,
        flags,
    )


def _integers(column: pa.Array | pa.ChunkedArray) -> tuple[_Ints, _Bools]:
    """A column of integers (0 where it has none), and where it has none."""
    return _flat(column.fill_null(0)), _flat(column.is_null())


def _triple(lists: pa.Array) -> tuple[_Ints, _Bools]:
    """Lists as an array (rows, 3), and where a row has not three numbers."""
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
