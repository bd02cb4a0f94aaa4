"""Sessions on the command line, and ranges of them: ``SESSION@BEGIN..END``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracer.commands.parameters import RANGE, find_session, parse_duration
from tracer.errors import InputError, UsageError

if TYPE_CHECKING:
    from analysis.timeline import Session


def open_recorded(text: str) -> Session:
    """Return the session, or the range of one, that an argument means; a crashed one is mended.

    Args:
        text: A path, or a path with ``@BEGIN..END`` in times since the begin; either may be left
            out.

    Raises:
        UsageError: the range is none.
        InputError: there is no such session.
        TimelineError: the session cannot be read, or has no such time.
    """
    from analysis import open_session
    from tracer.recovery import mended_line, recover_crashed

    match = None if _is_there(text) else RANGE.fullmatch(text)
    path = find_session(Path(match["path"] if match else text))
    if recover_crashed(path) is not None:
        click.echo(mended_line(path), err=True)
    session = open_session(path)
    if match is None:
        return session
    begin = _time(match["begin"], 0)
    end = _time(match["end"], max(session.duration_ns, begin + 1))
    if begin >= end:
        raise UsageError(f"{text}: the range ends before it begins; write SESSION@BEGIN..END")
    return session.between(session.start_ns + begin, session.start_ns + end)


def open_detailed(text: str) -> Session:
    """Return the same as :func:`open_recorded`, for who needs every call of a range.

    A whole session may lack detail: its answer is then put together from what it has.

    Raises:
        InputError: as there, or only samples and counts were kept of a part of the range.
    """
    from analysis.kept import Kept

    session = open_recorded(text)
    if not session.is_range:
        return session
    kept = Kept.read(session.path)
    if kept.detailed(session.start_ns, session.end_ns) == [(session.start_ns, session.end_ns)]:
        return session
    from analysis import open_session

    whole = open_session(session.path)
    spans = kept.detailed(whole.start_ns, whole.end_ns)
    ranges = [item for span in spans if (item := _range_text(whole.start_ns, *span))]
    within = f", or a range within {' or '.join(ranges[-3:])}" if ranges else ""
    raise InputError(f"full detail was not kept of all of {text}; give the whole session{within}")


def _range_text(origin_ns: int, start_ns: int, end_ns: int) -> str:
    """A stretch in whole seconds within it, as on the command line; empty where it has none."""
    begin, end = -((origin_ns - start_ns) // 1_000_000_000), (end_ns - origin_ns) // 1_000_000_000
    return f"@{begin}s..{end}s" if begin < end else ""


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
