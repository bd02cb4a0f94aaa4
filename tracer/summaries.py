"""Per-second counts and histograms of detailed rows, written while the detail is still there.

A summary is *additive*: several rows may stand for the same second and key, and their counts add
up. So a segment's rows are summarised without a look at any other segment, nothing is kept in
memory, and :func:`combine` joins rows of one key when segments are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from analysis.schema import (
    CALL_HISTOGRAM,
    CALL_SECOND,
    CUDA_CALL,
    OFFCPU,
    OFFCPU_SECOND,
    Table,
)

SECOND_NS = 1_000_000_000
#: Span of one histogram, and ranges per doubling of the length: a range is 9 % wide.
HISTOGRAM_NS = 10 * SECOND_NS
RANGES_PER_DOUBLING = 8


@dataclass(frozen=True)
class _Summary:
    """One summary table: what identifies a row, and how the other columns join (column, how)."""

    table: Table
    keys: tuple[str, ...]
    joins: tuple[tuple[str, str], ...]


_CALL_SECOND = _Summary(
    CALL_SECOND,
    ("start_ns", "duration_ns", "pid", "tid", "function", "layer", "kind", "depth"),
    (
        ("n_calls", "sum"),
        ("n_returned", "sum"),
        ("total_ns", "sum"),
        ("max_ns", "max"),
        ("size_bytes", "sum"),
    ),
)
_CALL_HISTOGRAM = _Summary(
    CALL_HISTOGRAM,
    ("start_ns", "duration_ns", "pid", "function", "kind", "lower_ns", "upper_ns"),
    (("n_calls", "sum"),),
)
_OFFCPU_SECOND = _Summary(
    OFFCPU_SECOND,
    ("start_ns", "duration_ns", "pid", "tid", "state"),
    (("n_intervals", "sum"), ("total_ns", "sum"), ("runnable_ns", "sum"), ("max_ns", "max")),
)
_BY_TABLE = {item.table.name: item for item in (_CALL_SECOND, _CALL_HISTOGRAM, _OFFCPU_SECOND)}
#: Names of the summary tables.
SUMMARIES = frozenset(_BY_TABLE)


def summarise(table: Table, rows: pa.Table) -> list[tuple[Table, pa.Table]]:
    """Return the summaries of rows of a table, each with its table; none where it has none."""
    make = _MAKERS.get(table.name)
    return make(rows) if make is not None and rows.num_rows else []


def combine(table: Table, rows: pa.Table) -> pa.Table:
    """Return the rows of a summary with those of one key added up; of other tables, the rows."""
    summary = _BY_TABLE.get(table.name)
    if summary is None:
        return rows
    aims = [(column, how, column) for column, how in summary.joins]
    return _grouped(summary, rows, aims)


def _calls(rows: pa.Table) -> list[tuple[Table, pa.Table]]:
    start = rows["start_ns"].to_numpy()
    by_second = _with_span(rows, start, SECOND_NS)
    seconds = _grouped(
        _CALL_SECOND,
        by_second,
        [
            ("call_id", "count", "n_calls"),
            ("duration", "count", "n_returned"),
            ("duration", "sum", "total_ns"),
            ("duration", "max", "max_ns"),
            ("size_bytes", "sum", "size_bytes"),
        ],
    )
    found = [(CALL_SECOND, seconds)]
    is_outer = pc.and_(pc.equal(rows["depth"], 0), pc.is_valid(rows["duration_ns"]))
    outer = rows.select(["start_ns", "duration_ns", "pid", "function", "kind"]).filter(is_outer)
    if outer.num_rows:
        lower, upper = length_range(outer["duration_ns"].to_numpy())
        spans = _with_span(outer, outer["start_ns"].to_numpy(), HISTOGRAM_NS)
        spans = spans.append_column("lower_ns", pa.array(lower))
        spans = spans.append_column("upper_ns", pa.array(upper))
        aims = [("duration", "count", "n_calls")]
        found.append((CALL_HISTOGRAM, _grouped(_CALL_HISTOGRAM, spans, aims)))
    return found


def _offcpu(rows: pa.Table) -> list[tuple[Table, pa.Table]]:
    spans = _with_span(rows, rows["start_ns"].to_numpy(), SECOND_NS)
    seconds = _grouped(
        _OFFCPU_SECOND,
        spans,
        [
            ("duration", "count", "n_intervals"),
            ("duration", "sum", "total_ns"),
            ("runnable_ns", "sum", "runnable_ns"),
            ("duration", "max", "max_ns"),
        ],
    )
    return [(OFFCPU_SECOND, seconds)]


_MAKERS: Mapping[str, Callable[[pa.Table], list[tuple[Table, pa.Table]]]] = {
    CUDA_CALL.name: _calls,
    OFFCPU.name: _offcpu,
}


def length_range(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ranges of the histogram that lengths in ns lie in: begins and ends, ns."""
    bounds = _BOUNDS
    at = np.searchsorted(bounds, np.maximum(lengths, 0), side="right") - 1
    at = np.clip(at, 0, len(bounds) - 2)
    return bounds[at], bounds[at + 1]


