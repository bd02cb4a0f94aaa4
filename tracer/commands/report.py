"""``tracer report``: a session as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from tracer.commands.parameters import SESSION_SUFFIX
from tracer.commands.ranges import open_detailed
from tracer.plain_text import plain


@click.command("report")
@click.argument("session", type=click.Path())
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File to write; by default NAME.html here for a session NAME.tracer.",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(session: str, output: Path | None, force: bool) -> None:
    """Write SESSION as one HTML file that opens offline and on a phone.

    The verdict comes first, then the budget of the device's time, the findings, and everything
    that was sampled on one time axis. SESSION@BEGIN..END is a range of the session, in times since
    its begin; either may be left out.

    Example:
      tracer report incident.tracer -o report.html
    """
    from analysis.report.html import write_report

    opened = open_detailed(session)
    file = output or Path(f"{opened.path.resolve().name.removesuffix(SESSION_SUFFIX)}.html")
    n_bytes = write_report(opened, file, force=force)
    click.echo(plain(f"{file}: {n_bytes / 1e6:.1f} MB; open it in any browser"), err=True)
