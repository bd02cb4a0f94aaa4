"""Ends a recording before the disk that it shares with the service is full."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from probes.probe import Batch
from tracer.errors import SessionError
from tracer.watching import Moment

#: Reason of the end.
DISK_LOW = "disk_low"


class FreeSpace:
    """Looks at the free space of the session's disk each second.

    Args:
        session: The session's directory, or where it will be made.
        least_bytes: The recording ends when less is free.

    Raises:
        SessionError: less is free already.
    """

    def __init__(self, session: Path, least_bytes: int) -> None:
        self._path = _existing(session)
        self._least_bytes = least_bytes
        free = free_bytes(self._path)
        if free is not None and free < least_bytes:
            raise SessionError(
                f"only {free / 1e6:.0f} MB are free where {session} would be, and --min-free is "
                f"{least_bytes / 1e6:.0f} MB; make room, choose another -o DIR, or lower --min-free"
            )

    def change(self, least_bytes: int) -> None:
        """End the recording when less than this is free, from now on."""
        self._least_bytes = least_bytes

    def observe(self, batch: Batch, now_ns: int) -> None:
        """Rows are nothing to it."""

    def look(self, moment: Moment) -> Sequence[Batch]:
        """End the recording where too little is free."""
        free = free_bytes(self._path)
        if free is not None and free < self._least_bytes:
            moment.stop(DISK_LOW)
        return ()

    def close(self) -> Sequence[Batch]:
        """Nothing is left to record."""
        return ()


def free_bytes(path: Path) -> int | None:
    """Return what an ordinary user may still write on a path's disk; None where it is not told."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def _existing(path: Path) -> Path:
    """The nearest directory that exists."""
    path = path.absolute()
    while not _is_there(path) and path != path.parent:
        path = path.parent
    return path


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # e.g. a name that is too long; making the session says so
        return False
