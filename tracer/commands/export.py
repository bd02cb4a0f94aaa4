"""``tracer export``: a session for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from tracer.commands.parameters import SESSION_SUFFIX, find_session
from tracer.plain_text import plain

#: Ending of the file that each format becomes, and what opens it.
FORMATS = {
    "perfetto": (".perfetto-trace", "open it at https://ui.perfetto.dev or with its own tools"),
    "chrome": (".json.gz", "open it in Perfetto or chrome://tracing"),
    "csv": ("-csv", "one file per table"),
    "duckdb": (".duckdb", "query it with: duckdb FILE"),
}


@click.command("export")
@click.argument("format_name", metavar="FORMAT", type=click.Choice(list(FORMATS)))
@click.argument("session", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="File (csv: directory) to write; by default named after the session, here.",
)
@click.option("--force", is_flag=True, help="Replace what is there.")
def command(format_name: str, session: Path, output: Path | None, force: bool) -> None:
    """Write SESSION in another FORMAT: perfetto, chrome, csv or duckdb.

    perfetto and chrome are traces with processes, threads, calls, time off the CPU, device
    activities, counters and findings; csv has a file per table; duckdb is one database with
    views such as launch_second and cpu_wait.

    Example:
      tracer export perfetto incident.tracer -o incident.perfetto-trace
    """
    from analysis import attribute, open_session
    from analysis.report.files import replaced
    from tracer.recovery import mended_line, recover_crashed

    path = find_session(session)
    if recover_crashed(path) is not None:
        click.echo(mended_line(path), err=True)
    ending, opens = FORMATS[format_name]
    target = output or Path(path.resolve().name.removesuffix(SESSION_SUFFIX) + ending)
    opened = open_session(path)
    with replaced(target, force=force) as part:
        if format_name == "csv":
            from analysis.report.tables import write_csv

            n, what = write_csv(opened, part), "rows"
        elif format_name == "duckdb":
            from analysis.report.tables import write_duckdb

            n, what = write_duckdb(opened, attribute(opened), part), "rows"
        elif format_name == "chrome":
            from analysis.report.trace.export import write_chrome

            n, what = write_chrome(opened, attribute(opened), part), "events"
        else:
            from analysis.report.trace.export import write_perfetto

            n, what = write_perfetto(opened, attribute(opened), part), "events"
    for problem in opened.problems:
        click.echo(plain(problem), err=True)
    click.echo(plain(f"{target}: {n:,} {what}; {opens.replace('FILE', str(target))}"), err=True)
