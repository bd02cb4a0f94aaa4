"""Takes SIGHUP from the first instruction on, where it will mean to read the settings again.

Whoever starts the recorder as a service may ask for that at once, long before the command line is
read; the signal would end it. What was asked for so early is done anyway: the file is read later.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from types import FrameType

_OPTION = "--config"


def take_early_hang_up(arguments: Sequence[str]) -> None:
    """Outlive SIGHUP where the command line names a file of settings, unless it says that the
    terminal was closed; :class:`tracer.settings_file.SettingsFile` takes over.
    """
    if not any(word == _OPTION or word.startswith(f"{_OPTION}=") for word in arguments):
        return
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL:
        return
    had_terminal = has_terminal()

    def handle(number: int, _: FrameType | None) -> None:
        if had_terminal and not has_terminal():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGHUP, handle)


def has_terminal() -> bool:
    """Return whether this process has a terminal that is there."""
    try:
        descriptor = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    os.close(descriptor)
    return True
