"""Fetches one page over HTTP with a deadline for the whole, a size limit and a network namespace.

The standard client has time limits per read only, so an endpoint that drips a byte a second holds
it for ever, and it takes a third of a scrape's CPU time. Here the whole exchange has a deadline,
and :meth:`Fetcher.abort` ends it from another thread by shutting the socket down.
"""

from __future__ import annotations

import base64
import ctypes
import os
import re
import socket
import ssl
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

#: End of a body in chunks: a chunk of no bytes, perhaps with trailers.
_LAST_CHUNK = re.compile(rb"(?:^|\r\n)0+(?:;[^\r\n]*)?\r\n(?:[^\r\n]+\r\n)*\r\n$")
_TAIL_BYTES = 1024
#: Most bytes of a page; a real one has some 50 to 500 kB.
MAX_PAGE_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 18
_MAX_HEAD_BYTES = 1 << 16
_STATUS = re.compile(r"HTTP/1\.[01] (\d{3})(?: (.*))?$")
_CLONE_NEWNET = 0x40000000
_MOVED = frozenset(("301", "302", "303", "307", "308"))
_MAX_REDIRECTS = 3
_PACKED = ("gzip", "x-gzip", "deflate")
#: Window of zlib's that takes the headers of gzip and of zlib.
_ANY_HEADER = 47


class FetchError(Exception):
    """A page could not be had; the text says why in one clause.

    ``is_http`` tells whether the other side may be a web server all the same: it answered in HTTP,
    or was too slow to tell.
    """

    def __init__(self, reason: str, is_http: bool = False) -> None:
        super().__init__(reason)
        self.is_http = is_http


class _GoneError(FetchError):
    """A connection kept from before was closed by the other side meanwhile."""


class _MovedError(FetchError):
    """The page is elsewhere: at a URL, absolute or relative."""

    def __init__(self, reason: str, location: str) -> None:
        super().__init__(reason, True)
        self.location = location


@dataclass(frozen=True)
class Page:
    """One page: its text, and begin and length of the exchange in ns of CLOCK_MONOTONIC."""

    text: str
    content_type: str
    start_ns: int
    duration_ns: int


