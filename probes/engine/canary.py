"""The canary: a small streamed completion every few seconds, timed from the client.

Its latency drifts with the service and not with the offered load, and the same request to a
control endpoint tells a slow service from a slow network or client. The prompt is fixed, means
nothing and is never stored. Each endpoint has a thread of its own; the recorder never waits.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from analysis.schema import EVENT, REQUEST, Table
from probes.engine.fetch import FetchError, public_url
from probes.engine.stream import EventStream, StatusError
from probes.probe import Batch, ProbeError, SourceReport, make_batch

SECOND_NS = 1_000_000_000
#: Variable with the bearer token of endpoints that want one; it is sent and never stored.
KEY_VARIABLE = "TRACER_CANARY_KEY"
#: Tokens that are asked for.
MAX_TOKENS = 16

_PROMPT = "One, two, three, four, five, six, seven,"
_PATHS = ("/v1/completions", "/v1/chat/completions")
_NO_SUCH_PATH = {404, 405}
_BAD_REQUEST = {400, 422}
_ENDS = {"stop": "stop", "length": "length", "abort": "abort"}


@dataclass
class Measured:
    """One request as the client saw it, in ns; None is not known."""

    start_ns: int
    first_ns: int | None = None
    last_ns: int | None = None
    end_ns: int | None = None
    n_pieces: int = 0
    n_prompt_tokens: int | None = None
    n_output_tokens: int | None = None
    end: str | None = None

    def take(self, arrival_ns: int, payload: bytes) -> None:
        """Take over one event of the stream.

        Raises:
            ValueError: it is not one of a completion.
        """
        self.end_ns = arrival_ns
        if payload == b"[DONE]":
            self.end = self.end or "stop"
            return
        event = json.loads(payload)
        if not isinstance(event, dict):
            raise ValueError("the stream is not one of completions")
        if "error" in event:
            self.end = "error"
            return
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.n_prompt_tokens = _count(usage.get("prompt_tokens"))
            self.n_output_tokens = _count(usage.get("completion_tokens"))
        for choice in event.get("choices") or ():
            if _has_text(choice):
                self.n_pieces += 1
                self.first_ns = arrival_ns if self.first_ns is None else self.first_ns
                self.last_ns = arrival_ns
            reason = choice.get("finish_reason")
            if reason is not None:
                self.end = _ENDS.get(str(reason), "stop")

    def row(self, source: str, endpoint: str) -> dict[str, Any]:
        """Return the columns of table ``request``."""
        n_tokens = self.n_output_tokens or self.n_pieces or None
        inter = None
        if n_tokens is not None and n_tokens > 1 and self.first_ns is not None:
            assert self.last_ns is not None
            inter = (self.last_ns - self.first_ns) // (n_tokens - 1)
        return {
            "start_ns": self.start_ns,
            "duration_ns": None if self.end_ns is None else self.end_ns - self.start_ns,
            "source": source,
            "endpoint": endpoint,
            "ttft_ns": None if self.first_ns is None else self.first_ns - self.start_ns,
            "inter_token_ns": inter,
            "n_prompt_tokens": self.n_prompt_tokens,
            "n_output_tokens": n_tokens,
            "end": self.end,
        }


class CanaryThread(threading.Thread):
    """Sends the request to one endpoint once per interval.

    Args:
        url: Address of the service, or the whole URL of its completions.
        model: Model to ask for.
        is_control: It is the endpoint that the other is compared with.
        interval_ns: Time between the begins of two requests.
        deadline_ns: Most time for one.
        clock: CLOCK_MONOTONIC in ns.

    Raises:
        FetchError: the URL is none that can be posted to.
    """

    def __init__(
        self,
        url: str,
        model: str,
        is_control: bool,
        interval_ns: int,
        deadline_ns: int,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        super().__init__(name="canary", daemon=True)
        self.is_control = is_control
        self.is_lost = False
        self.n_requests = 0
        self.n_failures = 0
        self.cost_ns = 0
        key = os.environ.get(KEY_VARIABLE)
        self._streams = [
            EventStream(address, deadline_ns, clock, key) for address in _addresses(url)
        ]
        self._model = model
        self._interval_ns = interval_ns
        self._deadline_ns = deadline_ns
        self._clock = clock
        self._has_usage = True
        self._stop_event = threading.Event()
        self._lock = threading.Lock()
        self._rows: list[dict[str, Any]] = []
        self._events: deque[tuple[int, str, str]] = deque()
        self._busy_since: int | None = None

    @property
    def endpoint(self) -> str:
        """URL that is posted to, without user, password and query."""
        return public_url(self._streams[0].url)

    def run(self) -> None:
        """Send requests until told to stop."""
        due = self._clock()
        while not self._stop_event.is_set():
            self._busy_since = self._clock()
            self._request()
            self._busy_since = None
            self.cost_ns = time.thread_time_ns()
            due = max(due + self._interval_ns, self._clock())
            self._stop_event.wait((due - self._clock()) / 1e9)

    def take(self, now_ns: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return rows of ``request`` and ``event`` since the last call; ends what is overdue."""
        since = self._busy_since
        is_overdue = since is not None and now_ns - since > self._deadline_ns + SECOND_NS // 4
        if is_overdue:
            self.abort()
        with self._lock:
            if is_overdue and not self.is_lost:
                # Looking up a name cannot be ended; the row comes when it ends.
                self.is_lost = True
                text = f"The canary: no whole answer within {self._deadline_ns / 1e9:g} s."
                self._events.append((now_ns, "source_lost", text))
            rows, self._rows = self._rows, []
            events = [
                {"time_ns": when, "kind": kind, "name": f"canary {self.endpoint}", "detail": text}
                for when, kind, text in self._events
            ]
            self._events.clear()
        return rows, events

    def stop(self) -> None:
        """Ask the thread to end, without waiting for it."""
        self._stop_event.set()
        self.abort()

    def abort(self) -> None:
        """End the exchange under way."""
        self._streams[0].abort()

    def _request(self) -> None:
        """One request; another form of it at once when this one is not understood."""
        for _ in range(len(_PATHS) + 1):
            measured = Measured(self._clock())
            reason = self._exchange(measured)
            if reason != "":
                break
        if self._stop_event.is_set() and reason is not None:
            return
        self.n_requests += 1
        source = "canary_control" if self.is_control else "canary"
        with self._lock:
            self._rows.append(measured.row(source, self.endpoint))
            if reason is not None:
                self.n_failures += 1
                if not self.is_lost:
                    self._events.append((self._clock(), "source_lost", f"The canary: {reason}."))
            elif self.is_lost:
                text = "The canary is answered again."
                self._events.append((self._clock(), "source_recovered", text))
            self.is_lost = reason is not None

    def _exchange(self, measured: Measured) -> str | None:
        """One exchange: why it failed, None when it did not, "" when another form may do."""
        try:
            for arrival_ns, payload in self._streams[0].events(self._body()):
                measured.take(arrival_ns, payload)
                if payload == b"[DONE]":
                    break
        except StatusError as error:
            if error.status in _NO_SUCH_PATH and len(self._streams) > 1:
                del self._streams[0]
                return ""
            if error.status in _BAD_REQUEST and self._has_usage:
                self._has_usage = False
                return ""
            measured.end_ns, measured.end = self._clock(), "error"
            return str(error)
        except (FetchError, ValueError, AttributeError, TypeError, RecursionError) as error:
            measured.end_ns = self._clock()
            is_late = measured.end_ns - measured.start_ns >= self._deadline_ns
            measured.end = "timeout" if is_late else "error"
            if isinstance(error, FetchError):
                return str(error)
            return "the answer is not a stream of completions"
        if measured.end == "error":
            return "the answer is an error"
        if measured.end is None or measured.first_ns is None:
            measured.end = "error"
            measured.end_ns = self._clock()
            return "the answer has no tokens"
        return None

    def _body(self) -> bytes:
        """The request; small enough that no cache of prefixes matters."""
        request: dict[str, Any] = {
            "model": self._model,
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "stream": True,
        }
        if "/chat/" in self._streams[0].url:
            request["messages"] = [{"role": "user", "content": _PROMPT}]
        else:
            request["prompt"] = _PROMPT
        if self._has_usage:
            request["stream_options"] = {"include_usage": True}
        return json.dumps(request).encode()


