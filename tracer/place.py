"""Ends a recording whose directory was removed or moved: nothing more of it would be kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from probes.probe import Batch
from tracer.watching import Moment

#: Reason of the end.
FOLDER_GONE = "folder_gone"


class Place:
    """Tells whether a path still leads to the directory that it led to at first.

    Args:
        path: The directory.

    Raises:
        OSError: it is not there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Held open, so that a file system cannot number the directory anew meanwhile.
        self._descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._first = os.fstat(self._descriptor)
        #: Whether it did when it was looked last.
        self.is_kept = True

    def look(self) -> bool:
        """Return whether it does; may wait for the disk, whose silence proves nothing."""
        try:
            self.is_kept = os.path.samestat(self._first, self._path.stat())
        except (FileNotFoundError, NotADirectoryError):
            self.is_kept = False
        except OSError:
            pass
        return self.is_kept

    def check(self) -> None:
        """Do nothing where it does.

        Raises:
            FileNotFoundError: it does not.
        """
        if not self.look():
            raise FileNotFoundError(2, "the directory was removed or moved", str(self._path))

    def close(self) -> None:
        """Let go of the directory; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class PlaceWatch:
    """Looks each second whether the session is still where it was made.

    Args:
        session: The session's directory.
        is_in_place: Tells whether it is, without waiting for a disk.
        say: Tells the person one line.
    """

    def __init__(
        self, session: Path, is_in_place: Callable[[], bool], say: Callable[[str], None]
    ) -> None:
        self._session = session
        self._is_in_place = is_in_place
        self._say = say
        self._is_told = False

    def observe(self, batch: Batch, now_ns: int) -> None:
        """Rows are nothing to it."""

    def look(self, moment: Moment) -> Sequence[Batch]:
        """End the recording where it is not."""
        if not self._is_told and not self._is_in_place():
            self._is_told = True
            self._say(f"{self._session} was removed or moved; the recording ends.")
            moment.stop(FOLDER_GONE)
        return ()

    def close(self) -> Sequence[Batch]:
        """Nothing is left to record."""
        return ()
