"""Answers that a metrics page is had from in the end, and those it is not: redirects, packed
bodies, passwords, addresses of version 6.
"""

from __future__ import annotations

import base64
import gzip
import socket
import ssl
import threading
import zlib

import pytest

from probes.engine.canary import CanaryProbe
from probes.engine.exposition import MAX_LINES
from probes.engine.fetch import MAX_PAGE_BYTES, Fetcher, FetchError
from probes.engine.scrape import EngineProbe, Scraper
from probes.engine.stream import EventStream
from tests.probes.engine.serving import Server, page, raw, serving
from tests.probes.engine.test_found_again import Drained

TEXT = "vllm:num_requests_running 3\n"
SECOND_NS = 1_000_000_000


def fetched(server: Server, path: str = "/metrics") -> str:
    return Fetcher(f"http://127.0.0.1:{server.port}{path}", SECOND_NS).get().text


def packed(body: bytes, encoding: str):
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n"
    return raw(head.encode() + body)


def moved(status: str, *locations: str):
    """Redirects the first requests there, then sends the page."""
    left = list(locations)

    def answer(connection: socket.socket) -> None:
        if left:
            head = f"HTTP/1.1 {status}\r\nLocation: {left.pop(0)}\r\nContent-Length: 0\r\n\r\n"
            connection.sendall(head.encode())
        else:
            page(TEXT)(connection)

    return answer


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 X"])
@pytest.mark.parametrize("location", ["/metrics/", "/metrics/?a=1", "?b"])
def test_a_redirect_of_the_same_server_is_followed(status: str, location: str) -> None:
    with serving(moved(status, location)) as server:
        assert fetched(server) == TEXT
        assert server.requests[0] == "GET /metrics HTTP/1.1"
        wanted = location if location.startswith("/") else f"/metrics{location}"
        assert server.requests[1] == f"GET {wanted} HTTP/1.1"


def test_each_get_asks_the_url_that_was_given() -> None:
    with serving(moved("302 Found", "/a")) as server:
        fetcher = Fetcher(server.url, SECOND_NS)
        assert [fetcher.get().text, fetcher.get().text] == [TEXT, TEXT]
        assert [line.split()[1] for line in server.requests] == ["/metrics", "/a", "/metrics"]


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("http://user:SECRET@elsewhere:9/metrics?token=SECRET", "http://elsewhere:9/metrics"),
        ("https://127.0.0.1/metrics", "https://127.0.0.1/metrics"),
        ("//elsewhere/m", "http://elsewhere/m"),
        ("http://[broken", "***"),
        ("file:///etc/passwd", "file:///etc/passwd"),
    ],
)
def test_a_redirect_to_another_server_is_named_and_not_followed(location: str, shown: str) -> None:
    with serving(moved("302 Found", location)) as server:
        with pytest.raises(FetchError) as caught:
            fetched(server)
        assert str(caught.value) == f"it redirects to {shown}; give that URL"
        assert len(server.requests) == 1


def test_a_circle_of_redirects_ends() -> None:
    with serving(moved("302 Found", *["/metrics"] * 20)) as server:
        with pytest.raises(FetchError, match="in circles"):
            fetched(server)
        assert len(server.requests) < 6


def test_what_fails_after_a_redirect_is_told_as_a_failure() -> None:
    left = [moved("302 Found", "/a"), raw(b"")]

    def answer(connection: socket.socket) -> None:
        left.pop(0)(connection)

    with serving(answer) as server, pytest.raises(FetchError, match="reset"):
        fetched(server)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(TEXT.encode())),
        ("X-GZIP", gzip.compress(TEXT.encode())),
        ("deflate", zlib.compress(TEXT.encode())),
        ("identity", TEXT.encode()),
    ],
)
def test_a_packed_page_is_unpacked_although_none_was_asked_for(encoding: str, body: bytes) -> None:
    with serving(packed(body, encoding)) as server:
        assert fetched(server) == TEXT


@pytest.mark.parametrize(
    ("encoding", "body", "reason"),
    [
        ("gzip", TEXT.encode(), "not packed as announced"),
        ("gzip", gzip.compress(TEXT.encode())[:-9], "broke off"),
        ("gzip", gzip.compress(bytes(4 * MAX_PAGE_BYTES)), "longer than 8 MB"),
        ("br", b"xyz", "packed as 'br'"),
    ],
)
def test_a_packed_page_that_cannot_be_unpacked_is_a_failure(
    encoding: str, body: bytes, reason: str
) -> None:
    with serving(packed(body, encoding)) as server, pytest.raises(FetchError, match=reason):
        fetched(server)


