"""Makes the directory of a session, and refuses to harm what is there already."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from analysis.kept import FILE_NAME as KEPT_NAME
from analysis.manifest import FILE_NAME, Manifest, ManifestError
from tracer import captures, lock
from tracer.errors import SessionError
from tracer.lock import SessionLock, is_being_recorded
from tracer.segments import TEMPORARY_SUFFIX, parse_segment

#: Files beside the tables' folders, and those of one capture.
_FILES = frozenset({FILE_NAME, KEPT_NAME, lock.FILE_NAME})
_CAPTURE_FILES = frozenset({"trigger.json", "evidence.json", "finding.json"})


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
    """Empty the directory of an old session that may be replaced; an empty one may always be.

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
    try:
        Manifest.read(path)
    except ManifestError as error:
        raise SessionError(
            f"{path} is not a session of this tracer and will not be deleted ({error}); "
            "choose another -o DIR"
        ) from None
    foreign = next(_foreign(path), None)
    if foreign is not None:
        raise SessionError(
            f"{path} holds {foreign.relative_to(path)}, which is not a part of a session, and will "
            "not be deleted; move that away, or choose another -o DIR"
        )
    if is_being_recorded(path):
        raise SessionError(f"{path} is being written by another recorder; choose another -o DIR")
    for item in path.iterdir():  # the directory stays: it may be the present one
        if _is_folder(item):
            shutil.rmtree(item)
        else:
            item.unlink()


def _foreign(session: Path) -> Iterator[Path]:
    """What lies in a session's directory and was not written by a recorder."""
    for item in session.iterdir():
        if not _is_folder(item):
            if item.name not in _FILES and not _is_unfinished(item):
                yield item
        elif item.name == captures.FOLDER:
            for capture in item.iterdir():
                files = capture.iterdir() if _is_folder(capture) else iter([capture])
                for file in files:
                    if file.name not in _CAPTURE_FILES and not _is_unfinished(file):
                        yield file
        else:
            for file in item.iterdir():
                is_segment = parse_segment(file.with_name(file.name.removesuffix(".damaged")))
                if _is_folder(file) or not (is_segment or _is_unfinished(file)):
                    yield file


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_unfinished(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(TEMPORARY_SUFFIX)
