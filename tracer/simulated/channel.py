"""Messages between the API process and its engine: JSON objects over a local socket."""

from __future__ import annotations

import json
import select
import socket
from typing import Any

_LARGEST_BYTES = 1 << 20


class Channel:
    """One end of a pair of sockets that keep message boundaries."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Return this process's end and the socket to hand to a child."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), theirs

    @classmethod
    def from_descriptor(cls, descriptor: int) -> Channel:
        """Return the end that a parent handed down as an open descriptor."""
        return cls(socket.socket(fileno=descriptor))

    def send(self, message: dict[str, Any]) -> None:
        """Send one message.

        Raises:
            OSError: the other end is gone.
        """
        self._end.send(json.dumps(message, separators=(",", ":")).encode())

    def receive(self, timeout_s: float | None) -> dict[str, Any] | None:
        """Return the next message, or None when there is none within the time (None: for ever).

        Raises:
            EOFError: the other end is gone.
        """
        if timeout_s is not None and not select.select([self._end], [], [], timeout_s)[0]:
            return None
        try:
            data = self._end.recv(_LARGEST_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            raise EOFError
        message: dict[str, Any] = json.loads(data)
        return message
