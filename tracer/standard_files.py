"""What a command needs of its process: the three standard files, and room for open files.

A daemon's child may have none of the standard files. The next file to be opened would take their
number then, and a library's warning would be written into it: into a segment of the session.
A terminal of another encoding than UTF-8 lacks some of the letters that are printed.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import resource
import sys

#: What is written for a letter that the terminal's encoding lacks; a question mark for any other.
_STAND_INS = {"µ": "u", "°": "", "–": "-", "…": "..."}
_ERRORS = "tracer.stand_in"


def ensure_standard_files() -> None:
    """Open the null device in the place of each standard file that is closed."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is given, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def write_in_any_encoding() -> None:
    """Let standard output and error write a stand-in for what their encoding lacks."""
    codecs.register_error(_ERRORS, _stand_in)
    for file in (sys.stdout, sys.stderr):
        if isinstance(file, io.TextIOWrapper) and codecs.lookup(file.encoding).name != "utf-8":
            file.reconfigure(errors=_ERRORS)


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return "".join(_STAND_INS.get(letter, "?") for letter in letters), error.end


def raise_file_limit() -> None:
    """Allow as many open files as the system grants: targets with many threads need them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
