"""Questions in SQL to the tables of a session, answered by DuckDB; nothing can be written.

DuckDB sees each table as the session's own Parquet segments through Arrow: filters and choices of
columns are pushed down, so that a question about one column of an hour reads that column only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from analysis import schema
from analysis.timeline import Session, TimelineError, as_frame

if TYPE_CHECKING:
    import pandas as pd

#: What installs it.
INSTALL = "pip install duckdb"
#: Files, extensions and variables of the caller are out of reach of a query.
_SETTINGS: Any = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


def ask(session: Session, query: str) -> pd.DataFrame:
    """Return the answer to one query; see :meth:`analysis.timeline.Session.sql`.

    Raises:
        TimelineError: DuckDB is not installed, a table was not recorded, or the query is wrong.
    """
    try:
        import duckdb
    except ImportError:
        raise TimelineError(
            f"questions in SQL need DuckDB, which is not installed; install it with: {INSTALL}"
        ) from None
    if not _is_text(query):
        raise TimelineError("the query is not text; write e.g. sql('SELECT count(*) FROM event')")
    connection: Any = duckdb.connect(":memory:", config=_SETTINGS)
    try:
        for name in _named(connection, query):
            _register(connection, session, name)
        found = connection.sql(query)
        if found is None:
            raise TimelineError("the query asks for no rows; begin it with SELECT or WITH")
        rows = found.to_arrow_table()
    except duckdb.Error as error:
        reason = " ".join(str(error).split())[:300]
        raise TimelineError(
            f"DuckDB refuses the query: {reason}; tables here: {', '.join(session.tables)}"
        ) from None
    finally:
        connection.close()
    return as_frame(_whole_numbers(rows))


def _is_text(query: object) -> bool:
    """Whether it is text that can be encoded: half of a surrogate pair cannot."""
    if not isinstance(query, str):
        return False
    try:
        query.encode()
    except UnicodeEncodeError:
        return False
    return True


def _named(connection: Any, query: str) -> set[str]:
    """Declared tables that a query names."""
    declared = {table.name for table in schema.TABLES}
    return {name.lower() for name in connection.get_table_names(query)} & declared


def _register(connection: Any, session: Session, name: str) -> None:
    """Show one table of the session under its name.

    Raises:
        TimelineError: it was not recorded.
    """
    declared = schema.table(name)
    # Raises with the command that records it, and tells of the segments that cannot be read.
    empty = session.table(name, start_ns=0, end_ns=0, columns=[declared.order])
    assert empty.num_rows == 0
    arrow = pa.schema([field.with_nullable(True) for field in declared.arrow_schema()])
    readable = []
    for path in session.segments(name):
        try:
            pq.read_metadata(path)
        except (OSError, pa.ArrowException):
            continue  # said in the session's problems
        readable.append(str(path))
    rows = ds.dataset(readable, schema=arrow, format="parquet") if readable else arrow.empty_table()
    if session.is_range and readable:
        begin = pc.field(declared.order)
        reach = begin
        if declared.order == "start_ns" and "duration_ns" in declared.column_names:
            reach = begin + pc.coalesce(pc.field("duration_ns"), 0)
        is_inside = (begin < session.end_ns) & (
            (reach > session.start_ns) | (begin >= session.start_ns)
        )
        rows = rows.filter(is_inside)
    connection.register(name, rows)


def _whole_numbers(rows: pa.Table) -> pa.Table:
    """The same with sums of whole numbers (128 bits in DuckDB) as int64 where they fit."""
    for index, field in enumerate(rows.schema):
        if not pa.types.is_decimal(field.type):
            continue
        values = rows.column(index)
        most = pc.max(pc.abs(values)).as_py()
        is_whole = field.type.scale == 0 and (most is None or most <= np.iinfo(np.int64).max)
        target = pa.int64() if is_whole else pa.float64()
        rows = rows.set_column(index, field.name, values.cast(target))
    return rows
