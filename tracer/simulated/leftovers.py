"""Folders of stages that were killed: found by their lock, which ends with its process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tracer.simulated.device import MEMORY, MEMORY_PREFIX

#: A stage's folder is named so, followed by random letters.
PREFIX = "tracer-stage-"
#: Younger folders are left alone: their stage may be about to lock them.
_YOUNG_S = 60.0


class StageFolder:
    """A temporary folder that belongs to this process until :meth:`remove` or its death."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock: int | None = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove the folder with what is in it; harmless when done twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        _remove(self.path)


def sweep(parent: Path | None = None, now_s: float | None = None) -> int:
    """Remove the folders of stages that died without removing them, and their devices' memory.

    Args:
        parent: Where the folders are; the system's temporary folder by default.
        now_s: Seconds since the epoch; now by default.

    Returns:
        How many were removed.
    """
    n_removed = 0
    oldest = (time.time() if now_s is None else now_s) - _YOUNG_S
    for folder in (parent or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), _locked(folder):
            found = folder.stat()
            if found.st_uid == os.geteuid() and found.st_mtime < oldest:
                _remove(folder)
                n_removed += 1
    return n_removed


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _remove(folder: Path) -> None:
    device = folder / "device"
    if device.is_symlink():
        memory = device.readlink()
        if memory.parent == MEMORY and memory.name.startswith(MEMORY_PREFIX):
            memory.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
