"""Makes the directory of a session, and refuses to harm what is there already."""

from __future__ import annotations

import shutil
from pathlib import Path

from analysis.manifest import FILE_NAME
from tracer.errors import SessionError
from tracer.lock import SessionLock, is_being_recorded


def make_folder(path: Path, force: bool) -> SessionLock:
    """Make an empty session directory (mode 0700) and return its lock.

    Raises:
        SessionError: it exists and may not be replaced, or cannot be made.
    """
    try:
        if path.is_symlink() or path.exists():
            _clear_folder(path, force)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
        lock = SessionLock.acquire(path)
    except OSError as error:
        raise SessionError(
            f"{path} cannot be made ({error.strerror}); choose another place with -o DIR"
        ) from None
    if lock is None:
        raise SessionError(f"{path} is being written by another recorder; choose another -o DIR")
    return lock


def _clear_folder(path: Path, force: bool) -> None:
    """Delete an old session that may be replaced; an empty directory may always be.

    Raises:
        SessionError: it may not be deleted.
        OSError: it could not be deleted.
    """
    if not path.is_dir() or path.is_symlink():
        raise SessionError(f"{path} exists and is not a directory; choose another -o DIR")
    if not any(path.iterdir()):
        return
    if not force:
        raise SessionError(
            f"{path} already exists; choose another -o DIR, or replace it with --force"
        )
    if not (path / FILE_NAME).is_file():
        raise SessionError(
            f"{path} is not a session and will not be deleted; choose another -o DIR"
        )
    if is_being_recorded(path):
        raise SessionError(f"{path} is being written by another recorder; choose another -o DIR")
    shutil.rmtree(path)
