"""A recording for as long as somebody looks at it: into a temporary directory, by a process of its
own that ends with this one.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from analysis.manifest import FILE_NAME
from tracer.errors import EXIT_CODES, TracerError

_PR_SET_PDEATHSIG = 1
#: How long the recorder may take to close its files before it is ended.
_CLOSE_S = 15.0


class RecorderError(TracerError):
    """The recorder ended by itself; the text is what it said."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class TemporaryRecording:
    """Records while its context lasts; what was recorded is removed at the end.

    Args:
        arguments: Further options of ``tracer record``, e.g. ``["--pid", "42"]``.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = list(arguments)

    def __enter__(self) -> TemporaryRecording:
        self._folder = Path(tempfile.mkdtemp(prefix="tracer-top-"))
        self.path = self._folder / "top.tracer"
        self._messages = (self._folder / "messages").open("w+", encoding="utf-8", errors="replace")
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tracer", "record"),
                    *(*self._arguments, "-o", str(self.path)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._messages,
                # A Ctrl-C ends the looking, which then ends the recording; and nothing outlives it.
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
                try:
                    self._process.wait(_CLOSE_S)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
        finally:
            self._remove()

    @property
    def has_begun(self) -> bool:
        """Whether there is a session to look at."""
        return (self.path / FILE_NAME).exists()

    def has_ended(self) -> bool:
        """Return whether the recording is over because its target ended.

        Raises:
            RecorderError: it is over for another reason.
        """
        code = self._process.poll()
        if code is None:
            return False
        if code == 0:
            return True
        self._messages.seek(0)
        said = self._messages.read().strip().splitlines()
        text = said[-1].removeprefix("tracer: ") if said else "it said nothing"
        raise RecorderError(f"the recorder ended: {text}", code if code in EXIT_CODES else 1)

    def _remove(self) -> None:
        self._messages.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _end_with_parent() -> None:
    """In the new process: get SIGTERM when the one that started it dies, however it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:
        os._exit(1)
