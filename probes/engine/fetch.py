"""Fetches one page over HTTP with a deadline for the whole, a size limit and a network namespace.

A plain client has time limits per read only, so an endpoint that drips a byte a second holds it
for ever. Here the whole exchange has a deadline, and :meth:`Fetcher.abort` ends it from another
thread by shutting the socket down.
"""

from __future__ import annotations

import ctypes
import http.client
import os
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

#: Most bytes of a page; a real one has some 50 to 500 kB.
MAX_PAGE_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 16
_CLONE_NEWNET = 0x40000000


class FetchError(Exception):
    """A page could not be had; the text says why in one clause.

    ``is_http`` tells whether the other side may be a web server all the same: it answered in HTTP,
    or was too slow to tell.
    """

    def __init__(self, reason: str, is_http: bool = False) -> None:
        super().__init__(reason)
        self.is_http = is_http


@dataclass(frozen=True)
class Page:
    """One page: its text, and begin and length of the exchange in ns of CLOCK_MONOTONIC."""

    text: str
    content_type: str
    start_ns: int
    duration_ns: int


class Fetcher:
    """Fetches one URL again and again, a connection for each.

    Args:
        url: ``http`` or ``https`` URL.
        deadline_ns: Most time for one exchange.
        clock: CLOCK_MONOTONIC in ns.

    Raises:
        FetchError: the URL is none that can be fetched.
    """

    def __init__(
        self,
        url: str,
        deadline_ns: int = 2_000_000_000,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise FetchError(f"'{url}' is not an http:// URL with a host")
        self.url = url
        self._is_tls = parts.scheme == "https"
        self._host = parts.hostname
        self._port = port or (443 if self._is_tls else 80)
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._deadline_ns = deadline_ns
        self._clock = clock
        self._socket: socket.socket | None = None

    def get(self) -> Page:
        """Return the page.

        Raises:
            FetchError: no answer in time, no success, too long, broken off or not text.
        """
        start = self._clock()
        end = start + self._deadline_ns
        connection = self._connection(self._left(end))
        try:
            connection.connect()
            self._socket = active = connection.sock
            headers = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity"}
            connection.request("GET", self._path, headers={**headers, "Connection": "close"})
            active.settimeout(self._left(end))
            response = connection.getresponse()
            if response.status != 200:
                raise FetchError(f"it answered {response.status} {response.reason}"[:120], True)
            body = self._body(active, response, end)
            content_type = response.headers.get("Content-Type", "")
        except FetchError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            is_late = isinstance(error, TimeoutError) or self._clock() >= end
            raise FetchError(self._reason(error, is_late), is_late) from None
        finally:
            self._socket = None
            connection.close()
        return Page(body.decode("utf-8", "replace"), content_type, start, self._clock() - start)

    def abort(self) -> None:
        """End the exchange under way in another thread; does nothing without one."""
        active = self._socket
        if active is not None:
            try:
                active.shutdown(socket.SHUT_RDWR)
            except OSError:
                return

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self._is_tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def _body(self, active: socket.socket, response: http.client.HTTPResponse, end: int) -> bytes:
        """The whole body, under the deadline and the size limit."""
        announced = response.length
        if announced is not None and announced > MAX_PAGE_BYTES:
            limit = f"{MAX_PAGE_BYTES >> 20} MB"
            raise FetchError(f"the page has {announced} bytes, over {limit}", True)
        parts: list[bytes] = []
        size = 0
        while True:
            if active.fileno() >= 0:
                active.settimeout(self._left(end))
            part = response.read1(_CHUNK_BYTES)
            if not part:
                break
            parts.append(part)
            size += len(part)
            if size > MAX_PAGE_BYTES:
                raise FetchError(f"the page is longer than {MAX_PAGE_BYTES >> 20} MB", True)
        if announced is not None and size < announced:
            raise FetchError(f"the page broke off after {size} of {announced} bytes", True)
        return b"".join(parts)

    def _left(self, end: int) -> float:
        """Seconds left until ``end``.

        Raises:
            FetchError: none are left.
        """
        left = (end - self._clock()) / 1e9
        if left <= 0:
            raise FetchError(self._reason(TimeoutError(), True), True)
        return left

    def _reason(self, error: Exception, is_late: bool) -> str:
        """Why an exchange failed, as one clause without addresses of objects."""
        if is_late:
            return f"no whole answer within {self._deadline_ns / 1e9:g} s"
        if isinstance(error, ConnectionRefusedError):
            return "the connection was refused"
        if isinstance(error, ConnectionResetError):
            return "the connection was reset"
        if isinstance(error, http.client.IncompleteRead):
            return "the page broke off"
        if isinstance(error, http.client.HTTPException):
            return f"the answer is not HTTP ({type(error).__name__})"
        return str(error)[:120] or type(error).__name__


def enter_network_of(namespace: str) -> None:
    """Move the calling thread into a network namespace (needs root).

    Args:
        namespace: Path like ``/proc/PID/ns/net``.

    Raises:
        OSError: it is gone, or the right to enter it is missing.
    """
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), namespace)
    finally:
        os.close(descriptor)
