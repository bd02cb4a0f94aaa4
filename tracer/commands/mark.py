"""``tracer mark``: says what is going on, to the recordings that run."""

from __future__ import annotations

from pathlib import Path

import click

from tracer.errors import TargetError, UsageError


@click.command("mark")
@click.argument("text")
@click.option(
    "-o",
    "--output",
    "session",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Only the recording into this session directory; by default all that run.",
)
def command(text: str, session: Path | None) -> None:
    """Put the mark TEXT into the running recordings of this user.

    A round lasts from its mark to the next one: analyze --by-mark compares them.

    Example:
      tracer mark "round 17, 30 users"
    """
    from tracer.control import send_mark

    if not text.strip():
        raise UsageError('a mark needs a text, e.g. tracer mark "round 17"')
    reached = send_mark(text, session)
    if not reached:
        where = f" into {session}" if session is not None else ""
        raise TargetError(
            f"no recording of this user runs{where}; start one with tracer record --pid PID"
        )
    for path in reached:
        click.echo(f"Marked in {path}.")
