"""How a table becomes a Parquet file: one row order and one encoding per column.

Times and growing ids are delta encoded (dictionary off for them); strings, small integers and
handles use dictionaries; everything is zstd level 3. A new segment of a few samples is written with
what costs the least instead, until it is merged: lz4, dictionaries for strings only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.schema import FORMAT_VERSION, THREAD_SECOND, Table

#: Ids that grow with time: delta encoding, no dictionary.
GROWING_IDS = frozenset({"call_id", "parent_call_id", "correlation_id"})
#: Fewer rows of samples than this are encoded quickly: zstd and dictionaries then cost as much
#: again, and save nothing.
FEW_SAMPLES = 16_384
#: Longest row group, in rows.
ROW_GROUP_ROWS = 1_048_576


def is_sampled(table: Table) -> bool:
    """Return whether a table holds samples: what is observed at one time, and what threads did
    since the last.
    """
    return table.order == "time_ns" or table.name == THREAD_SECOND.name


def footer_metadata(table: Table, facts: Mapping[str, object]) -> dict[str, str]:
    """Return the key-value metadata of a segment's footer: format, table, clock and ``facts``."""
    metadata = {"format": str(FORMAT_VERSION), "table": table.name, "clock": "monotonic"}
    metadata.update({key: str(value) for key, value in facts.items()})
    return metadata


def _is_delta(name: str, type: pa.DataType, is_time: bool) -> bool:
    return pa.types.is_int64(type) and (is_time or name in GROWING_IDS)


@cache
def parquet_options(table: Table, is_quick: bool = False) -> dict[str, Any]:
    """Return the keyword arguments of ``pyarrow.parquet.ParquetWriter`` for one table.

    Args:
        table: Its declaration.
        is_quick: What costs the least rather than what is smallest.
    """
    schema = table.arrow_schema()
    delta = {
        column.name: "DELTA_BINARY_PACKED"
        for column in table
        if _is_delta(column.name, schema.field(column.name).type, column.is_time)
    }
    texts = [column.name for column in table if pa.types.is_string(schema.field(column.name).type)]
    return {
        "compression": "lz4" if is_quick else "zstd",
        "compression_level": None if is_quick else 3,
        "use_dictionary": texts
        if is_quick
        else [name for name in table.column_names if name not in delta],
        "column_encoding": delta,
        # What a reader of a range needs to skip a segment: where its rows begin and end.
        "write_statistics": [
            name for name in (table.order, "duration_ns") if name in table.column_names
        ],
        "store_schema": False,
    }


def sort_rows(table: Table, rows: pa.Table) -> pa.Table:
    """Return the rows in the table's order (stable); the same object where they are in order."""
    keys = rows.column(table.order).to_numpy()
    if keys.size < 2 or bool(np.all(keys[1:] >= keys[:-1])):
        return rows
    return rows.take(pa.array(np.argsort(keys, kind="stable")))


def encode_segment(
    table: Table, batches: Sequence[pa.RecordBatch], facts: Mapping[str, object]
) -> memoryview:
    """Return the bytes of a closed Parquet segment of the batches' rows, sorted.

    Args:
        table: Declaration of the table; every batch has its Arrow schema.
        batches: At least one batch.
        facts: Further footer metadata (boot id, host name, rows lost so far).
    """
    sink = pa.BufferOutputStream()
    rows = joined_rows(table, batches)
    is_quick = is_sampled(table) and rows.num_rows < FEW_SAMPLES
    write_rows(sink, table, rows, facts, is_quick)
    return memoryview(sink.getvalue())


def joined_rows(table: Table, batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return the rows of batches of one table; text that is coded in all of them stays coded."""
    if any(batch.schema != batches[0].schema for batch in batches):
        plain = table.arrow_schema()
        return pa.concat_tables(pa.Table.from_batches([batch]).cast(plain) for batch in batches)
    return pa.Table.from_batches(batches)


def _with_short_dictionaries(rows: pa.Table) -> pa.Table:
    """The rows with only those values in the dictionaries of coded text that occur."""
    for place, column in enumerate(rows.columns):
        if not pa.types.is_dictionary(column.type):
            continue
        coded = column.combine_chunks()
        if isinstance(coded, pa.ChunkedArray):
            coded = coded.chunk(0)
        used = coded.indices.drop_null() if coded.null_count else coded.indices
        is_used = np.bincount(used.to_numpy(), minlength=len(coded.dictionary)) > 0
        if is_used.all():
            rows = rows.set_column(place, rows.field(place), coded)
            continue
        codes = np.cumsum(is_used, dtype=np.int64) - 1
        indices = pa.array(codes.astype(np.int32)).take(coded.indices)
        values = coded.dictionary.filter(pa.array(is_used))
        short = pa.DictionaryArray.from_arrays(indices, values)
        rows = rows.set_column(place, rows.field(place).with_type(short.type), short)
    return rows


def write_rows(
    sink: Any,
    table: Table,
    rows: pa.Table,
    facts: Mapping[str, object],
    is_quick: bool = False,
) -> None:
    """Write rows, sorted, as one Parquet file into an open Arrow sink."""
    rows = _with_short_dictionaries(sort_rows(table, rows))
    with pq.ParquetWriter(sink, rows.schema, **parquet_options(table, is_quick)) as writer:
        writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
        writer.add_key_value_metadata(footer_metadata(table, facts))
