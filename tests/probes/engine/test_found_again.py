"""An engine that is started again while it is recorded, and engines that share an address."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from analysis.schema import ENGINE_SAMPLE
from probes.engine import search
from probes.engine.scrape import EngineProbe
from probes.probe import Batch
from tests.probes.engine.serving import wait_for
from tests.probes.engine.test_scrape import TICK_NS, Collected

SERVER = """
import fcntl, http.server, socket, struct, sys
address = "127.0.0.1"
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if sys.argv[-1] == "without6" else socket.AF_INET
if sys.argv[-1] == "without6":
    address = "::"
    open("/proc/sys/net/ipv6/conf/all/disable_ipv6", "w").write("1")
if len(sys.argv) > 2:  # a new network namespace: its loopback is down
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, 0x8914, struct.pack("16sh22x", b"lo", 1))
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'vllm:num_requests_running 3\\n'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *a): pass
s = Server((address, int(sys.argv[1])), H)
print(s.server_address[1], flush=True)
s.serve_forever()
"""


class Drained(Collected):
    """Rows whatever the types of their columns."""

    def add(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            place = self.samples if batch.table is ENGINE_SAMPLE else self.events
            place.extend(batch.rows.to_pylist())


class Tree:
    """Processes that come and go."""

    def __init__(self) -> None:
        self.now: set[int] = set()

    def pids(self) -> set[int]:
        return set(self.now)

    @contextmanager
    def serving(self, port: int, *prefix: str, last: str = "") -> Iterator[int]:
        """A process of the tree that serves a page of metrics; its port."""
        more = [last] if last else prefix[:1]
        command = [*prefix, sys.executable, "-c", SERVER, str(port), *more]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout is not None
            found = int(child.stdout.readline())
            self.now.add(child.pid)
            yield found
        finally:
            self.now.discard(child.pid)
            child.kill()
            child.communicate()


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setattr(search, "_SEARCH_NS", 50_000_000)
    monkeypatch.setattr(search, "_SEARCH_AGAIN_NS", 50_000_000)
    return Tree()


def started(tree: Tree) -> Collected:
    collected = Drained(EngineProbe(tree, interval_ns=TICK_NS, deadline_ns=10**9))
    collected.probe.start()
    return collected


def look_again(collected: Collected, monkeypatch: pytest.MonkeyPatch, n_looks: int) -> None:
    """Wait until the search has looked so many times again."""
    looked: list[int] = []
    found = search.find_listeners

    def counted(pids: set[int]) -> list[search.Listener]:
        looked.append(1)
        return found(pids)

    monkeypatch.setattr(search, "find_listeners", counted)
    assert wait_for(lambda: collected.drain() or len(looked) > n_looks)


def test_an_engine_that_is_started_again_at_its_port_is_scraped_once(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tree.serving(0) as port:
        collected = started(tree)
        assert collected.until("samples")
    assert collected.until("source_lost")
    with tree.serving(port):
        assert collected.until("source_recovered")
        look_again(collected, monkeypatch, 5)
        assert collected.probe.endpoints == [f"http://127.0.0.1:{port}/metrics"]
        collected.samples.clear()
        assert collected.until("samples")
        collected.add(collected.probe.stop())
    assert collected.kinds() == ["source_lost", "source_recovered"]
    times = [row["time_ns"] for row in collected.samples]
    assert len(set(times)) == len(times)


def test_a_process_that_opens_another_port_is_found_there(tree: Tree) -> None:
    """It closed the first, as one that runs another program in its place does."""
    script = SERVER.replace(
        "s.serve_forever()",
        "import threading, os\n"
        "threading.Thread(target=s.serve_forever, daemon=True).start()\n"
        "sys.stdin.readline()\n"
        "os.execv(sys.executable, [sys.executable, '-c', sys.argv[2], '0'])",
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script.replace("len(sys.argv) > 2", "False"), "0", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None and child.stdin is not None
        first = int(child.stdout.readline())
        tree.now.add(child.pid)
        collected = started(tree)
        assert collected.until("samples")
        child.stdin.write("\n")
        child.stdin.flush()
        second = int(child.stdout.readline())
        assert collected.until("source_lost")
        wanted = f"http://127.0.0.1:{second}/metrics"
        assert wait_for(lambda: collected.drain() or wanted in collected.probe.endpoints)
        assert collected.probe.endpoints == [f"http://127.0.0.1:{first}/metrics", wanted]
        list(collected.probe.stop())
    finally:
        child.kill()
        child.communicate()


@pytest.mark.root
def test_two_engines_at_one_address_in_two_networks_have_two_names(tree: Tree) -> None:
    port = 8000  # of networks of their own
    with tree.serving(port, "unshare", "--net"), tree.serving(port, "unshare", "--net"):
        collected = started(tree)
        wanted = f"http://127.0.0.1:{port}/metrics"

        def has_both() -> bool:
            collected.drain()
            return len({row["endpoint"] for row in collected.samples}) > 1

        assert wait_for(has_both)
        names = sorted({str(row["endpoint"]) for row in collected.samples})
        assert names[0] == wanted
        assert names[1].startswith(f"{wanted} (net:[")
        list(collected.probe.stop())


@pytest.mark.root
def test_an_engine_that_is_started_again_in_another_network_takes_the_place_of_the_first(
    tree: Tree,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    with tree.serving(port, "unshare", "--net"):
        collected = started(tree)
        assert collected.until("samples")
    assert collected.until("source_lost")
    with tree.serving(port, "unshare", "--net"):
        assert collected.until("source_recovered")
        collected.samples.clear()
        assert collected.until("samples")
        assert collected.probe.endpoints == [f"http://127.0.0.1:{port}/metrics"]
        list(collected.probe.stop())
    assert collected.kinds() == ["source_lost", "source_recovered"]


def test_looks_that_cost_much_are_seldom() -> None:
    """A process may have tens of thousands of sockets."""
    look = search.EndpointSearch(10**9, set(), lambda: 0)
    assert look.pause_ns(1_000_000) == search._SEARCH_NS
    assert look.pause_ns(300_000_000) == 30 * 10**9


@pytest.mark.root
def test_an_engine_on_all_addresses_is_found_where_version_6_is_switched_off(tree: Tree) -> None:
    """As in containers by default."""
    with tree.serving(8000, "unshare", "--net", last="without6"):
        collected = started(tree)
        assert collected.until("samples")
        assert collected.probe.endpoints == ["http://127.0.0.1:8000/metrics"]
        list(collected.probe.stop())
