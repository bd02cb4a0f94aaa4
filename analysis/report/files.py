"""Files that a report or an export becomes: whole or not at all, and over another only if asked."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_ROOM = "make room there, or give another place with -o"
_NO_RIGHTS = "repeat as its owner, or give another place with -o"
#: Errors of a disk that takes no (more) writes, and what mends them.
_UNWRITABLE: dict[int | None, str] = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EFBIG: "raise the limit of a file's size (ulimit -f unlimited)",
    errno.EROFS: "give another place with -o",
    errno.EACCES: _NO_RIGHTS,
    errno.EPERM: _NO_RIGHTS,
    errno.ENAMETOOLONG: "give a shorter name with -o",
}

#: Those among them that no reading can meet.
_ONLY_OF_WRITES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})


class OutputError(ValueError):
    """The output cannot be made; the text says why and what to do."""


class LibraryError(ValueError):
    """A library that the output needs is not installed; the text says how to install it."""


@contextmanager
def replaced(path: Path, *, force: bool) -> Iterator[Path]:
    """Give a name to write a file or directory under, and move it to ``path`` at the end.

    Nothing is left of it when the body fails.

    Args:
        path: Where it is to be.
        force: Replace what is there.

    Raises:
        OutputError: something is there that may not be replaced, or it cannot be written.
        OSError: something else that the body reads or writes failed.
    """
    try:
        _check(path, force)
        folder = Path(tempfile.mkdtemp(prefix=".tracer-", dir=path.parent))
    except OSError as error:
        raise _not_written(path, error) from None
    try:
        part = folder / path.name
        try:
            yield part
        except OSError as error:
            if error.errno not in _ONLY_OF_WRITES:
                raise
            raise _not_written(path, error) from None
        try:
            if path.is_dir():
                shutil.rmtree(path)
            os.replace(part, path)  # noqa: PTH105 - a name for what happens: atomic in one file system
        except OSError as error:
            raise _not_written(path, error) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check(path: Path, force: bool) -> None:
    """See that a file or directory may be put there.

    Raises:
        OutputError: it may not.
        OSError: that cannot be told.
    """
    if not path.name:
        raise OutputError(f"{path} is a directory; give the name of a file in it")
    if path.is_symlink() or path.exists():
        if not force:
            raise OutputError(f"{path} exists already; give another name, or --force to replace it")
        if path.is_symlink():
            raise OutputError(f"{path} is a link; give the name of what it leads to, or another")
        if path.is_dir() and not _is_ours(path):
            raise OutputError(f"{path} is a directory of something else; give another name")
        if not path.is_dir() and not path.is_file():
            raise OutputError(f"{path} is a device or pipe, which stays; give another name")
    if not path.parent.is_dir():
        raise OutputError(f"{path.parent} is not a directory; make it first, or give another name")


def _not_written(path: Path, error: OSError) -> OutputError:
    remedy = _UNWRITABLE.get(error.errno, "give another place with -o")
    return OutputError(f"{path} cannot be written ({error.strerror or error}); {remedy}")


def _is_ours(path: Path) -> bool:
    """Whether a directory holds nothing but tables that an export wrote."""
    return all(item.suffix == ".csv" and item.is_file() for item in path.iterdir())
