"""Files that a report or an export becomes: whole or not at all, and over another only if asked."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
        OutputError: something is there, or it is a directory where a file is to be.
        OSError: it cannot be written.
    """
    if path.is_symlink() or path.exists():
        if not force:
            raise OutputError(f"{path} exists already; give another name, or --force to replace it")
        if path.is_dir() and not _is_ours(path):
            raise OutputError(f"{path} is a directory of something else; give another name")
    if not path.parent.is_dir():
        raise OutputError(f"{path.parent} is not a directory; make it first, or give another name")
    folder = Path(tempfile.mkdtemp(prefix=".tracer-", dir=path.parent))
    try:
        part = folder / path.name
        yield part
        if path.is_dir():
            shutil.rmtree(path)
        part.chmod(0o755 if part.is_dir() else 0o644)
        os.replace(part, path)  # noqa: PTH105 - a name for what happens: atomic in one file system
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_ours(path: Path) -> bool:
    """Whether a directory holds nothing but tables that an export wrote."""
    return all(item.suffix == ".csv" and item.is_file() for item in path.iterdir())
