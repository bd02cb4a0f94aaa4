"""``tracer analyze``: the verdict about a session."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tracer.commands.parameters import find_session, parse_duration


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
    from analysis import attribute, open_session
    from tracer.recovery import recover_crashed

    path = find_session(session)
    recovery = recover_crashed(path)
    if recovery is not None:
        click.echo(f"The recorder of {path} died; what it had written was mended.", err=True)
    attribution = attribute(open_session(path), window_ns=window_ns)
    if is_json:
        click.echo(json.dumps(attribution.to_json(), indent=1))
        return
    from analysis.report.terminal import render

    click.echo(render(attribution))
