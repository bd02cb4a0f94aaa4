"""A session's tables for other tools: CSV files, or one DuckDB file with views."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from analysis import schema
from analysis.attribution import Attribution
from analysis.report.files import LibraryError, OutputError
from analysis.report.views import VIEWS
from analysis.sql import INSTALL
from analysis.timeline import Session


def write_csv(session: Session, folder: Path) -> int:
    """Write every table of a session as ``TABLE.csv`` into a new folder; return the rows written.

    Empty cells are nulls; text is quoted, so that an empty text is ``""``.
    """
    folder.mkdir()
    n_rows = 0
    for name in session.tables:
        declared = schema.table(name)
        arrow = declared.arrow_schema()
        loose = pa.schema([field.with_nullable(True) for field in arrow])
        with (folder / f"{name}.csv").open("wb") as sink:
            writer: list[Any] = []

            def start_over(
                sink: Any = sink, writer: list[Any] = writer, loose: Any = loose
            ) -> None:
                sink.seek(0)
                sink.truncate()
                writer[:] = [pyarrow.csv.CSVWriter(sink, loose)]

            def write(part: pa.Table, writer: list[Any] = writer, loose: Any = loose) -> int:
                writer[0].write_table(part.cast(loose))
                n: int = part.num_rows
                return n

            n_rows += sum(
                session.collect(name, declared.column_names, write, start_over=start_over)
            )
            writer[0].close()
    return n_rows


def write_duckdb(session: Session, attribution: Attribution, path: Path) -> int:
    """Write a session as one DuckDB file: its tables, its budget, findings and views.

    Args:
        session: The session.
        attribution: Its attribution.
        path: A file that does not exist.

    Returns:
        Rows of the session's tables.

    Raises:
        LibraryError: DuckDB is not installed.
        OutputError: the file cannot be written.
        MemoryError: DuckDB has too little memory.
    """
    try:
        import duckdb
    except ImportError:
        raise LibraryError(
            f"a DuckDB file needs DuckDB, which is not installed; install it with: {INSTALL}"
        ) from None
    try:
        connection: Any = duckdb.connect(str(path))
        try:
            return _fill(connection, session, attribution)
        finally:
            connection.close()
    except (duckdb.IOException, duckdb.TransactionException, duckdb.FatalException) as error:
        reason = " ".join(str(error).split())[:300]
        raise OutputError(
            f"the DuckDB file cannot be written ({reason}); make room or lift the limit "
            "there, or give another place with -o"
        ) from None
    except duckdb.OutOfMemoryException as error:
        raise MemoryError(" ".join(str(error).split())[:300]) from None


def _fill(connection: Any, session: Session, attribution: Attribution) -> int:
    """Write tables, answer and views; return the rows of the session's tables."""
    n_rows = sum(_copy_table(connection, session, name) for name in session.tables)
    _write_answer(connection, session, attribution)
    for view in VIEWS:
        if all(session.has(table) for table in view.needs):
            connection.execute(f"CREATE VIEW {view.name} AS {view.query}")
            connection.execute(f"COMMENT ON VIEW {view.name} IS {_quoted(view.row)}")
    return n_rows


def _copy_table(connection: Any, session: Session, name: str) -> int:
    """One table with the meaning of its columns as comments; return its rows."""
    declared = schema.table(name)
    fields = [item.with_nullable(True) for item in declared.arrow_schema()]
    empty = pa.schema(fields).empty_table()

    def start_over() -> None:
        connection.register("part", empty)
        connection.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM part")
        connection.unregister("part")

    def write(part: pa.Table) -> int:
        connection.register("part", part)
        connection.execute(f"INSERT INTO {name} SELECT * FROM part")
        connection.unregister("part")
        n: int = part.num_rows
        return n

    n_rows = sum(session.collect(name, declared.column_names, write, start_over=start_over))
    connection.execute(f"COMMENT ON TABLE {name} IS {_quoted(f'a row is {declared.row}')}")
    for column in declared:
        connection.execute(f"COMMENT ON COLUMN {name}.{column.name} IS {_quoted(column.doc)}")
    return n_rows


def _write_answer(connection: Any, session: Session, attribution: Attribution) -> None:
    """Tables ``session``, ``verdict``, ``finding`` and ``budget``."""
    told = attribution.to_json()
    verdict = told["verdict"]
    findings = [
        {
            "number": number,
            "cause": finding["cause"],
            "status": finding["status"],
            "confidence": float(finding["confidence"]),
            "summary": finding["summary"],
            "start_ns": finding["start_ns"],
            "end_ns": finding["end_ns"],
            "lost_ns": finding["lost_ns"],
            "pid": finding["where"]["pid"],
            "tid": finding["where"]["tid"],
            "device": finding["where"]["device"],
            "evidence": json.dumps(finding["evidence"]),
        }
        for number, finding in enumerate(told["findings"], start=1)
    ]
    budget = [
        {
            "device": window["device"],
            "start_ns": window["start_ns"],
            "end_ns": window["end_ns"],
            **share,
        }
        for window in told["budget"]
        for share in window["shares"]
    ]
    whole, real, word = pa.int64(), pa.float64(), pa.string()
    for name, rows, columns in (
        (
            "session",
            [
                {
                    "name": told["session"],
                    "is_simulated": told["is_simulated"],
                    "start_ns": told["start_ns"],
                    "end_ns": told["end_ns"],
                    "manifest": session.manifest.to_json(),
                }
            ],
            {"name": word, "is_simulated": pa.bool_(), "start_ns": whole, "end_ns": whole}
            | {"manifest": word},
        ),
        (
            "verdict",
            [{key: verdict[key] for key in ("cause", "confidence", "status", "text")}],
            {"cause": word, "confidence": real, "status": word, "text": word},
        ),
        (
            "finding",
            findings,
            {"number": whole, "cause": word, "status": word, "confidence": real, "summary": word}
            | {"start_ns": whole, "end_ns": whole, "lost_ns": whole, "pid": whole, "tid": whole}
            | {"device": whole, "evidence": word},
        ),
        (
            "budget",
            budget,
            {"device": whole, "start_ns": whole, "end_ns": whole, "state": word, "reason": word}
            | {"ns": whole, "share": real},
        ),
    ):
        connection.register("part", pa.Table.from_pylist(rows, pa.schema(columns)))
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM part")
        connection.unregister("part")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
