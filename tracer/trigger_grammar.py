"""The small language of ``record --trigger``.

Its grammar is :data:`GRAMMAR`; every quantity is declared once, with its unit and what it means.
"""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass

from tracer.errors import UsageError
from tracer.plain_text import shorten

GRAMMAR = (
    'trigger   := "xid" | "hang" | "any finding" | condition ("and" condition)*',
    'condition := "no progress for" TIME | QUANTITY (">" | "<") NUMBER [UNIT]',
)

#: Factors of units, by what a quantity is measured in; the empty unit is the default.
_UNITS: dict[str, dict[str, float]] = {
    "s": {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0},
    "%": {"": 1.0, "%": 1.0},
    "W": {"": 1.0, "w": 1.0},
    "": {"": 1.0, "k": 1e3},
    "bytes": {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2**10, "mib": 2**20, "gib": 2**30},
    "bytes/h": {
        "kb/h": 1e3,
        "mb/h": 1e6,
        "gb/h": 1e9,
        "kib/h": 2**10,
        "mib/h": 2**20,
        "gib/h": 2**30,
    },
}


@dataclass(frozen=True)
class Quantity:
    """One thing that a condition compares: its name, unit and meaning."""

    name: str
    unit: str
    doc: str

    @property
    def units(self) -> tuple[str, ...]:
        """Units that a number may have, without the empty one."""
        return tuple(unit for unit in _UNITS[self.unit] if unit)


QUANTITIES: tuple[Quantity, ...] = (
    Quantity("launch p50", "s", "median length of a launch call over the last 5 s"),
    Quantity("launch p99", "s", "99th percentile of it, from 100 launches on"),
    Quantity("calls/s", "", "CUDA calls per second over the last 5 s"),
    Quantity("tokens/s", "", "tokens generated per second, as the engine counts"),
    Quantity(
        "ttft p50",
        "s",
        "median time to first token over the last minute, of the engine where it is longest",
    ),
    Quantity("ttft p95", "s", "95th percentile of it, from 20 requests on"),
    Quantity(
        "inter-token p50",
        "s",
        "median time between tokens over the last minute, of the engine where it is longest",
    ),
    Quantity("inter-token p99", "s", "99th percentile of it, from 100 tokens on"),
    Quantity("requests running", "", "requests in the running batch"),
    Quantity("requests waiting", "", "requests that wait for a place in it"),
    Quantity("kv usage", "%", "share of the KV cache in use, of the engine that uses most"),
    Quantity("gpu util", "%", "utilisation of the busiest GPU"),
    Quantity("gpu power", "W", "power of the GPU that draws most"),
    Quantity("rss", "bytes", "resident memory of all processes of the service"),
    Quantity("rss slope", "bytes/h", "its growth over the last half hour, from 10 minutes on"),
)
_BY_NAME = {quantity.name: quantity for quantity in QUANTITIES}
#: Triggers without numbers.
XID, HANG, ANY_FINDING = "xid", "hang", "any finding"
WORDS = (ANY_FINDING, HANG, XID)

#: Units of what is never below zero; a slope is.
_NEVER_NEGATIVE = frozenset({"s", "%", "W", "", "bytes"})
#: Longest text of a trigger, and the longest silence in s (a year).
MAX_TEXT = 400
MAX_SILENCE_S = 365 * 24 * 3600

_NO_PROGRESS = re.compile(r"no progress for (\S+)")
_COMPARISON = re.compile(r"([a-z][a-z0-9 /_-]*?)\s*([<>])\s*(\d+(?:\.\d+)?)\s*(\S*)")


@dataclass(frozen=True)
class Condition:
    """One comparison: ``quantity`` ``sign`` ``limit``, the limit in the quantity's own unit."""

    quantity: str
    sign: str
    limit: float

    def holds(self, value: float) -> bool:
        """Return whether a value meets it."""
        return value > self.limit if self.sign == ">" else value < self.limit


