"""Makes old samples sparse: counters and gauges once in ten seconds, means where a mean says more.

Thinning rows that are thin already changes nothing, so a segment may be thinned again after it was
merged with others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.schema import (
    CLOCK_ANCHOR,
    ENGINE_SAMPLE,
    GPU_PROCESS,
    GPU_SAMPLE,
    HOST_SAMPLE,
    PROCESS_SAMPLE,
    THREAD_SECOND,
    Table,
)

SECOND_NS = 1_000_000_000
#: One row of each series in this time.
THIN_NS = 10 * SECOND_NS
#: The same for buckets of histograms, which are many and cumulative, and for readings of clocks.
SPARSE_NS = 60 * SECOND_NS


@dataclass(frozen=True)
class _Rule:
    """How one table is thinned: what a series is, and how columns join; others: the last row's."""

    table: Table
    keys: tuple[str, ...]
    joins: Mapping[str, str]
    width_ns: int = THIN_NS


def _means(table: Table) -> dict[str, str]:
    """The mean of every measured share, power, clock and rate; the sum of the time it cost."""
    units = ("%", "mW", "MHz", "bytes/s", "degC")
    joins = {column.name: "mean" for column in table if column.unit in units}
    return joins | {"query_ns": "sum", "period_ns": "sum"}


_RULES = {
    rule.table.name: rule
    for rule in (
        _Rule(CLOCK_ANCHOR, (), {}, SPARSE_NS),
        _Rule(
            ENGINE_SAMPLE, ("endpoint", "metric", "raw_name", "labels", "kind", "upper_bound"), {}
        ),
        _Rule(GPU_PROCESS, ("device", "pid"), {"sm_util_pct": "mean", "memory_util_pct": "mean"}),
        _Rule(
            GPU_SAMPLE,
            ("device", "source"),
            _means(GPU_SAMPLE) | {"n_context_switches": "sum"},
        ),
        _Rule(HOST_SAMPLE, ("scope",), {}),
        _Rule(PROCESS_SAMPLE, ("pid",), {}),
        _Rule(
            THREAD_SECOND,
            ("pid", "tid"),
            {
                "duration_ns": "sum",
                "running_ns": "sum",
                "waiting_ns": "sum",
                "sleeping_ns": "sum",
                "n_voluntary_switches": "sum",
                "n_involuntary_switches": "sum",
                "n_migrations": "sum",
            },
        ),
    )
}

#: Tables whose old rows are thinned.
THINNED = frozenset(_RULES)


def thin(table: Table, rows: pa.Table) -> pa.Table:
    """Return the rows of a table thinned, in the table's order and schema."""
    rule = _RULES[table.name]
    order = table.order
    rows = rows.sort_by(order)
    time = rows[order].to_numpy()
    width = np.full(len(time), rule.width_ns)
    if table is ENGINE_SAMPLE:
        is_bucket = pc.equal(rows["kind"], "bucket").to_numpy(zero_copy_only=False)
        width[is_bucket] = SPARSE_NS
    marked = rows.append_column("_span", pa.array(time // width))
    marked = marked.append_column("_at", pa.array(np.arange(len(time))))
    groups = marked.group_by([*rule.keys, "_span"], use_threads=False)
    joins = [(name, how) for name, how in rule.joins.items() if name != order]
    # Interval rows keep the first row's begin, samples the last one's time.
    pick = "min" if order == "start_ns" else "max"
    joined = groups.aggregate([("_at", pick), *joins]).sort_by(f"_at_{pick}")
    picked = rows.take(joined[f"_at_{pick}"])
    for name, how in joins:
        index = picked.schema.get_field_index(name)
        values = joined[f"{name}_{how}"]
        target = picked.schema.field(index)
        if pa.types.is_integer(target.type) and pa.types.is_floating(values.type):
            values = pc.round(values)
        picked = picked.set_column(index, target, values.cast(target.type))
    return picked.sort_by(order)
