"""``tracer describe``: the declared tables and columns."""

from __future__ import annotations

import difflib
import textwrap
from pathlib import Path

import click

from analysis import schema
from tracer.errors import UsageError


@click.command("describe")
@click.argument("table", required=False)
def command(table: str | None) -> None:
    """Print the tables a session can have, or the columns of TABLE, units and meaning.

    Example:
      tracer describe offcpu
    """
    if table is None:
        click.echo(_tables())
        return
    try:
        declared = schema.table(table)
    except KeyError:
        names = [item.name for item in schema.TABLES]
        close = difflib.get_close_matches(table, names, n=1)
        if Path(table, "manifest.json").is_file():
            raise UsageError(
                f"{table} is a session, and this tells of tables; try: tracer analyze {table}"
            ) from None
        hint = f"did you mean {close[0]}?" if close else "list them with: tracer describe"
        raise UsageError(f"there is no table {table}; {hint}") from None
    click.echo(_columns(declared))


def _tables() -> str:
    width = max(len(item.name) for item in schema.TABLES)
    lines = [
        textwrap.fill(f"{item.name:{width}}  {item.row}", 88, subsequent_indent=" " * (width + 2))
        for item in schema.TABLES
    ]
    return "\n".join(lines)


def _columns(table: schema.Table) -> str:
    width = max(len(column.name) for column in table)
    head = textwrap.fill(f"{table.name}: a row is {table.row}.", 88)
    lines = [head, f"Recorded by: {table.command}", ""]
    for column in table:
        kind = f"{column.type}{' or null' if column.nullable else ''}"
        lines.append(
            textwrap.fill(
                f"{column.name:{width}}  {kind:12}  {column.doc}",
                88,
                subsequent_indent=" " * (width + 16),
            )
        )
    return "\n".join(lines)
