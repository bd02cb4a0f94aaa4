from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack

import pyarrow as pa
import pytest

from analysis.schema import ENGINE_SAMPLE, EVENT
from probes.engine.fetch import MAX_PAGE_BYTES, Fetcher, FetchError
from probes.engine.scrape import EngineProbe
from probes.probe import Batch, ProbeError
from tests.probes.engine.serving import Answer, dripping, page, raw, resetting, serving, wait_for

VLLM = 'vllm:num_requests_running{engine="0"} 3\nvllm:generation_tokens_total{engine="0"} 9\n'
GOOD = page(VLLM)
TICK_NS = 50_000_000


class Collected:
    """Rows and events drained from a probe."""

    def __init__(self, probe: EngineProbe) -> None:
        self.probe = probe
        self.samples: list[dict[str, object]] = []
        self.events: list[dict[str, object]] = []

    def drain(self) -> None:
        self.add(self.probe.drain(time.monotonic_ns()))

    def add(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            assert isinstance(batch.rows, pa.RecordBatch)
            plain = batch.rows.cast(batch.table.arrow_schema())  # text may be coded
            rows = plain.to_pylist()
            if batch.table is ENGINE_SAMPLE:
                self.samples.extend(rows)
            else:
                assert batch.table is EVENT
                self.events.extend(rows)

    def until(self, condition: str) -> bool:
        """Drain until a kind of event (or ``samples``) came."""

        def is_there() -> bool:
            self.drain()
            if condition == "samples":
                return bool(self.samples)
            return any(event["kind"] == condition for event in self.events)

        return wait_for(is_there)

    def kinds(self) -> list[object]:
        return [event["kind"] for event in self.events]


def probe_of(url: str, deadline_s: float = 0.4) -> EngineProbe:
    return EngineProbe(urls=[url], interval_ns=TICK_NS, deadline_ns=int(deadline_s * 1e9))


def test_scrapes_arrive_with_the_time_of_their_middle() -> None:
    with serving(GOOD) as server:
        probe = probe_of(server.url)
        collected = Collected(probe)
        before = time.monotonic_ns()
        probe.start()
        assert collected.until("samples")
        collected.add(probe.stop())
    assert not collected.events
    row = collected.samples[0]
    assert (row["metric"], row["value"], row["engine"]) == ("requests_running", 3.0, "vllm")
    assert isinstance(row["time_ns"], int) and before < row["time_ns"] < time.monotonic_ns()
    assert isinstance(row["scrape_ns"], int) and row["scrape_ns"] > 0
    assert server.requests[0] == "GET /metrics HTTP/1.1"
    report = probe.report()
    assert report.n_rows == len(collected.samples)
    assert report.n_lost == 0
    assert report.cost_ns
    assert report.details and report.details["endpoints"][0]["engine"] == "vllm"


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
FAULTS: dict[str, tuple[Answer, str]] = {
    "hangs": (raw(b"", 5), "no whole answer within"),
    "drips headers": (dripping(HEAD * 20, 0.1), "no whole answer within"),
    "drips the page": (dripping(HEAD + b"\r\n" + b"# comment\n" * 99, 0.02), "no whole answer"),
    "half, length told": (
        raw(HEAD + b"Content-Length: 999\r\n\r\nvllm:num_requests_running 3\n"),
        "broke off after 28 of 999 bytes",
    ),
    "half, no length": (
        raw(HEAD + b"\r\nvllm:num_requests_running 3\nvllm:num_requ"),
        "broke off in the middle",
    ),
    "half a chunk": (
        raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n100\r\nvllm:num_requests_running 3\n"),
        "broke off",
    ),
    "50 MB told": (raw(HEAD + b"Content-Length: 52428800\r\n\r\nvllm:a 1\n"), "over 8 MB"),
    "too long, untold": (
        raw(HEAD + b"\r\n" + b"a 1\n" * (MAX_PAGE_BYTES // 4 + 1)),
        "longer than 8 MB",
    ),
    "HTML": (page("<html>hello</html>", "text/html"), "it sent no metrics (text/html)"),
    "JSON": (page('{"iterations": 3}', "application/json"), "it sent no metrics"),
    "other metrics": (page("node_load1 3\n"), "none of its metrics is of a known engine"),
    "not found": (page("no", status="404 Not Found"), "it answered 404 Not Found"),
    "closes": (raw(b""), "the connection was reset"),
    "resets": (resetting(HEAD + b"\r\nvllm:num_requests_running 3\n"), "the connection was reset"),
    "not HTTP": (raw(b"SSH-2.0-OpenSSH_9.2\r\n"), "not HTTP"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_event_and_a_gap(fault: str) -> None:
    answer, reason = FAULTS[fault]
    with serving(GOOD) as server:
        deadline_s = 2.0 if fault.startswith("too long") else 0.4
        probe = probe_of(server.url, deadline_s)
        collected = Collected(probe)
        probe.start()
        assert collected.until("samples")
        server.answer = answer
        assert collected.until("source_lost")
        collected.samples.clear()
        asked = len(server.requests)
        began = time.monotonic()
        wait_for(lambda: collected.drain() or len(server.requests) > asked + 1)
        assert time.monotonic() - began < 9
        assert not collected.samples
        server.answer = GOOD
        assert collected.until("source_recovered")
        assert collected.until("samples")
        collected.add(probe.stop())
    assert collected.kinds() == ["source_lost", "source_recovered"]
    assert reason in str(collected.events[0]["detail"])
    assert collected.events[0]["name"] == f"engine {server.url}"
    details = probe.report().details
    assert details and details["endpoints"][0]["n_failures"] >= 1


def test_draining_never_waits_for_an_endpoint() -> None:
    with serving(raw(b"", 5)) as server:
        probe = probe_of(server.url, 3.0)
        probe.start()
        assert wait_for(lambda: bool(server.requests))
        began = time.monotonic()
        list(probe.drain(time.monotonic_ns()))
        list(probe.stop())
        assert time.monotonic() - began < 1.0


def test_an_endpoint_that_is_away_is_told_and_found_when_it_comes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    probe = probe_of(f"127.0.0.1:{port}")
    collected = Collected(probe)
    probe.start()
    assert collected.until("source_lost")
    assert "refused" in str(collected.events[0]["detail"])
    assert "could not be read" in probe.report().note
    list(probe.stop())


@pytest.mark.parametrize("url", ["ftp://h/metrics", "http://", "http://h:99999/metrics"])
def test_a_url_that_is_none_is_refused_with_a_remedy(url: str) -> None:
    with pytest.raises(ProbeError, match="--engine http://HOST:PORT/metrics"):
        EngineProbe(urls=[url]).start()


def test_abort_without_an_exchange_does_nothing() -> None:
    fetcher = Fetcher("http://127.0.0.1:1/metrics")
    fetcher.abort()
    with pytest.raises(FetchError, match="refused"):
        fetcher.get()


class Targets:
    def __init__(self, *pids: int) -> None:
        self._pids = set(pids)

    def pids(self) -> set[int]:
        return self._pids


SERVER = """
import fcntl, http.server, socket, struct, sys
if len(sys.argv) > 3:  # a new network namespace: its loopback is down
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, 0x8914, struct.pack("16sh22x", b"lo", 1))
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_page = self.path == sys.argv[1]
        body = b'vllm:num_requests_running 3\\n' if is_page else b'{"json": 1}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *a): pass
s = http.server.ThreadingHTTPServer((sys.argv[2], 0), H)
print(s.server_address[1], flush=True)
s.serve_forever()
"""


def _child(*prefix: str, path: str = "/metrics", address: str = "127.0.0.1"):
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", SERVER, path, address, *prefix[:1]],
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("path", "address", "host"),
    [
        ("/metrics", "127.0.0.1", "127.0.0.1"),
        ("/metrics", "0.0.0.0", "127.0.0.1"),
        ("/prometheus/metrics", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_an_endpoint_is_found_among_the_listening_ports(path: str, address: str, host: str) -> None:
    child = _child(path=path, address=address)
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        probe = EngineProbe(Targets(child.pid), interval_ns=TICK_NS, deadline_ns=10**9)
        collected = Collected(probe)
        probe.start()
        assert collected.until("samples")
        assert probe.endpoints == [f"http://{host}:{port}{path}"]
        collected.add(probe.stop())
    finally:
        child.kill()
        child.wait()


@pytest.mark.root
def test_an_endpoint_in_another_network_namespace_is_found() -> None:
    child = _child("unshare", "--net")
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        probe = EngineProbe(Targets(child.pid), interval_ns=TICK_NS, deadline_ns=10**9)
        collected = Collected(probe)
        probe.start()
        assert collected.until("samples")
        assert probe.endpoints == [f"http://127.0.0.1:{port}/metrics"]
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        collected.add(probe.stop())
    finally:
        child.kill()
        child.wait()


def test_transports_of_workers_are_never_asked() -> None:
    """More ports than a server has, all chosen by the kernel: they do not speak HTTP."""
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(6)]
        for server in servers:
            server.settimeout(0.01)
        probe = EngineProbe(Targets(os.getpid()), interval_ns=TICK_NS)
        probe.start()
        time.sleep(1.0)
        list(probe.stop())
        for server in servers:
            with pytest.raises(TimeoutError):
                server.accept()


def test_ports_of_other_processes_are_never_asked() -> None:
    with serving(GOOD) as server:
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"])
        try:
            probe = EngineProbe(Targets(other.pid), interval_ns=TICK_NS)
            probe.start()
            time.sleep(0.5)
            list(probe.stop())
            assert not server.requests
            assert "--engine" in probe.report().note
        finally:
            other.kill()
            other.wait()


def test_a_connection_is_kept_and_made_anew_when_the_other_side_closed_it() -> None:
    connections: list[int] = []

    def two_answers(connection: socket.socket) -> None:
        """Answers two requests of a connection, the second in chunks, and closes it."""
        connections.append(1)
        body = b"vllm:num_requests_running 1\n"
        head = b"HTTP/1.1 200 OK\r\n"
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        if connection.recv(65536):
            chunk = b"%x\r\n" % len(body) + body + b"\r\n"
            connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk)
            for byte in b"0\r\nX-Trailer: 1\r\n\r\n":
                connection.sendall(bytes([byte]))

    with serving(two_answers) as server:
        fetcher = Fetcher(server.url, keep=True)
        texts = {fetcher.get().text for _ in range(4)}
        fetcher.close()
    assert texts == {"vllm:num_requests_running 1\n"}
    assert len(connections) == 2
