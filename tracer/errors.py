"""Errors a user can meet, each with its exit code. The text is one fact and one remedy."""

from __future__ import annotations

#: Exit codes, as printed at the end of ``tracer --help``.
EXIT_CODES = {
    0: "done",
    1: "an error in tracer itself",
    2: "wrong usage",
    3: "the input cannot be read",
    4: "rights or requirements are missing",
    5: "the target does not exist or ended before anything was recorded",
    6: "the session, report or export could not be written in full",
    7: "a cause that --fail-on names was found",
    8: "a cause that --fail-on names could be neither found nor ruled out",
}


class TracerError(Exception):
    """A foreseeable failure; the text says what failed and what to do."""

    exit_code = 1


class UsageError(TracerError):
    """The command line asks for something that cannot be."""

    exit_code = 2


class InputError(TracerError):
    """A file or session that was named cannot be read."""

    exit_code = 3


class RequirementError(TracerError):
    """Rights or a part of the machine are missing."""

    exit_code = 4


class TargetError(TracerError):
    """The process to record is not there."""

    exit_code = 5


class SessionError(TracerError):
    """The session directory cannot be made or written."""

    exit_code = 6
