"""``tracer report``: a session as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from tracer.commands.parameters import SESSION_SUFFIX, find_session
from tracer.plain_text import plain


@click.command("report")
@click.argument("session", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File to write; by default NAME.html here for a session NAME.tracer.",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(session: Path, output: Path | None, force: bool) -> None:
    """Write SESSION as one HTML file that opens offline and on a phone.

    The verdict comes first, then the budget of the device's time, the findings, and everything
    that was sampled on one time axis.

    Example:
      tracer report incident.tracer -o report.html
    """
    from analysis import open_session
    from analysis.report.html import write_report
    from tracer.recovery import mended_line, recover_crashed

    path = find_session(session)
    if recover_crashed(path) is not None:
        click.echo(mended_line(path), err=True)
    file = output or Path(f"{path.resolve().name.removesuffix(SESSION_SUFFIX)}.html")
    n_bytes = write_report(open_session(path), file, force=force)
    click.echo(plain(f"{file}: {n_bytes / 1e6:.1f} MB; open it in any browser"), err=True)
