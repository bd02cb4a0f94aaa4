"""Looks for metrics pages among the listening ports of processes, in the background."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from probes.engine.discover import METRIC_PATHS, Listener, find_listeners
from probes.engine.exposition import ExpositionParser
from probes.engine.fetch import Fetcher, FetchError, enter_network_of
from probes.engine.reading import PageReader

SECOND_NS = 1_000_000_000
#: Waits between two looks for endpoints: while none is known, and once one is.
_SEARCH_NS = 2 * SECOND_NS
_SEARCH_AGAIN_NS = 10 * SECOND_NS
#: A look takes at most one part in so many of the time.
_MOST_SHARE = 100
#: Ports of a process from which on those that the kernel chose are left alone.
_MOST_PORTS = 4
#: How often a port that answers in HTTP without metrics is asked (the engine may be loading).
_MAX_ASKED = 20


class EndpointSearch(threading.Thread):
    """Looks for metrics pages among the ports of some processes until it is stopped.

    Args:
        deadline_ns: Most time for one exchange.
        pids: The processes; may be replaced at any time.
        clock: CLOCK_MONOTONIC in ns.
    """

    def __init__(self, deadline_ns: int, pids: set[int], clock: Callable[[], int]) -> None:
        super().__init__(name="engine-search", daemon=True)
        self.pids = pids
        #: CPU time of the looks.
        self.cost_ns = 0
        self._deadline_ns = deadline_ns
        self._clock = clock
        self._stop_event = threading.Event()
        self._found: deque[tuple[str, str | None]] = deque()
        self._done: set[tuple[int, int]] = set()
        #: Process and the port at which its metrics were found.
        self._served: dict[int, int] = {}
        self._asked: dict[tuple[int, int], tuple[int, int]] = {}

    def run(self) -> None:
        """Look until told to stop."""
        while not self._stop_event.is_set():
            begin_ns = time.thread_time_ns()
            listeners = find_listeners(self.pids)
            cost_ns = time.thread_time_ns() - begin_ns
            self.cost_ns += cost_ns
            self._forget(listeners)
            for listener in listeners:
                if self._stop_event.is_set():
                    return
                self._consider(listener)
            self._stop_event.wait(self.pause_ns(cost_ns) / 1e9)

    def pause_ns(self, cost_ns: int) -> int:
        """Return the time until the next look, after one of that cost: looking through a process
        with tens of thousands of sockets takes a good part of a second.
        """
        usual = _SEARCH_AGAIN_NS if self._served else _SEARCH_NS
        return max(usual, cost_ns * _MOST_SHARE)

    def stop(self) -> None:
        """Ask the thread to end, without waiting for it."""
        self._stop_event.set()

    def take(self) -> list[tuple[str, str | None]]:
        """Return the pages found since the last call: URL and network namespace."""
        found = []
        while self._found:
            found.append(self._found.popleft())
        return found

    def _forget(self, listeners: Iterable[Listener]) -> None:
        """Forget ports of processes that ended, and pages whose process closed its port: it may
        open another.
        """
        pids = self.pids
        open_now = {(listener.pid, listener.port) for listener in listeners}
        gone = {item for item in self._served.items() if item not in open_now}
        self._served = {pid: port for pid, port in self._served.items() if (pid, port) not in gone}
        self._done = {key for key in self._done if key[0] in pids and key not in gone}
        self._asked = {key: asked for key, asked in self._asked.items() if key[0] in pids}

    def _consider(self, listener: Listener) -> None:
        """Ask a listener if it is worth it."""
        key = (listener.pid, listener.port)
        if key in self._done or listener.pid in self._served:
            return
        if not listener.is_chosen and (self._served or listener.n_ports > _MOST_PORTS):
            return
        n_asked, due = self._asked.get(key, (0, 0))
        if self._clock() < due:
            return
        url, is_http = self._ask(listener)
        if url is not None:
            self._served[listener.pid] = listener.port
            self._done.add(key)
            self._found.append((url, listener.namespace))
        elif not is_http or n_asked + 1 >= _MAX_ASKED:
            self._done.add(key)
        else:
            pause = min(SECOND_NS << (n_asked + 1), 60 * SECOND_NS)
            self._asked[key] = (n_asked + 1, self._clock() + pause)

    def _ask(self, listener: Listener) -> tuple[str | None, bool]:
        """URL of the listener's metrics if it has any, and whether it speaks HTTP."""
        result: list[tuple[str | None, bool]] = []
        thread = threading.Thread(
            target=lambda: result.append(_ask(listener, self._deadline_ns, self._clock)),
            name="engine-ask",
            daemon=True,
        )
        thread.start()
        thread.join(3 * self._deadline_ns / 1e9)
        return result[0] if result else (None, False)


def _ask(listener: Listener, deadline_ns: int, clock: Callable[[], int]) -> tuple[str | None, bool]:
    """Ask a listener for its metrics in a thread of its own, in the listener's network."""
    if listener.namespace is not None:
        try:
            enter_network_of(listener.namespace)
        except OSError:
            return None, False
    is_http = False
    for base in listener.base_urls:
        for path in METRIC_PATHS:
            url = base + path
            try:
                page = Fetcher(url, deadline_ns, clock).get()
            except FetchError as error:
                if not error.is_http:
                    break
                is_http = True
                continue
            is_http = True
            parsed = ExpositionParser().parse(page.text)
            if PageReader(url).read(parsed, page.start_ns, page.duration_ns) is not None:
                return url, True
        if is_http:
            break
    return None, is_http