@dataclass(frozen=True)
class Trigger:
    """One parsed trigger.

    Attributes:
        text: As it was written, with single spaces.
        word: xid, hang or any finding; empty for conditions.
        no_progress_ns: For how long nothing may progress; null without such a condition.
        conditions: Comparisons that must all hold.
    """

    text: str
    word: str = ""
    no_progress_ns: int | None = None
    conditions: tuple[Condition, ...] = ()


def parse_trigger(text: str) -> Trigger:
    """Return the trigger that a text means.

    Raises:
        UsageError: it means none; the text says what would.
    """
    if len(text) > MAX_TEXT:
        raise UsageError(
            f"'{shorten(text)}' is too long for a trigger; {MAX_TEXT} letters are enough"
        )
    plain = " ".join(text.split())
    lower = plain.lower()
    if lower in WORDS:
        return Trigger(plain, lower)
    no_progress_ns: int | None = None
    conditions = []
    for part in re.split(r"\s+and\s+", lower) if lower else []:
        silent = _NO_PROGRESS.fullmatch(part)
        if silent is not None:
            no_progress_ns = _silence_ns(part, silent[1])
        else:
            conditions.append(_condition(part))
    if no_progress_ns is None and not conditions:
        raise UsageError("an empty trigger never fires; write for example 'no progress for 10s'")
    return Trigger(plain, "", no_progress_ns, tuple(conditions))


def _condition(part: str) -> Condition:
    match = _COMPARISON.fullmatch(part)
    if match is None:
        raise UsageError(
            f"'{part}' is no condition of a trigger; write for example 'launch p99 > 5ms', "
            "'no progress for 10s', 'xid' or 'any finding'"
        )
    name = match[1]
    quantity = _BY_NAME.get(name)
    if quantity is None:
        close = difflib.get_close_matches(name, _BY_NAME, n=1)
        hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(_BY_NAME)}"
        raise UsageError(f"'{name}' is nothing that a trigger can compare; {hint}")
    condition = Condition(name, match[2], _number(part, quantity.unit, match[3], match[4]))
    _check_can_change(part, quantity, condition)
    return condition


def _check_can_change(part: str, quantity: Quantity, condition: Condition) -> None:
    """Refuse a comparison that holds never or always, whatever the service does."""
    limit, is_above = condition.limit, condition.sign == ">"
    if limit <= 0 and quantity.unit in _NEVER_NEGATIVE:
        if not is_above:
            raise UsageError(f"'{part}' never holds: {quantity.name} is never below 0")
        if quantity.unit == "s":
            raise UsageError(f"'{part}' always holds: a time is always above 0")
    if quantity.unit == "%" and is_above and limit >= 100:
        raise UsageError(f"'{part}' never holds: {quantity.name} is at most 100 %")
    if quantity.unit == "%" and not is_above and limit > 100:
        raise UsageError(f"'{part}' always holds: {quantity.name} is at most 100 %")


def _silence_ns(part: str, time: str) -> int:
    seconds = _number(part, "s", *_split(time, part))
    if seconds > MAX_SILENCE_S:
        raise UsageError(
            f"'{shorten(part)}' is too long a time; the longest is {MAX_SILENCE_S // 3600}h"
        )
    nanoseconds = round(seconds * 1e9)
    if nanoseconds <= 0:
        raise UsageError(f"'{part}' always holds; write for example 'no progress for 10s'")
    return nanoseconds


def _split(text: str, part: str) -> tuple[str, str]:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(\D*)", text)
    if match is None:
        raise UsageError(f"'{part}' has no time in it; write for example 'no progress for 10s'")
    return match[1], match[2]


def _number(part: str, kind: str, number: str, unit: str) -> float:
    units = _UNITS[kind]
    if unit not in units:
        known = ", ".join(name for name in units if name) or "no unit at all"
        given = f"has the unit '{unit}'" if unit else "has no unit"
        raise UsageError(f"'{part}' {given}; it takes {known}")
    value = float(number) * units[unit]
    if not math.isfinite(value):
        raise UsageError(f"'{shorten(part)}' has a number that is too large")
    return value
