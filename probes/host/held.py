"""Small files of /proc and /sys that are read again and again: kept open, and read by offset.

Opening and closing costs three to five times the reading. A file of a process that has ended, or
of a cgroup that was removed, refuses to be read; its path is opened anew then, so that what is
read is always what the path names.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence

#: Most bytes of such a file.
MAX_BYTES = 1 << 20
#: Most bytes of a file that is read with others.
SMALL_BYTES = 1024
#: Part of the files that a process may open which one instance takes at most.
_SHARE = 8
_MOST = 4096
_FIRST_BYTES = 1 << 14

#: Reads a whole file: its bytes, None when it is gone or may not be read.
ReadFile = Callable[[str], bytes | None]


class HeldFiles:
    """Reads files by path and keeps them open; not thread-safe.

    Args:
        limit: Most files kept open; by default an eighth of what this process may open.
    """

    def __init__(self, limit: int | None = None) -> None:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        allowed = _MOST if soft == resource.RLIM_INFINITY else soft // _SHARE
        self._limit = min(allowed, _MOST) if limit is None else limit
        self._open: dict[str, int] = {}
        self._used: set[str] = set()
        #: How many times files were closed or looked over.
        self.n_changes = 0

    def __len__(self) -> int:
        """Number of files kept open."""
        return len(self._open)

    def read(self, path: str) -> bytes | None:
        """Return the file's bytes from its start, read to the end; None when it cannot be read."""
        descriptor = self._open.get(path)
        if descriptor is not None:
            self._used.add(path)
            data = _read(descriptor)
            if data is not None:
                return data
            self.n_changes += 1
            del self._open[path]
            os.close(descriptor)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        data = _read(descriptor)
        if data is not None and len(self._open) < self._limit:
            self._open[path] = descriptor
            self._used.add(path)
        else:
            os.close(descriptor)
        return data

    def group(self, paths: Sequence[str]) -> FileGroup:
        """Return what reads some small files in one go, again and again."""
        return FileGroup(self, paths)

    def descriptors(self, paths: Sequence[str]) -> list[int] | None:
        """Return the open files of some paths until :attr:`n_changes` grows; None where one is not
        open.
        """
        opened = self._open
        try:
            descriptors = [opened[path] for path in paths]
        except KeyError:
            return None
        self._used.update(paths)
        return descriptors

    def sweep(self) -> None:
        """Close the files that were not read since the last sweep."""
        self.n_changes += 1
        for path in self._open.keys() - self._used:
            os.close(self._open.pop(path))
        self._used.clear()

    def close(self) -> None:
        """Close all files."""
        self._used.clear()
        self.sweep()


class FileGroup:
    """Small files that are read in one go; made by :meth:`HeldFiles.group`."""

    def __init__(self, files: HeldFiles, paths: Sequence[str]) -> None:
        self._files = files
        self._paths = paths
        self._descriptors: list[int] | None = None
        self._n_changes = -1

    def read(self, clock: Callable[[], int]) -> list[tuple[bytes | None, int]]:
        """Return the bytes of each file (None when it cannot be read), and when they were read.

        What is said in :meth:`HeldFiles.read` holds; of a file that is not small, the rest is left
        out.

        Args:
            clock: Tells when a file was read.
        """
        files = self._files
        if self._n_changes != files.n_changes:
            self._descriptors = files.descriptors(self._paths)
            self._n_changes = files.n_changes
        if self._descriptors is not None:
            pread = os.pread
            try:
                return [(pread(fd, SMALL_BYTES, 0), clock()) for fd in self._descriptors]
            except OSError:
                pass
        result = [(files.read(path), clock()) for path in self._paths]
        self._n_changes = -1
        return result


def _read(descriptor: int) -> bytes | None:
    """Bytes of an open file; None when it refuses.

    The kernel gives such a file in one piece when there is room, or in pieces of a page.
    """
    try:
        data = os.pread(descriptor, _FIRST_BYTES, 0)
        if len(data) < 2048:
            return data
        parts = [data]
        size = len(data)
        while size < MAX_BYTES:
            part = os.pread(descriptor, _FIRST_BYTES, size)
            if not part:
                break
            parts.append(part)
            size += len(part)
        return b"".join(parts)
    except OSError:
        return None
