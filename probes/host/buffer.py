"""Rows kept back until a batch is worth its making: one row costs as much as fifty."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from analysis.schema import Table
from probes.probe import Batch, make_batch


class RowBuffer:
    """Collects rows of one table and hands them over in bulk.

    Args:
        table: Declaration of the table.
        hold_ns: Longest time that a row is kept back.
    """

    def __init__(self, table: Table, hold_ns: int) -> None:
        self.n_rows = 0
        self._table = table
        self._hold_ns = hold_ns
        self._rows: list[Mapping[str, Any]] = []
        self._since_ns = 0

    def add(self, rows: Iterable[Mapping[str, Any]], now_ns: int) -> None:
        """Keep rows, each a dict by column; columns that are absent are null."""
        if not self._rows:
            self._since_ns = now_ns
        self._rows.extend(rows)

    def take(self, now_ns: int, is_last: bool = False) -> list[Batch]:
        """Return a batch when the oldest row was kept long enough, or at the end; else nothing."""
        if not self._rows or (now_ns - self._since_ns < self._hold_ns and not is_last):
            return []
        rows, self._rows = self._rows, []
        columns = {name: [row.get(name) for row in rows] for name in self._table.column_names}
        self.n_rows += len(rows)
        return [make_batch(self._table, columns)]
