"""Types of options that several commands share."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracer.errors import InputError, UsageError
from tracer.plain_text import shorten

if TYPE_CHECKING:
    from analysis.causes import Cause

_UNITS_NS = {
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
#: The longest time, about a century: twice it is still a whole number of 64 bits in ns.
MAX_DAYS = 36_500
#: The largest size in bytes, for the same reason.
MAX_BYTES = 10**18


def parse_duration(text: str) -> int:
    """Return a time like 500ms, 30s, 5m or 1h30m in ns; a bare number is seconds.

    Raises:
        click.BadParameter: it is not a time, or no time at all.
    """
    text = text.strip()
    parts = f"{text}s" if re.fullmatch(r"\d+(\.\d+)?", text) else text
    if not parts or _PART.sub("", parts):
        raise click.BadParameter(
            f"'{shorten(text)}' is not a time; write for example 30s, 5m or 1h30m"
        )
    exact = sum(float(number) * _UNITS_NS[unit] for number, unit in _PART.findall(parts))
    if exact > MAX_DAYS * _UNITS_NS["d"]:
        raise click.BadParameter(
            f"'{shorten(text)}' is too long a time; the longest is {MAX_DAYS}d"
        )
    total = sum(round(float(number) * _UNITS_NS[unit]) for number, unit in _PART.findall(parts))
    if total <= 0:
        raise click.BadParameter(f"'{shorten(text)}' is no time at all; write for example 30s")
    return total


def parse_share(text: str) -> float:
    """Return a share like 1% or 0.5% as a part of one: 0.01, 0.005.

    Raises:
        click.BadParameter: it is not a percentage between 0 and 100.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", text)
    share = float(match[1]) / 100 if match else 0.0
    if not 0 < share <= 1:
        raise click.BadParameter(f"'{shorten(text)}' is not a share; write for example 1% or 0.5%")
    return share


_BYTES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def parse_bytes(text: str) -> int:
    """Return a size like 500M or 2G in bytes; a bare number is bytes.

    Raises:
        click.BadParameter: it is not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)b?\s*", text.lower())
    if match is None:
        raise click.BadParameter(f"'{shorten(text)}' is not a size; write for example 500M or 2G")
    size = float(match[1]) * _BYTES.get(match[2], 1)
    if size > MAX_BYTES:
        raise click.BadParameter(
            f"'{shorten(text)}' is too large a size; the largest is {MAX_BYTES // _BYTES['t']}T"
        )
    return round(size)


#: Ending of a session directory's name.
SESSION_SUFFIX = ".tracer"
#: How a range of a session is written.
RANGE = re.compile(r"(?P<path>.+)@(?P<begin>[^@]*)\.\.(?P<end>[^@]*)")


def find_session(path: Path) -> Path:
    """Return the session directory meant by a path: itself, or with the ending ``.tracer``.

    Raises:
        InputError: neither is there, or that cannot be told.
    """
    candidates = [path]
    if path.name.endswith(SESSION_SUFFIX) and path.name != SESSION_SUFFIX:
        candidates.append(path.with_name(path.name.removesuffix(SESSION_SUFFIX)))
    elif path.name:
        candidates.append(path.with_name(path.name + SESSION_SUFFIX))
    missing = f"{path} does not exist"
    for candidate in candidates:
        try:
            if candidate.is_dir():
                return candidate
            if candidate == path and path.exists():
                missing = f"{path} is a file, not a session directory"
        except OSError as error:
            missing = f"{path} cannot be looked for ({error.strerror})"
    if RANGE.fullmatch(str(path)):
        missing += " (analyze, diff and report take a range of a session, no other command does)"
    raise InputError(f"{missing}; give the directory that 'tracer record -o DIR' wrote")


def find_cause(slug: str) -> Cause:
    """Return the declaration of a cause of the vocabulary.

    Raises:
        UsageError: there is none of that name.
    """
    from analysis.causes import CAUSES

    declared = {cause.slug: cause for cause in CAUSES}
    if slug not in declared:
        close = difflib.get_close_matches(slug, declared, n=1)
        hint = f"did you mean {close[0]}?" if close else "list them with: tracer causes"
        raise UsageError(f"there is no cause {slug}; {hint}")
    return declared[slug]