class CanaryProbe:
    """Small requests to a service, and the same to a control endpoint.

    Args:
        url: Address of the service, or the whole URL of its completions.
        model: Model to ask for.
        against: The control endpoint; None for none.
        interval_ns: Time between two requests to each.
        deadline_ns: Most time for one.
        clock: CLOCK_MONOTONIC in ns.
    """

    def __init__(
        self,
        url: str,
        model: str,
        against: str | None = None,
        interval_ns: int = 5 * SECOND_NS,
        deadline_ns: int = 30 * SECOND_NS,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.name = "canary"
        self.tables: Sequence[Table] = (REQUEST, EVENT)
        self.period_ns = SECOND_NS
        self._wanted = [(url, False)] if against is None else [(url, False), (against, True)]
        self._model = model
        self._interval_ns = interval_ns
        self._deadline_ns = deadline_ns
        self._clock = clock
        self._threads: list[CanaryThread] = []
        self._n_rows = 0

    def start(self) -> None:
        """Begin sending.

        Raises:
            ProbeError: a URL is none that can be posted to.
        """
        times = (self._interval_ns, self._deadline_ns, self._clock)
        try:
            self._threads = [
                CanaryThread(url, self._model, is_control, *times)
                for url, is_control in self._wanted
            ]
        except FetchError as error:
            raise ProbeError(f"{error}; give --canary http://HOST:PORT") from None
        for thread in self._threads:
            thread.start()

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Return the requests that ended since the last call; never waits."""
        rows: list[dict[str, Any]] = []
        events: list[dict[str, Any]] = []
        for thread in self._threads:
            more, told = thread.take(now_ns)
            rows.extend(more)
            events.extend(told)
        self._n_rows += len(rows)
        return [
            make_batch(
                table, {name: [row.get(name) for row in some] for name in table.column_names}
            )
            for table, some in ((REQUEST, rows), (EVENT, events))
            if some
        ]

    def stop(self) -> Iterable[Batch]:
        """Stop sending and return what is left; a request under way is given up."""
        for thread in self._threads:
            thread.stop()
        end = self._clock() + SECOND_NS // 5
        for thread in self._threads:
            thread.join(max(0.0, (end - self._clock()) / 1e9))
        return self.drain(self._clock())

    def report(self) -> SourceReport:
        """Return how many requests were sent, and how many failed."""
        lost = [thread.endpoint for thread in self._threads if thread.is_lost]
        note = f"{', '.join(lost)} did not answer the canary at the end" if lost else ""
        return SourceReport(
            name=self.name,
            n_rows=self._n_rows,
            n_lost=0,
            cost_ns=sum(thread.cost_ns for thread in self._threads),
            note=note,
            details={
                "endpoints": [
                    {
                        "url": thread.endpoint,
                        "is_control": thread.is_control,
                        "n_requests": thread.n_requests,
                        "n_failures": thread.n_failures,
                    }
                    for thread in self._threads
                ]
            },
        )


def _addresses(url: str) -> list[str]:
    """URLs to try, in order: the one given when it is whole, else the usual paths below it."""
    if "://" not in url:
        url = f"http://{url}"
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    if path.endswith("completions"):
        return [url]
    base = path.removesuffix("/v1")
    return [
        urlunsplit((parts.scheme, parts.netloc, base + usual, parts.query, "")) for usual in _PATHS
    ]


def _has_text(choice: Any) -> bool:
    """Whether a choice of an event brings text: of a completion, or of a chat."""
    if choice.get("text"):
        return True
    delta = choice.get("delta") or {}
    return any(delta.get(name) for name in ("content", "reasoning_content", "reasoning"))


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 31 else None