def public_url(url: str) -> str:
    """Return a URL without user, password, query and fragment, which may hold secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "***"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rpartition("@")[2], "", ""))


class Fetcher:
    """Fetches one URL again and again.

    Args:
        url: ``http`` or ``https`` URL.
        deadline_ns: Most time for one exchange.
        clock: CLOCK_MONOTONIC in ns.
        keep: Keep the connection for the next time where the other side does; :meth:`close` it.

    Raises:
        FetchError: the URL is none that can be fetched.
    """

    def __init__(
        self,
        url: str,
        deadline_ns: int = 2_000_000_000,
        clock: Callable[[], int] = time.monotonic_ns,
        keep: bool = False,
    ) -> None:
        try:
            parts = urlsplit(url)
            is_good = parts.scheme in ("http", "https") and bool(parts.hostname)
            port = parts.port
        except ValueError:
            is_good = False
        if not is_good or not parts.hostname:
            raise FetchError(f"'{public_url(url)}' is not an http:// URL with a host")
        self.url = url
        self._is_tls = parts.scheme == "https"
        self._host = parts.hostname
        self._port = port or (443 if self._is_tls else 80)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._keep = keep
        self._credentials = _basic(parts.username, parts.password)
        self._request = self._request_of(path)
        self._idle: socket.socket | None = None
        self._deadline_ns = deadline_ns
        self._clock = clock
        self._socket: socket.socket | None = None
        #: The head of the answer before, as sent and as read: most are the same.
        self._head_before: tuple[bytes, _Head] | None = None

    def get(self) -> Page:
        """Return the page.

        Raises:
            FetchError: no answer in time, no success, too long, broken off or not text.
        """
        start = self._clock()
        end = start + self._deadline_ns
        try:
            try:
                return self._first_page(start, end)
            except _MovedError as moved:
                return self._follow(moved, start, end)
        except FetchError:
            raise
        except (OSError, ValueError) as error:
            is_late = isinstance(error, TimeoutError) or self._clock() >= end
            raise FetchError(self._reason(error, is_late), is_late) from None

    def close(self) -> None:
        """Close the connection that was kept, if there is one."""
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.close()

    def abort(self) -> None:
        """End the exchange under way in another thread; does nothing without one."""
        active = self._socket
        if active is not None:
            try:
                active.shutdown(socket.SHUT_RDWR)
            except OSError:
                return

    def _first_page(self, start: int, end: int) -> Page:
        """The page over the connection kept from before, else over a new one."""
        idle, self._idle = self._idle, None
        if idle is not None:
            try:
                return self._page(idle, start, end)
            except (_GoneError, ConnectionError):
                pass
        return self._page(self._connect(end), start, end)

    def _request_of(self, path: str) -> bytes:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return (
            f"GET {path} HTTP/1.1\r\nHost: {host}:{self._port}\r\n{self._credentials}"
            "Accept: text/plain;version=0.0.4\r\nAccept-Encoding: identity\r\n"
            f"Connection: {'keep-alive' if self._keep else 'close'}\r\n\r\n"
        ).encode("ascii", "replace")

    def _follow(self, moved: _MovedError, start: int, end: int) -> Page:
        """The page at another path of the same server; other servers are not asked unbidden."""
        for _ in range(_MAX_REDIRECTS):
            target = moved.location
            try:
                target = urljoin(self.url, target)
                parts = urlsplit(target)
                is_here = (parts.scheme == "https", parts.hostname) == (self._is_tls, self._host)
                is_here = is_here and (parts.port or (443 if self._is_tls else 80)) == self._port
            except ValueError:
                is_here = False
            if not is_here:
                raise FetchError(f"it redirects to {public_url(target)[:160]}; give that URL", True)
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            try:
                return self._page(self._connect(end), start, end, self._request_of(path))
            except _MovedError as further:
                moved = further
        raise FetchError("it redirects in circles", True)

    def _page(
        self, connection: socket.socket, start: int, end: int, request: bytes | None = None
    ) -> Page:
        """One exchange over a connection, which is kept or closed afterwards."""
        self._socket = connection
        is_kept = False
        try:
            self._limit(connection, end)
            connection.sendall(request or self._request)
            head, rest = self._head(connection, end)
            content_type, body, is_kept = self._answer(head, rest, connection, end)
        finally:
            self._socket = None
            if is_kept and self._keep:
                self._idle = connection
            else:
                connection.close()
        text = body.decode("utf-8", "replace")
        return Page(text, content_type, start, self._clock() - start)

    def _connect(self, end: int) -> socket.socket:
        connection = socket.create_connection((self._host, self._port), self._left(end))
        if not self._is_tls:
            return connection
        context = ssl.create_default_context()
        try:
            return context.wrap_socket(connection, server_hostname=self._host)
        except OSError:
            connection.close()
            raise

    def _head(self, connection: socket.socket, end: int) -> tuple[bytes, bytes]:
        """Status line and headers, and what came of the body with them."""
        data = b""
        while True:
            head, mark, rest = data.partition(b"\r\n\r\n")
            if mark:
                return head, rest
            if len(data) > _MAX_HEAD_BYTES or not b"HTTP/".startswith(data[:5]):
                raise FetchError("the answer is not HTTP")
            part = self._receive(connection, end)
            if not part:
                kind = FetchError if data else _GoneError
                raise kind("the connection was reset")
            data += part

    def _answer(
        self, head_text: bytes, rest: bytes, connection: socket.socket, end: int
    ) -> tuple[str, bytes, bool]:
        """Type and body of an answer, and whether the connection can be used again."""
        if self._head_before is None or self._head_before[0] != head_text:
            self._head_before = (head_text, _read_head(head_text))
        head = self._head_before[1]
        parts = [rest]
        size = len(rest)
        is_closing = head.is_closing
        tail = rest[-_TAIL_BYTES:]
        while not _is_whole(tail, size, head.length, head.is_chunked):
            part = self._receive(connection, end)
            if not part:
                is_closing = True
                break
            parts.append(part)
            size += len(part)
            tail = (tail + part if len(part) < _TAIL_BYTES else part)[-_TAIL_BYTES:]
            if size > MAX_PAGE_BYTES:
                raise FetchError(f"the page is longer than {MAX_PAGE_BYTES >> 20} MB", True)
        body = b"".join(parts)
        if head.is_chunked:
            body = _unchunk(body)
        elif head.length is not None and size < head.length:
            raise FetchError(f"the page broke off after {size} of {head.length} bytes", True)
        is_kept = not is_closing and (head.is_chunked or size == head.length)
        return head.content_type, _decoded(body, head.coding), is_kept

    def _receive(self, connection: socket.socket, end: int) -> bytes:
        self._limit(connection, end)
        return connection.recv(_CHUNK_BYTES)

    def _limit(self, connection: socket.socket, end: int) -> None:
        """Let what a connection does next last until ``end`` at most, give or take a twentieth of
        the deadline: each change is a call into the kernel.

        Raises:
            FetchError: no time is left.
        """
        left = self._left(end)
        over = (connection.gettimeout() or 0.0) - left
        if not -0.001 <= over <= self._deadline_ns / 20e9:
            connection.settimeout(left)

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
        if isinstance(error, ssl.SSLCertVerificationError):
            why = getattr(error, "verify_message", "")
            return f"its certificate is not trusted ({why}); name its authority in SSL_CERT_FILE"
        return str(error)[:120] or type(error).__name__


def _basic(user: str | None, password: str | None) -> str:
    """Header for the user and password of a URL; empty without."""
    if user is None and password is None:
        return ""
    pair = f"{unquote(user or '')}:{unquote(password or '')}".encode()
    return f"Authorization: Basic {base64.b64encode(pair).decode()}\r\n"


def _decoded(body: bytes, encoding: str) -> bytes:
    """A body as it was before it was packed; some servers pack whatever was asked for.

    Raises:
        FetchError: it is packed otherwise, is not what was announced, or is too long unpacked.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in _PACKED:
        raise FetchError(
            f"it sent the page packed as '{encoding[:20]}', which nobody asked for", True
        )
    unpacking = zlib.decompressobj(_ANY_HEADER)
    try:
        text = unpacking.decompress(body, MAX_PAGE_BYTES)
    except zlib.error:
        raise FetchError(f"the page is not packed as announced ({encoding})", True) from None
    if unpacking.unconsumed_tail:
        raise FetchError(f"the page is longer than {MAX_PAGE_BYTES >> 20} MB", True)
    if not unpacking.eof:
        raise FetchError("the page broke off in the middle", True)
    return text


