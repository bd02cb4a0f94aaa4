"""Names of the segment files of a session, which of them count, and how one is put in place.

A table's folder holds closed Parquet files ``FIRST-LAST.parquet``: the range of sequence numbers
whose rows they hold, zero padded. A fresh segment has FIRST = LAST; compaction writes one file for
a whole range and then deletes the files it replaces.

**The rule for readers**: list the folder, take the files of that form, and ignore every file whose
range lies inside the range of a larger one. Whenever the recorder dies, each row is then seen
exactly once. A file that vanishes between listing and opening was compacted: list again. Files
that end in ``.tmp`` are unfinished and hold nothing that counts.

Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SUFFIX = ".parquet"
TEMPORARY_SUFFIX = ".tmp"
_DIGITS = 9


@dataclass(frozen=True)
class Segment:
    """One closed file: the first and last sequence number it holds, and where it is."""

    first: int
    last: int
    path: Path


def segment_name(first: int, last: int) -> str:
    """Return the file name of the segment that holds sequence numbers ``first`` to ``last``."""
    return f"{first:0{_DIGITS}d}-{last:0{_DIGITS}d}{SUFFIX}"


def parse_segment(path: Path) -> Segment | None:
    """Return the segment that a path names, or None for any other file."""
    if path.suffix != SUFFIX:
        return None
    first, dash, last = path.stem.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal()) or int(first) > int(last):
        return None
    return Segment(int(first), int(last), path)


def split_visible(paths: Iterable[Path]) -> tuple[list[Segment], list[Segment]]:
    """Return the segments that count, in order, and those that a larger one covers."""
    segments = [segment for path in paths if (segment := parse_segment(path)) is not None]
    segments.sort(key=lambda segment: (segment.first, -segment.last))
    visible: list[Segment] = []
    covered: list[Segment] = []
    for segment in segments:
        if visible and segment.last <= visible[-1].last:
            covered.append(segment)
        else:
            visible.append(segment)
    return visible, covered


def list_segments(folder: Path) -> list[Segment]:
    """Return the segments of one table's folder that count, in order; empty where none is."""
    try:
        return split_visible(folder.iterdir())[0]
    except FileNotFoundError:
        return []


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Put a file in place atomically and durably: temporary name, fsync, rename, fsync folder.

    Raises:
        OSError: it could not be written; no temporary file is left and an old file stays.
    """
    temporary = path.with_name(f".{path.name}{TEMPORARY_SUFFIX}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            rest = memoryview(content).cast("B")
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
