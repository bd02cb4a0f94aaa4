"""``tracer diff``: what differs between two recordings beyond noise."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracer.commands.parameters import find_session, parse_duration
from tracer.errors import UsageError
from tracer.plain_text import plain

if TYPE_CHECKING:
    from analysis.timeline import Session

_RANGE = re.compile(r"(?P<path>.+)@(?P<begin>[^@]*)\.\.(?P<end>[^@]*)")


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

    comparison = compare(_open(before), _open(after))
    if is_json:
        click.echo(json.dumps(comparison.to_json(), indent=1))
        return
    from analysis.report.comparison import render_comparison

    click.echo(plain(render_comparison(comparison)))


def _open(text: str) -> Session:
    """The session, or the range of one, that an argument means.

    Raises:
        UsageError: the range is none.
        InputError: there is no such session.
    """
    from analysis import open_session
    from tracer.recovery import mended_line, recover_crashed

    match = None if _is_there(text) else _RANGE.fullmatch(text)
    path = find_session(Path(match["path"] if match else text))
    if recover_crashed(path) is not None:
        click.echo(mended_line(path), err=True)
    session = open_session(path)
    if match is None:
        return session
    begin = _time(match["begin"], 0)
    end = _time(match["end"], session.duration_ns)
    if begin >= end:
        raise UsageError(f"{text}: the range ends before it begins; write SESSION@BEGIN..END")
    return session.between(session.start_ns + begin, session.start_ns + end)


def _is_there(text: str) -> bool:
    try:
        return Path(text).exists()
    except OSError:  # e.g. a name that is too long
        return False


def _time(text: str, otherwise: int) -> int:
    """A time since the begin in ns; ``otherwise`` where it was left out, 0 for "0"."""
    if not text.strip():
        return otherwise
    if re.fullmatch(r"0+(ms|s|m|h|d)?", text.strip()):
        return 0
    return parse_duration(text)