class _Head(NamedTuple):
    """What the head of an answer tells: of the body, its length (None: not told), how it comes
    and is packed, and whether the connection ends with it.
    """

    content_type: str
    length: int | None
    is_chunked: bool
    is_closing: bool
    coding: str


def _read_head(data: bytes) -> _Head:
    """Status line and headers of an answer that brings a page.

    Raises:
        FetchError: it brings none.
    """
    lines = data.decode("latin-1").split("\r\n")
    status = _STATUS.match(lines[0])
    if status is None:
        raise FetchError("the answer is not HTTP")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    reason = f"it answered {status[1]} {status[2] or ''}"[:120].rstrip()
    if status[1] in _MOVED and headers.get("location"):
        raise _MovedError(reason, headers["location"])
    if status[1] != "200":
        raise FetchError(reason, True)
    length = None
    if headers.get("content-length", "").isdecimal():
        length = int(headers["content-length"])
        if length > MAX_PAGE_BYTES:
            limit = f"{MAX_PAGE_BYTES >> 20} MB"
            raise FetchError(f"the page has {length} bytes, over {limit}", True)
    is_closing = not lines[0].startswith("HTTP/1.1") or "close" in headers.get("connection", "")
    return _Head(
        headers.get("content-type", ""),
        length,
        "chunked" in headers.get("transfer-encoding", "").lower(),
        is_closing,
        headers.get("content-encoding", "").lower(),
    )


def _is_whole(tail: bytes, size: int, announced: int | None, is_chunked: bool) -> bool:
    """Whether a body has come to its end; one without length or chunks ends with the connection."""
    if is_chunked:
        return _LAST_CHUNK.search(tail) is not None
    return announced is not None and size >= announced


def _unchunk(data: bytes) -> bytes:
    """The content of a chunked body.

    Raises:
        FetchError: its end is missing.
    """
    parts: list[bytes] = []
    position = 0
    while True:
        line_end = data.find(b"\r\n", position)
        try:
            size = int(data[position:line_end].split(b";")[0], 16) if line_end >= 0 else -1
        except ValueError:
            size = -1
        if size == 0:
            return b"".join(parts)
        begin = line_end + 2
        if size < 0 or begin + size > len(data):
            raise FetchError("the page broke off in the middle of a chunk", True)
        parts.append(data[begin : begin + size])
        position = begin + size + 2


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
