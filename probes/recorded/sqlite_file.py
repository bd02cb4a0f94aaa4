"""Reads SQLite files of strangers: tables only, types checked, sizes bounded."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from probes.recorded.recording import BATCH_ROWS, NAME_CHARACTERS, RecordingError

#: Values of an integer column, and where it has none (the value is 0 there).
Integers = tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]

MAGIC = b"SQLite format 3\x00"

#: What a damaged file raises; the module decodes names and messages of it strictly.
_DAMAGE = (sqlite3.Error, UnicodeError)
#: Longest value SQLite may hand out, in bytes.
_MAX_VALUE_BYTES = 16 * 1024 * 1024


class SqliteFile:
    """One SQLite file, opened read-only; only real tables of it can be read.

    Args:
        path: The file.

    Raises:
        RecordingError: it is no readable SQLite database.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        uri = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
        try:
            self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
            if hasattr(self._connection, "setlimit"):
                self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
            self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            self._connection.execute("PRAGMA trusted_schema = OFF")
            self._connection.execute("PRAGMA query_only = ON")
            self._connection.execute("PRAGMA mmap_size = 0")
            rows = self._connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' "
                "AND sql NOT LIKE 'CREATE VIRTUAL%' LIMIT 10000"
            ).fetchall()
            self._columns = {str(name): self._columns_of(str(name)) for (name,) in rows}
        except _DAMAGE as error:
            raise self._unreadable(error) from None

    def _columns_of(self, table: str) -> frozenset[str]:
        rows = self._connection.execute(f"PRAGMA table_info({quoted(table)})")
        return frozenset(str(row[1]) for row in rows)

    def _unreadable(self, error: Exception) -> RecordingError:
        is_text = not isinstance(error, UnicodeError)
        reason = " ".join(str(error).split()) if is_text else "its names are no text"
        return RecordingError(
            f"{self.path} cannot be read as a SQLite database ({reason}); "
            "copy it again or export the recording again"
        )

    @property
    def tables(self) -> frozenset[str]:
        """Names of the tables; views and virtual tables are not among them."""
        return frozenset(self._columns)

    def columns(self, table: str) -> frozenset[str]:
        """Names of the columns of a table; empty when there is no such table."""
        return self._columns.get(table, frozenset())

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table exists and has all these columns."""
        return table in self._columns and self._columns[table].issuperset(columns)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a query in lists of at most 200,000.

        Raises:
            RecordingError: the file turned out to be damaged.
        """
        try:
            cursor = self._connection.execute(query, parameters)
            while rows := cursor.fetchmany(BATCH_ROWS):
                yield rows
        except _DAMAGE as error:
            raise self._unreadable(error) from None

    def all_rows(self, query: str, limit: int = BATCH_ROWS) -> list[tuple[Any, ...]]:
        """Return the first ``limit`` rows of a query whose result is known to be small.

        Raises:
            RecordingError: the file turned out to be damaged.
        """
        found: list[tuple[Any, ...]] = []
        for rows in self.rows(query + f" LIMIT {int(limit)}"):
            found.extend(rows)
        return found

    def integers(
        self, table: str, names: Sequence[str], order: str, condition: str = "1"
    ) -> Iterator[dict[str, Integers]]:
        """Yield integer columns batch by batch: per column its values and where it has none.

        A column that the table lacks, and a value that is not an integer, count as having none.

        Raises:
            RecordingError: the file turned out to be damaged.
        """
        picked = [self.integer(table, name) for name in names]
        query = (
            f"SELECT {', '.join(picked)} FROM {quoted(table)} WHERE {condition} ORDER BY {order}"
        )
        for rows in self.rows(query):
            batch = {}
            for name, values in zip(names, zip(*rows, strict=True), strict=True):
                batch[name] = integer_column(values)
            yield batch

    def integer(self, table: str, column: str) -> str:
        """SQL expression for a column of integers: null where it is absent or anything else."""
        if column not in self.columns(table):
            return "NULL"
        name = f"{quoted(table)}.{quoted(column)}"
        return f"CASE WHEN typeof({name}) = 'integer' THEN {name} END"

    def text(self, table: str, column: str) -> str:
        """SQL expression for a column of text, cut to what is kept; null where it is no text."""
        if column not in self.columns(table):
            return "NULL"
        name = f"{quoted(table)}.{quoted(column)}"
        return f"CASE WHEN typeof({name}) = 'text' THEN substr({name}, 1, {NAME_CHARACTERS}) END"


def integer_column(values: Sequence[int | None]) -> Integers:
    """Return the values as int64 with 0 where there is none, and where there is none."""
    array = pa.array(values, pa.int64())
    return (
        array.fill_null(0).to_numpy(zero_copy_only=False),
        array.is_null().to_numpy(zero_copy_only=False),
    )


def quoted(name: str) -> str:
    """SQL identifier of a name, whatever it contains."""
    return '"' + name.replace('"', '""').replace("\x00", "") + '"'
