"""Tells whether a session is being written: the recorder holds a lock that ends with it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

FILE_NAME = ".lock"


class SessionLock:
    """An exclusive lock on a session directory; the kernel releases it when the holder dies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, session: Path) -> SessionLock | None:
        """Return the lock, or None where another process holds it.

        Raises:
            OSError: the lock file cannot be made.
        """
        flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(session / FILE_NAME, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def release(self) -> None:
        """Give the lock back; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def is_being_recorded(session: Path) -> bool:
    """Return whether a living recorder writes this session."""
    if not (session / FILE_NAME).exists():
        return False
    lock = SessionLock.acquire(session)
    if lock is None:
        return True
    lock.release()
    return False
