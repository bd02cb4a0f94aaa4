"""``tracer recover``: mends the session of a recorder that died."""

from __future__ import annotations

from pathlib import Path

import click

from tracer.commands.parameters import find_session


@click.command("recover")
@click.argument("session", type=click.Path(path_type=Path))
def command(session: Path) -> None:
    """Make SESSION tidy after its recorder died: nothing half-written, an end, a reason.

    Other commands do the same when they open a session; nothing that can be read is ever removed.

    Example:
      tracer recover incident.tracer
    """
    from tracer.recovery import OUT_OF_MEMORY, recover

    path = find_session(session)
    result = recover(path)
    if result.was_finished:
        click.echo(f"{path} was finished; {result.n_rows:,} rows are readable.")
    else:
        click.echo(f"{path} was mended: {result.n_rows:,} rows are readable.")
    if result.end_reason == OUT_OF_MEMORY:
        click.echo("The kernel killed its recorder for lack of memory.")
    if result.removed:
        click.echo(f"Removed {len(result.removed)} unfinished or replaced files.")
    for name in result.damaged:
        click.echo(f"Set aside as damaged: {name}")
