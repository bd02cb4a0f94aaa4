"""The file of ``record --config``: options that can change while it records, read again at SIGHUP.

Each line is ``NAME = VALUE`` with the name of an option, as on the command line; ``trigger`` may
come repeatedly. Empty lines and lines that begin with ``#`` say nothing. What the file says holds
before the command line; its triggers are added to those of the command line.
"""

from __future__ import annotations

import atexit
import difflib
import os
import signal
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import click

from analysis.schema import EVENT
from probes.probe import Batch, make_batch
from tracer.commands.parameters import parse_bytes, parse_duration
from tracer.early_hang_up import has_terminal
from tracer.errors import InputError, TracerError, UsageError
from tracer.long_run import LongRunOptions
from tracer.plain_text import plain_line, shorten
from tracer.trigger_grammar import Trigger, parse_trigger
from tracer.watching import Moment

#: Longest file that is read.
MAX_BYTES = 64 << 10


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise click.BadParameter(f"'{shorten(text)}' is not a number from 1 on")
    return int(text)


def _command(text: str) -> str:
    return text


#: Options of the file that are fields of :class:`LongRunOptions`, and of its ``captures``.
_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "keep": ("keep_ns", parse_duration),
    "max-size": ("max_bytes", parse_bytes),
    "min-free": ("min_free_bytes", parse_bytes),
}
_CAPTURE_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "max-captures": ("per_hour", _count),
    "on-finding": ("on_finding", _command),
    "trigger-after": ("after_ns", parse_duration),
    "trigger-before": ("before_ns", parse_duration),
}
_TRIGGER = "trigger"
#: Every name that a line may begin with.
NAMES = tuple(sorted([*_FIELDS, *_CAPTURE_FIELDS, _TRIGGER]))


def parse_settings(text: str, base: LongRunOptions, name: str) -> LongRunOptions:
    """Return options with what a file's text says in place of theirs.

    Args:
        text: Content of the file.
        base: What holds where it says nothing.
        name: What to call the file in an error.

    Raises:
        UsageError: a line says nothing that can be; it is told which.
    """
    values: dict[str, dict[str, Any]] = {"": {}, "captures": {}}
    triggers: list[Trigger] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        option, _, value = (part.strip() for part in words.partition("="))
        try:
            if not value:
                raise UsageError(f"'{shorten(words)}' is not NAME = VALUE")
            if option == _TRIGGER:
                triggers.append(parse_trigger(value))
            elif option in _FIELDS:
                _set(values[""], option, value, _FIELDS)
            elif option in _CAPTURE_FIELDS:
                _set(values["captures"], option, value, _CAPTURE_FIELDS)
            else:
                close = difflib.get_close_matches(option, NAMES, n=1)
                hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(NAMES)}"
                raise UsageError(f"'{shorten(option)}' is no option of this file; {hint}")
        except (UsageError, click.BadParameter) as error:
            told = error.message if isinstance(error, click.BadParameter) else str(error)
            raise UsageError(f"{name}, line {number}: {told}") from None
    return replace(
        base,
        **values[""],
        triggers=(*base.triggers, *(item for item in triggers if item not in base.triggers)),
        captures=replace(base.captures, **values["captures"]),
    )


def _set(
    values: dict[str, Any],
    option: str,
    value: str,
    fields: Mapping[str, tuple[str, Callable[[str], Any]]],
) -> None:
    field, parse = fields[option]
    if field in values:
        raise UsageError(f"{option} is there twice; leave one")
    values[field] = parse(value)


class SettingsFile:
    """One file of settings, and whether it is to be read again.

    Args:
        path: Where it is.
        base: Options of the command line.
    """

    def __init__(self, path: Path, base: LongRunOptions) -> None:
        self.path = path
        self._base = base
        self._is_asked = False
        is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._had_terminal = not is_ignored and has_terminal()

    def read(self) -> LongRunOptions:
        """Return the options of the command line and the file.

        Raises:
            InputError: it cannot be read.
            UsageError: it says what cannot be.
        """
        # A pipe that nobody writes to would hold up the recording.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        try:
            with os.fdopen(os.open(self.path, flags), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise InputError(f"{self.path} is no regular file; give the file of --config")
                content = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be read ({error.strerror}); give the file of --config"
            ) from None
        if len(content) > MAX_BYTES:
            raise InputError(f"{self.path} is too large for a file of options; give another")
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise InputError(f"{self.path} is not a text; give another") from None
        return parse_settings(text, self._base, str(self.path))

    def listen(self) -> None:
        """Let SIGHUP ask for it from now on, also before the recording begins."""

        def handle(number: int, _: FrameType | None) -> None:
            if not self.ask():
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)

        signal.signal(signal.SIGHUP, handle)
        # At its end the interpreter takes handlers away, and one more would be its exit status.
        atexit.register(signal.signal, signal.SIGHUP, signal.SIG_IGN)

    def ask(self) -> bool:
        """Note that it is to be read again; False where SIGHUP says that the terminal was closed.

        May be called from a signal handler.
        """
        if self._had_terminal and not has_terminal():
            return False
        self._is_asked = True
        return True

    def take_asked(self) -> bool:
        """Return whether it was asked for since the last call."""
        was_asked, self._is_asked = self._is_asked, False
        return was_asked


class Reload:
    """Reads the file again when it was asked for, and tells what changed as an event.

    Args:
        file: The file.
        options: What holds at first.
        change: Lets the recording go on by other options; returns what it could not change.
        say: Tells the person one line.
    """

    def __init__(
        self,
        file: SettingsFile,
        options: LongRunOptions,
        change: Callable[[LongRunOptions], Sequence[str]],
        say: Callable[[str], None],
    ) -> None:
        self._file = file
        self._options = options
        self._change = change
        self._say = say

    def observe(self, batch: Batch, now_ns: int) -> None:
        """Rows are nothing to it."""

    def look(self, moment: Moment) -> Sequence[Batch]:
        """Read the file if it was asked for; one that is wrong changes nothing."""
        if not self._file.take_asked():
            return ()
        try:
            options = self._file.read()
        except TracerError as error:
            detail = f"{error}. The recording goes on as before."
        else:
            changed = ", ".join(_changes(self._options, options)) or "nothing changed"
            left = "".join(f" {sentence}" for sentence in self._change(options))
            self._options = options
            detail = f"{self._file.path} was read again: {changed}.{left}"
        self._say(detail)
        row = {"time_ns": [moment.now_ns], "kind": ["other"], "name": ["reload"]}
        return [make_batch(EVENT, {**row, "detail": [plain_line(detail)]})]

    def close(self) -> Sequence[Batch]:
        """Nothing is left to record."""
        return ()


def _changes(before: LongRunOptions, after: LongRunOptions) -> list[str]:
    """What differs, a few words each."""
    old, new = ([item.text for item in options.triggers] for options in (before, after))
    return [
        *(f"trigger '{text}' added" for text in new if text not in old),
        *(f"trigger '{text}' removed" for text in old if text not in new),
        *(
            f"{name} changed"
            for fields, one, two in (
                (_FIELDS, before, after),
                (_CAPTURE_FIELDS, before.captures, after.captures),
            )
            for name, (field, _) in fields.items()
            if getattr(one, field) != getattr(two, field)
        ),
    ]
