"""``tracer analyze``: the verdict about a session."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tracer.commands.parameters import find_session, parse_duration
from tracer.errors import UsageError
from tracer.plain_text import plain

#: More windows than this would fill the memory, and nobody reads them.
MAX_WINDOWS = 1_000_000


@click.command("analyze")
@click.argument("session", type=click.Path(path_type=Path))
@click.option(
    "--window",
    "window_ns",
    type=parse_duration,
    default="1s",
    metavar="T",
    show_default=True,
    help="Length of one window of the budget of time.",
)
@click.option("--json", "is_json", is_flag=True, help="Print everything as JSON.")
def command(session: Path, window_ns: int, is_json: bool) -> None:
    """Say what the device of SESSION was waiting for, and why.

    Example:
      tracer analyze incident.tracer --window 1s
    """
    from tracer.lean_arrow import make_arrow_lean

    make_arrow_lean()
    from analysis import attribute, open_session
    from tracer.recovery import recover_crashed

    path = find_session(session)
    recovery = recover_crashed(path)
    if recovery is not None:
        click.echo(f"The recorder of {path} died; what it had written was mended.", err=True)
    opened = open_session(path)
    if opened.duration_ns > MAX_WINDOWS * window_ns:
        least_s = opened.duration_ns // (MAX_WINDOWS * 1_000_000_000) + 1
        raise UsageError(
            f"the session has more than {MAX_WINDOWS:,} windows of that length; "
            f"give a longer one, e.g. --window {least_s}s"
        )
    attribution = attribute(opened, window_ns=window_ns)
    if is_json:
        click.echo(json.dumps(attribution.to_json(), indent=1))
        return
    from analysis.report.terminal import render

    click.echo(plain(render(attribution)))
