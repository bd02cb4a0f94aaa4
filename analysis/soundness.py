"""Rows of a damaged or hostile file that no reader could reckon with are left out, and counted."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from analysis import schema
from analysis.manifest import MAX_NUMBER


def sound_rows(rows: pa.Table, declared: schema.Table) -> tuple[pa.Table, int]:
    """Return the rows without those of impossible values, and how many these were.

    Impossible are a null where the column says there is none, and a time or length so large that
    a sum of two would overflow.
    """
    mask: pa.ChunkedArray | None = None
    for column in declared:
        if column.name not in rows.column_names:
            continue
        values = rows[column.name]
        tests = []
        if not column.nullable and values.null_count:
            tests.append(pc.is_valid(values))
        if column.unit == "ns" and pa.types.is_integer(values.type) and rows.num_rows:
            least, most = pc.min_max(values).values()
            if (least.as_py() or 0) < -MAX_NUMBER or (most.as_py() or 0) > MAX_NUMBER:
                is_small = pc.and_(
                    pc.less_equal(values, MAX_NUMBER), pc.greater_equal(values, -MAX_NUMBER)
                )
                tests.append(pc.fill_null(is_small, True))
        for test in tests:
            mask = test if mask is None else pc.and_(mask, test)
    if mask is None:
        return rows, 0
    kept = rows.filter(mask)
    return kept, rows.num_rows - kept.num_rows
