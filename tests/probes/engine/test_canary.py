"""The canary against local servers that stream, are slow, refuse, break off and hang."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from click.testing import CliRunner

from analysis.schema import EVENT, REQUEST
from probes.engine.canary import KEY_VARIABLE, CanaryProbe
from probes.engine.fetch import FetchError
from probes.engine.stream import _Body
from probes.probe import Batch, ProbeError
from tests.probes.engine.serving import Answer, page, raw, resetting, serving, wait_for
from tracer.cli import cli

MS = 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def event(text: str, end: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": end}
    return b"data: " + json.dumps({"choices": [choice], **more}).encode() + b"\n\n"


USAGE = {"prompt_tokens": 15, "completion_tokens": 5}
DONE = b"data: [DONE]\n\n"


def streaming(first_s: float, step_s: float, n: int = 5, chunked: bool = True) -> Answer:
    """A completion of ``n`` tokens: the first after a while, then one a step, then the usage."""

    def answer(connection: socket.socket) -> None:
        def send(data: bytes) -> None:
            frame = f"{len(data):x}\r\n".encode() + data + b"\r\n" if chunked else data
            connection.sendall(frame)

        connection.sendall(HEAD + (b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"\r\n"))
        time.sleep(first_s)
        for i in range(n):
            send(event("x", "length" if i == n - 1 else None))
            if i < n - 1:
                time.sleep(step_s)
        send(b"data: " + json.dumps({"choices": [], "usage": USAGE}).encode() + b"\n\n")
        send(DONE)
        if chunked:
            connection.sendall(b"0\r\n\r\n")

    return answer


def address(server: Any) -> str:
    return f"http://127.0.0.1:{server.port}"


def collect(
    probe: CanaryProbe, is_enough: Callable[[list[dict], list[dict]], bool], timeout_s: float = 10
) -> tuple[list[dict], list[dict]]:
    """Rows of ``request`` and ``event`` of a probe, once there are enough of them."""
    rows: dict[str, list[dict]] = {REQUEST.name: [], EVENT.name: []}

    def look() -> bool:
        for batch in probe.drain(time.monotonic_ns()):
            rows[batch.table.name].extend(batch.rows.to_pylist())
        return is_enough(rows[REQUEST.name], rows[EVENT.name])

    probe.start()
    try:
        assert wait_for(look, timeout_s)
    finally:
        for batch in probe.stop():
            rows[batch.table.name].extend(batch.rows.to_pylist())
    return rows[REQUEST.name], rows[EVENT.name]


@pytest.mark.parametrize("chunked", [True, False])
def test_times_are_those_of_the_client(chunked: bool):
    with serving(streaming(0.15, 0.03, chunked=chunked)) as server:
        probe = CanaryProbe(address(server), "m", interval_ns=10_000 * MS)
        requests, events = collect(probe, lambda rows, _: bool(rows))
    assert events == []
    (row,) = requests
    assert row["source"] == "canary" and row["end"] == "length"
    assert row["endpoint"] == f"{address(server)}/v1/completions"
    assert 150 * MS <= row["ttft_ns"] < 1500 * MS
    # A first token that is read late shortens the mean of the rest.
    assert 20 * MS <= row["inter_token_ns"] < 500 * MS
    assert row["ttft_ns"] + 4 * row["inter_token_ns"] <= row["duration_ns"] + 4
    assert (row["n_prompt_tokens"], row["n_output_tokens"]) == (15, 5)


def test_a_control_endpoint_tells_which_is_slow():
    with serving(streaming(0.4, 0)) as slow, serving(streaming(0, 0)) as control:
        probe = CanaryProbe(address(slow), "m", address(control), interval_ns=10_000 * MS)
        requests, _ = collect(probe, lambda rows, _: len(rows) >= 2)
        report = probe.report()
    by_source = {row["source"]: row for row in requests}
    assert by_source["canary"]["ttft_ns"] > 400 * MS
    assert by_source["canary_control"]["ttft_ns"] < by_source["canary"]["ttft_ns"]
    assert report.details is not None
    assert [item["is_control"] for item in report.details["endpoints"]] == [False, True]


def test_requests_go_on_at_the_interval():
    with serving(streaming(0, 0)) as server:
        probe = CanaryProbe(address(server), "m", interval_ns=100 * MS)
        requests, _ = collect(probe, lambda rows, _: len(rows) >= 3)
    starts = [row["start_ns"] for row in requests]
    assert all(later - sooner >= 90 * MS for sooner, later in pairwise(starts))


def test_a_chat_only_endpoint_is_found():
    def answer(connection: socket.socket) -> None:
        if "/chat/" not in server.requests[-1]:
            page("no", status="404 Not Found")(connection)
            return
        role = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
        text = {"choices": [{"delta": {"content": "eight"}, "finish_reason": "stop"}]}
        frames = [b"data: " + json.dumps(item).encode() + b"\n\n" for item in (role, text)]
        connection.sendall(HEAD + b"\r\n" + b"".join(frames) + DONE)

    with serving(answer) as server:
        probe = CanaryProbe(f"{address(server)}/v1", "m", interval_ns=10_000 * MS)
        requests, events = collect(probe, lambda rows, _: bool(rows))
    assert events == [] and requests[0]["end"] == "stop"
    assert requests[0]["endpoint"].endswith("/v1/chat/completions")
    assert requests[0]["n_output_tokens"] == 1 and requests[0]["inter_token_ns"] is None


def test_an_engine_without_stream_options_is_asked_again():
    def answer(connection: socket.socket) -> None:
        if len(server.requests) == 1:
            page("extra fields", status="400 Bad Request")(connection)
        else:
            streaming(0, 0)(connection)

    with serving(answer) as server:
        probe = CanaryProbe(address(server), "m", interval_ns=10_000 * MS)
        requests, events = collect(probe, lambda rows, _: bool(rows))
    assert events == [] and requests[0]["end"] == "length"


BROKEN = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "end", "text"),
    [
        (page("", status="500 Internal Server Error"), "error", "500"),
        (page("", status="404 Not Found"), "error", "404"),
        (page('{"text": "not a stream"}'), "error", "no tokens"),
        (raw(b"SSH-2.0-OpenSSH\r\n"), "error", "not HTTP"),
        (resetting(BROKEN), "error", "reset"),
        (raw(BROKEN + b"5\r\ndata:"), "error", "broke off"),
        (raw(BROKEN + b"zz\r\n"), "error", "not in chunks"),
        (raw(HEAD + b"\r\ndata: {half\n\n"), "error", "not a stream"),
        (raw(HEAD + b"\r\ndata: [1]\n\n"), "error", "not a stream"),
        (raw(HEAD + b"\r\ndata: " + b'{"error": {"message": "no"}}' + b"\n\n"), "error", "error"),
        (raw(HEAD + b"\r\n" + b"x" * (5 << 20)), "error", "longer than 4 MB"),
        (raw(b"", then_sleep_s=3), "timeout", "no whole answer"),
        (raw(HEAD + b"\r\n" + event("x"), then_sleep_s=3), "timeout", "no whole answer"),
    ],
)
def test_a_failure_is_one_event_and_a_row_without_invention(answer: Answer, end: str, text: str):
    with serving(answer) as server:
        probe = CanaryProbe(address(server), "m", interval_ns=20 * MS, deadline_ns=300 * MS)
        requests, events = collect(probe, lambda rows, _: len(rows) >= 2)
    assert [item["kind"] for item in events] == ["source_lost"]
    assert text in events[0]["detail"]
    assert {row["end"] for row in requests} == {end}
    assert all(row["inter_token_ns"] is None for row in requests)


def test_recovery_is_told():
    with serving(page("", status="503 Unavailable")) as server:
        probe = CanaryProbe(address(server), "m", interval_ns=20 * MS)

        def is_enough(rows: list[dict], events: list[dict]) -> bool:
            if events:
                server.answer = streaming(0, 0)
            return any(row["end"] == "length" for row in rows) and len(events) == 2

        _, events = collect(probe, is_enough)
    assert [item["kind"] for item in events] == ["source_lost", "source_recovered"]


def test_nothing_listens():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    probe = CanaryProbe(f"127.0.0.1:{port}", "m", interval_ns=20 * MS)
    requests, events = collect(probe, lambda rows, _: bool(rows))
    assert "refused" in events[0]["detail"] and requests[0]["ttft_ns"] is None


def test_stopping_does_not_wait_for_an_answer():
    with serving(raw(HEAD + b"\r\n", then_sleep_s=5)) as server:
        probe = CanaryProbe(address(server), "m")
        probe.start()
        assert wait_for(lambda: bool(server.requests))
        begin = time.monotonic()
        assert list(probe.stop()) == []
        assert time.monotonic() - begin < 2


def test_secrets_and_the_prompt_are_not_stored(monkeypatch: pytest.MonkeyPatch):
    seen: list[str] = []

    def answer(connection: socket.socket) -> None:
        streaming(0, 0)(connection)

    monkeypatch.setenv(KEY_VARIABLE, "hush-key")
    with serving(answer) as server:
        url = f"http://me:hush@127.0.0.1:{server.port}/v1/completions?key=hush"
        probe = CanaryProbe(url, "m", interval_ns=10_000 * MS)
        requests, _ = collect(probe, lambda rows, _: bool(rows))
        seen.append(repr((requests, probe.report())))
    assert "hush" not in seen[0] and "seven" not in seen[0]


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:99999"])
def test_a_wrong_url_is_told(url: str):
    with pytest.raises(ProbeError, match="--canary"):
        CanaryProbe(url, "m").start()


@pytest.mark.parametrize(
    "arguments", [["--canary", "http://x"], ["--model", "m"], ["--against", "http://x"]]
)
def test_the_command_wants_both(arguments: list[str]):
    result = CliRunner().invoke(cli, ["record", "--pid", "1", *arguments])
    assert result.exit_code != 0
    assert "--model" in str(result.exception)


@pytest.mark.parametrize("count", ["true", "-5", "1e99", '"7"', "99999999999999999999", "null"])
def test_a_count_that_cannot_be_is_not_taken(count: str):
    usage = f'{{"prompt_tokens": {count}, "completion_tokens": {count}}}'
    events = f'data: {{"choices": [{{"text": "a"}}], "usage": {usage}}}\n\ndata: [DONE]\n\n'
    with serving(raw(b"HTTP/1.1 200 OK\r\n\r\n" + events.encode())) as server:
        probe = CanaryProbe(f"http://127.0.0.1:{server.port}/v1/completions", "m")
        probe.start()
        batches: list[Batch] = []
        assert wait_for(lambda: batches.extend(probe.drain(time.monotonic_ns())) or bool(batches))
        list(probe.stop())
    [row] = batches[0].rows.to_pylist()
    assert (row["n_prompt_tokens"], row["n_output_tokens"], row["end"]) == (None, 1, "stop")


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_chunks_come_apart_wherever_they_are_cut(step: int):
    body = b"".join(b"%x;x=1\r\n%s\r\n" % (n, b"y" * n) for n in range(1, 60)) + b"0\r\n\r\n"
    reader = _Body(True, None)
    got = b"".join(reader.feed(body[i : i + step]) for i in range(0, len(body), step))
    assert got == b"y" * sum(range(1, 60))
    assert reader.is_done and not reader.needs_end
    with pytest.raises(FetchError, match="chunks"):
        _Body(True, None).feed(b"1" * 100)


def test_a_name_that_is_looked_up_for_ever_is_told(monkeypatch: pytest.MonkeyPatch):
    going_on = threading.Event()
    look_up = socket.getaddrinfo

    def slow(*arguments: Any, **more: Any) -> Any:
        going_on.wait(20)
        return look_up(*arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with serving(raw(b"")) as server:
        url = f"http://localhost:{server.port}/v1/completions"
        probe = CanaryProbe(url, "m", deadline_ns=100_000_000, interval_ns=50_000_000)
        probe.start()
        told: list[dict[str, Any]] = []

        def drain() -> None:
            for batch in probe.drain(time.monotonic_ns()):
                told.extend(row for row in batch.rows.to_pylist() if batch.table is EVENT)

        assert wait_for(lambda: drain() or bool(told))
        drain()
        going_on.set()
        list(probe.stop())
    assert [row["kind"] for row in told] == ["source_lost"]
    assert "no whole answer within 0.1 s" in told[0]["detail"]
