"""How another command reaches the running recordings of this user: one local socket each.

A recording listens on ``PID.sock`` in a directory that only its user can enter. A client sends one
line of JSON and gets one back. Nothing that is sent can change what is recorded; marks are all.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.schema import EVENT
from probes.probe import Batch, make_batch
from tracer.plain_text import plain_line
from tracer.watching import Moment

#: Longest text of a mark; a longer one is cut.
MAX_TEXT = 200
#: Most marks that wait to be recorded (a second's worth).
MAX_WAITING = 1000
_MAX_LINE = 4096
_TIMEOUT_S = 2.0


def runtime_folder() -> Path:
    """Return the directory of the sockets of this user."""
    override = os.environ.get("TRACER_RUNTIME_DIR")
    if override:
        return Path(override)
    if os.geteuid() == 0:
        return Path("/run/tracer")
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "tracer" if base else Path(f"/tmp/tracer-{os.geteuid()}")


def _is_private(folder: Path) -> bool:
    """Whether only this user can put anything there."""
    status = folder.lstat()
    is_own = status.st_uid == os.geteuid() and stat.S_ISDIR(status.st_mode)
    return is_own and not status.st_mode & 0o077


@dataclass(frozen=True)
class Mark:
    """One mark: when it arrived, CLOCK_MONOTONIC in ns, and its text."""

    time_ns: int
    text: str


class Control:
    """The listening side: takes marks for one session; a recording goes on where it cannot.

    Args:
        session: The session's directory, told to clients.
        folder: Directory of the socket.
    """

    def __init__(self, session: Path, folder: Path | None = None) -> None:
        self._session = session.absolute()
        self._folder = folder or runtime_folder()
        self._marks: deque[Mark] = deque(maxlen=MAX_WAITING)
        self._socket: socket.socket | None = None
        self._path = self._folder / f"{os.getpid()}.sock"
        #: Why marks cannot reach it; empty when they can.
        self.problem = ""

    def start(self) -> None:
        """Begin to listen."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_private(self._folder):
                self.problem = f"{self._folder} is open to others: no mark can reach the recording"
                return
            self._path.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(str(self._path))
            listener.listen(16)
        except OSError as error:
            self.problem = f"no mark can reach the recording ({error.strerror or error})"
            return
        self._socket = listener
        thread = threading.Thread(target=self._serve, args=(listener,), name="marks", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self.problem = "no mark can reach the recording (no room for a thread)"
            self._end()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # closed
            with contextlib.suppress(OSError, ValueError), client:
                client.settimeout(_TIMEOUT_S)
                answer = self._answer(_read_line(client))
                client.sendall(json.dumps(answer).encode() + b"\n")

    def _answer(self, line: bytes) -> dict[str, Any]:
        message = _parse(line)
        if message == {}:
            return {"session": str(self._session)}
        text = message.get("mark") if isinstance(message, dict) else None
        if not isinstance(text, str) or not text.strip():
            return {"error": "a mark needs a text"}
        mark = Mark(time.monotonic_ns(), plain_line(text.strip())[:MAX_TEXT])
        self._marks.append(mark)
        return {"session": str(self._session), "time_ns": mark.time_ns}

    def observe(self, batch: Batch, now_ns: int) -> None:
        """Rows are nothing to it."""

    def look(self, moment: Moment) -> Sequence[Batch]:
        """Return the marks that came since."""
        return self._take()

    def close(self) -> Sequence[Batch]:
        """Stop listening and return the last marks."""
        self._end()
        return self._take()

    def _end(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._socket = None
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _take(self) -> Sequence[Batch]:
        marks = []
        while self._marks:
            marks.append(self._marks.popleft())
        return [mark_batch(marks)] if marks else []


def mark_batch(marks: Sequence[Mark]) -> Batch:
    """Return one row of ``event`` per mark."""
    return make_batch(
        EVENT,
        {
            "time_ns": [mark.time_ns for mark in marks],
            "kind": ["mark"] * len(marks),
            "name": [mark.text for mark in marks],
        },
    )


def send_mark(text: str, session: Path | None = None, folder: Path | None = None) -> list[str]:
    """Send a mark to the running recordings of this user and return their sessions.

    Args:
        text: Text of the mark.
        session: Only to the recording into this directory; None for all.
        folder: Directory of the sockets.
    """
    folder = folder or runtime_folder()
    reached = []
    try:
        paths = sorted(folder.glob("*.sock")) if _is_private(folder) else []
    except OSError:
        return []
    for path in paths:
        if session is not None and _ask(path, {}) != str(session.absolute()):
            continue
        answer = _ask(path, {"mark": text})
        if answer is not None:
            reached.append(answer)
    return reached


def _ask(path: Path, message: dict[str, str]) -> str | None:
    """The session of the recording behind a socket, None where none answers."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(_TIMEOUT_S)
            client.connect(str(path))
            client.sendall(json.dumps(message).encode() + b"\n")
            answer = _parse(_read_line(client))
    except ConnectionRefusedError:
        with contextlib.suppress(OSError):
            path.unlink()  # of a recorder that was killed
        return None
    except (OSError, ValueError):
        return None
    return str(answer["session"]) if isinstance(answer, dict) and "session" in answer else None


def _parse(line: bytes) -> Any:
    """What a line of JSON says.

    Raises:
        ValueError: it is no JSON, or nested without end.
    """
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("the line is nested too deeply") from None


def _read_line(client: socket.socket) -> bytes:
    """One line.

    Raises:
        OSError: it did not come in time.
        ValueError: it is too long.
    """
    data = b""
    while not data.endswith(b"\n"):
        part = client.recv(_MAX_LINE)
        if not part:
            break
        data += part
        if len(data) > _MAX_LINE:
            raise ValueError("the line is too long")
    return data
