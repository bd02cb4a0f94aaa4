"""Room that a session holds back on its disk, for what must be written at the end."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

#: An unfinished file by its name: whoever mends a session removes it.
FILE_NAME = ".reserve.tmp"
#: Room for the rows of ``loss`` and ``event``, beside the manifest.
ROWS_BYTES = 16 << 10
#: The same on a disk of some size: a quota of btrfs also counts, for each file that is made or
#: renamed, a dozen blocks of 16 KiB that may change.
LARGE_DISK_BYTES = 64 << 20
LARGE_ROWS_BYTES = 512 << 10


class Reserve:
    """A file of a session that takes up room until it is needed; none where there is no room.

    Args:
        session: The session's directory.
    """

    def __init__(self, session: Path) -> None:
        self._path = session / FILE_NAME
        self._n_bytes = 0
        self._lent_bytes = 0

    def hold(self, n_bytes: int) -> None:
        """Hold back room for a manifest of so many bytes and the last rows; never less again."""
        self._take(n_bytes + n_bytes // 4 + self._rows_bytes())

    def _take(self, wanted: int) -> None:
        if wanted <= self._n_bytes:
            return
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, wanted)
            finally:
                os.close(descriptor)
        except OSError:
            return  # what is held already stays
        self._n_bytes, self._lent_bytes = wanted, 0

    def _rows_bytes(self) -> int:
        try:
            disk = os.statvfs(self._path.parent)
        except OSError:
            return ROWS_BYTES
        is_large = disk.f_blocks * disk.f_frsize >= LARGE_DISK_BYTES
        return LARGE_ROWS_BYTES if is_large else ROWS_BYTES

    def release(self) -> None:
        """Give the room back."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._n_bytes = self._lent_bytes = 0

    def lend(self) -> None:
        """Give the room back for what makes more of it; :meth:`take_back` comes after."""
        lent = max(self._n_bytes, self._lent_bytes)
        self.release()
        self._lent_bytes = lent

    def take_back(self) -> None:
        """Hold what was lent, as soon as there is room for it."""
        if self._lent_bytes:
            self._take(self._lent_bytes)

    def settle(self) -> None:
        """Wait until the room that was given back can be had.

        Some file systems (btrfs and its quotas) count a removed file until their next transaction.
        """
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                ctypes.CDLL(None).syncfs(descriptor)
            finally:
                os.close(descriptor)
