"""``tracer diff``: what differs between two recordings beyond noise."""

from __future__ import annotations

import json

import click

from tracer.commands.ranges import open_recorded
from tracer.plain_text import plain


@click.command("diff")
@click.argument("before")
@click.argument("after")
@click.option("--json", "is_json", is_flag=True, help="Print everything as JSON.")
def command(before: str, after: str, is_json: bool) -> None:
    """Say what differs between the sessions BEFORE and AFTER beyond noise.

    Each is a session, or a range of one: SESSION@BEGIN..END, in times since its begin; either may
    be left out. Intervals and sample counts are printed with every difference; where the same load
    is served worse, that is the cause "regression".

    Example:
      tracer diff soak.tracer@10m..40m soak.tracer@30h..
    """
    from tracer.lean_arrow import make_arrow_lean

    make_arrow_lean()
    from analysis.compare import compare

    comparison = compare(open_recorded(before), open_recorded(after))
    if is_json:
        click.echo(json.dumps(comparison.to_json(), indent=1))
        return
    from analysis.report.comparison import render_comparison

    click.echo(plain(render_comparison(comparison)))