def heads(url: str, key: str | None = None) -> list[str]:
    """Lines of the request sent to a URL (``PORT`` stands for the server's)."""
    lines: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                lines.extend(connection.recv(65536).decode().split("\r\n"))
                page(TEXT)(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        url = url.replace("PORT", str(server.getsockname()[1]))
        if key is None:
            assert Fetcher(url, SECOND_NS).get().text == TEXT
        else:
            list(EventStream(url, SECOND_NS, lambda: 0, key).events(b"{}"))
        thread.join()
    return lines


def test_user_and_password_of_a_url_are_sent_as_such() -> None:
    sent = heads("http://me:p%40ss:word@127.0.0.1:PORT/metrics")
    assert f"Authorization: Basic {base64.b64encode(b'me:p@ss:word').decode()}" in sent
    assert not any(line.startswith("Authorization") for line in heads("http://127.0.0.1:PORT/"))


def test_the_key_of_the_canary_comes_before_a_password() -> None:
    sent = heads("http://me:secret@127.0.0.1:PORT/v1/completions", "KEY")
    found = [line for line in sent if line.startswith("Authorization")]
    assert found == ["Authorization: Bearer KEY"]


def test_an_address_of_version_6() -> None:
    try:
        reserved = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here; enable it: sysctl net.ipv6.conf.lo.disable_ipv6=0")
    with reserved:

        def serve() -> None:
            connection, _ = reserved.accept()
            with connection:
                requests.append(connection.recv(65536).decode())
                page(TEXT)(connection)

        requests: list[str] = []
        thread = threading.Thread(target=serve)
        thread.start()
        port = reserved.getsockname()[1]
        assert Fetcher(f"http://[::1]:{port}/metrics", SECOND_NS).get().text == TEXT
        thread.join()
    assert f"Host: [::1]:{port}\r\n" in requests[0]


def test_a_canary_takes_a_password_too_and_stores_none() -> None:
    probe = CanaryProbe("http://me:SECRET@127.0.0.1:1", "m")
    probe.start()
    rows = [batch.rows.to_pylist() for batch in probe.stop()]
    assert "SECRET" not in repr((rows, probe.report()))


def test_a_page_of_too_many_lines_is_one_event_that_says_so() -> None:
    with serving(page("vllm:num_requests_running 3\n" + "a 1\n" * MAX_LINES)) as server:
        collected = Drained(EngineProbe(urls=[server.url], interval_ns=SECOND_NS // 20))
        collected.probe.start()
        assert collected.until("source_lost")
        server.answer = page(TEXT)
        assert collected.until("source_recovered")
        collected.add(collected.probe.stop())
    assert collected.kinds() == ["source_lost", "source_recovered"]
    assert "more than 50,000 lines" in str(collected.events[0]["detail"])


def test_a_page_that_costs_too_much_is_read_less_often_and_often_again() -> None:
    scraper = Scraper("http://127.0.0.1:1/metrics")
    scraper.pace(30_000_000)
    for _ in range(20):
        scraper.pace(4_000_000)
    assert scraper.paced_ns == SECOND_NS
    for _ in range(40):
        scraper.pace(1_500_000_000)
    assert scraper.paced_ns == 10 * SECOND_NS
    for _ in range(200):
        scraper.pace(4_000_000)
    assert scraper.paced_ns == SECOND_NS
    scraper = Scraper("http://127.0.0.1:1/metrics", interval_ns=SECOND_NS // 10)
    for _ in range(100):
        scraper.pace(3_000_000)
    assert scraper.paced_ns == SECOND_NS // 10


def test_a_certificate_that_is_not_trusted_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", refuse)
    with serving(raw(b"")) as server, pytest.raises(FetchError) as caught:
        Fetcher(f"https://127.0.0.1:{server.port}/metrics", SECOND_NS).get()
    assert "not trusted (self-signed certificate)" in str(caught.value)
    assert "SSL_CERT_FILE" in str(caught.value)
