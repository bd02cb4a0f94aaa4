"""Posts a request and yields the events of its streamed answer, each with its time of arrival.

Builds on :class:`probes.engine.fetch.Fetcher`: one deadline for the whole exchange, a limit of
size, and an end from another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from probes.engine.fetch import Fetcher, FetchError

#: Most bytes of a streamed answer.
MAX_STREAM_BYTES = 4 << 20
#: Longest line with the length of a chunk.
_MAX_SIZE_LINE = 66


class StatusError(FetchError):
    """The endpoint refused; ``status`` is its HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"it answered {status} {reason}"[:120].rstrip(), True)
        self.status = status


class EventStream(Fetcher):
    """Posts to one URL again and again, a connection for each, and reads the events sent back.

    Args:
        url: ``http`` or ``https`` URL.
        deadline_ns: Most time for one exchange.
        key: Bearer token; None sends none.
        clock: CLOCK_MONOTONIC in ns.

    Raises:
        FetchError: the URL is none that can be posted to.
    """

    def __init__(
        self, url: str, deadline_ns: int, clock: Callable[[], int], key: str | None = None
    ) -> None:
        super().__init__(url, deadline_ns, clock)
        bearer = f"Authorization: Bearer {key}\r\n" if key else ""
        self._authorization = bearer
        if bearer:
            self._request = self._request.replace(self._credentials.encode(), b"")

    def events(self, body: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield time of arrival (CLOCK_MONOTONIC ns) and payload of each event, ``[DONE]`` too.

        Raises:
            StatusError: the endpoint refused.
            FetchError: no answer in time, broken off, too long, or not HTTP.
        """
        end = self._clock() + self._deadline_ns
        head = self._request.replace(b"GET ", b"POST ", 1).replace(
            b"Connection: close\r\n\r\n",
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            f"{self._authorization}Connection: close\r\n\r\n".encode("latin-1", "replace"),
        )
        try:
            with self._connect(end) as connection:
                self._socket = connection
                connection.settimeout(self._left(end))
                connection.sendall(head + body)
                answer, rest = self._head(connection, end)
                body_reader = _body_of(answer)
                lines = _Lines()
                size = 0
                arrival = self._clock()
                while True:
                    for line in lines.feed(body_reader.feed(rest)):
                        yield arrival, line
                    if body_reader.is_done:
                        return
                    rest = self._receive(connection, end)
                    arrival = self._clock()
                    if not rest:
                        if body_reader.needs_end:
                            raise FetchError("the answer broke off", True)
                        return
                    size += len(rest)
                    if size > MAX_STREAM_BYTES:
                        raise FetchError(
                            f"the answer is longer than {MAX_STREAM_BYTES >> 20} MB", True
                        )
        except (OSError, ValueError) as error:
            is_late = isinstance(error, TimeoutError) or self._clock() >= end
            raise FetchError(self._reason(error, is_late), is_late) from None
        finally:
            self._socket = None


@dataclass
class _Body:
    """Takes a body apart: whole, or in chunks."""

    is_chunked: bool
    left: int | None
    is_done: bool = False
    _buffer: bytes = b""

    @property
    def needs_end(self) -> bool:
        """Whether an end of the connection is too early now."""
        return not self.is_done and (self.is_chunked or self.left is not None)

    def feed(self, data: bytes) -> bytes:
        """Return the content in more bytes of the body.

        Raises:
            FetchError: they are not what was announced.
        """
        if not self.is_chunked:
            if self.left is not None:
                data = data[: self.left]
                self.left -= len(data)
                self.is_done = self.left == 0
            return data
        buffer = self._buffer + data
        parts: list[bytes] = []
        begin = 0
        while not self.is_done:
            line_end = buffer.find(b"\r\n", begin, begin + _MAX_SIZE_LINE)
            if line_end < 0 and len(buffer) - begin <= _MAX_SIZE_LINE:
                break
            size = _chunk_size(buffer[begin : max(line_end, begin)])
            content, end = line_end + 2, line_end + 4 + size
            if size == 0:
                self.is_done = True
            elif len(buffer) < end:
                break
            parts.append(buffer[content : content + size])
            begin = end
        self._buffer = buffer[begin:]
        return b"".join(parts)


def _chunk_size(text: bytes) -> int:
    """Length of a chunk by the line before it.

    Raises:
        FetchError: it is none.
    """
    digits = text.split(b";")[0].strip()
    if not 0 < len(digits) <= 8 or digits.strip(b"0123456789abcdefABCDEF"):
        raise FetchError("the answer is not in chunks as announced", True)
    return int(digits, 16)


@dataclass
class _Lines:
    """Takes events apart: the payload of each line ``data: ...``."""

    _buffer: bytes = field(default=b"")

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payloads completed by more content."""
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


def _body_of(head: bytes) -> _Body:
    """How the body that follows a head is to be read.

    Raises:
        StatusError: the endpoint refused.
        FetchError: it is not HTTP.
    """
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ", 2)
    if len(words) < 2 or not words[1].isdecimal():
        raise FetchError("the answer is not HTTP")
    if words[1] != "200":
        raise StatusError(int(words[1]), words[2] if len(words) > 2 else "")
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    is_chunked = "chunked" in headers.get("transfer-encoding", "").lower()
    length = headers.get("content-length", "")
    return _Body(is_chunked, int(length) if length.isdecimal() and not is_chunked else None)