def _make_bounds() -> NDArray[np.int64]:
    """Bounds of the ranges in ns, from 0 to beyond a day, all different."""
    exponents = np.arange(0, 48 * RANGES_PER_DOUBLING) / RANGES_PER_DOUBLING
    return np.unique(np.concatenate(([0], np.round(2.0**exponents)))).astype(np.int64)


_BOUNDS = _make_bounds()


def _with_span(rows: pa.Table, start: NDArray[np.int64], width_ns: int) -> pa.Table:
    """The rows with their begin and length replaced by those of their span; the length is kept
    as ``duration``.
    """
    lengths = rows["duration_ns"]
    begin = start - start % width_ns
    rows = rows.drop_columns(["start_ns", "duration_ns"])
    rows = rows.append_column("duration", lengths)
    rows = rows.append_column("start_ns", pa.array(begin))
    return rows.append_column("duration_ns", pa.array(np.full(len(begin), width_ns)))


def _grouped(summary: _Summary, rows: pa.Table, aims: list[tuple[str, str, str]]) -> pa.Table:
    """Rows of a summary: the columns joined per key as (column, how, new name)."""
    group, first = _groups(rows, summary.keys)
    n = len(first)
    picked = rows.select(list(summary.keys)).take(pa.array(first))
    columns: dict[str, Any] = {key: picked[key] for key in summary.keys}
    for column, how, name in aims:
        columns[name] = _joined(rows[column], how, group, n)
    schema = summary.table.arrow_schema()
    arrays = [columns[field.name].cast(field.type) for field in schema]
    return pa.table(arrays, schema=schema)


def _groups(rows: pa.Table, keys: tuple[str, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The group of each row by its keys, and the first row of each group.

    Keys are turned into one whole number each row: several times faster than grouping by text.
    """
    code = np.zeros(rows.num_rows, dtype=np.int64)
    n_codes = 1
    for key in keys:
        own, n_own = _numbered(rows[key])
        if n_codes * n_own > _MOST_CODES:
            code, n_codes = _numbered(pa.chunked_array([pa.array(code)]))
        code = code * n_own + own
        n_codes *= n_own
    group, n_groups = _numbered(pa.chunked_array([pa.array(code)]))
    first = np.empty(n_groups, dtype=np.int64)
    first[group[::-1]] = np.arange(len(group) - 1, -1, -1)
    present = np.zeros(n_groups, dtype=bool)
    present[group] = True
    if not present.all():  # the place of null, which no row has
        first = first[present]
        group = (np.cumsum(present) - 1)[group]
    return group, first


#: Combined keys are numbered anew before they could become so many.
_MOST_CODES = 1 << 31


def _numbered(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], int]:
    """The values of a column as whole numbers from 0, null among them, and how many there are."""
    array = column.combine_chunks().dictionary_encode()
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    n = len(array.dictionary)
    indices = pc.fill_null(array.indices, n).to_numpy(zero_copy_only=False).astype(np.int64)
    return indices, n + 1


def _joined(column: pa.ChunkedArray, how: str, group: NDArray[np.int64], n: int) -> pa.Array:
    """The count, sum or largest of the known values of each group; null where none is known."""
    is_known = column.is_valid().to_numpy()
    counts = np.bincount(group[is_known], minlength=n)
    if how == "count":
        return pa.array(counts)
    known = column.drop_null().to_numpy()
    if how == "sum":
        # Whole numbers below 2**53 are exact here: 104 days in ns.
        total = np.bincount(group[is_known], weights=known, minlength=n).astype(np.int64)
    else:
        total = np.zeros(n, dtype=np.int64)
        np.maximum.at(total, group[is_known], known)
    return pa.array(total, mask=counts == 0)
