"""A small web server for the tests, whose answers a test sets."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Writes an answer to a connection whose request was read; it is closed afterwards.
Answer = Callable[[socket.socket], None]


def page(text: str, content_type: str = "text/plain; version=0.0.4", status: str = "200 OK"):
    """An answer with a whole page."""
    body = text.encode()

    def answer(connection: socket.socket) -> None:
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        connection.sendall(head.encode() + body)

    return answer


def raw(data: bytes, then_sleep_s: float = 0.0):
    """An answer of exactly these bytes, the connection kept open for a while afterwards."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(data)
        if then_sleep_s:
            connection.settimeout(then_sleep_s)
            try:
                connection.recv(1)
            except OSError:
                return

    return answer


def resetting(data: bytes):
    """An answer of these bytes, then a reset."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(data)
        time.sleep(0.05)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return answer


def dripping(data: bytes, pause_s: float):
    """An answer sent a byte at a time."""

    def answer(connection: socket.socket) -> None:
        for i in range(len(data)):
            connection.sendall(data[i : i + 1])
            time.sleep(pause_s)

    return answer


class Server:
    """Answers each connection with ``answer``; counts the requests and keeps their first lines."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=32)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(5)
                request = connection.recv(65536).decode()
                self.requests.append(request.split("\r\n")[0])
                self.answer(connection)
            except OSError:
                return


@contextmanager
def serving(answer: Answer) -> Iterator[Server]:
    """A server that answers so, closed afterwards."""
    server = Server(answer)
    try:
        yield server
    finally:
        server.close()


def wait_for(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Whether the condition came true in time."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()
