"""The recorder's own metrics page: parseable, local, and gone after the end."""

from __future__ import annotations

import socket
import struct
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from analysis.manifest import Source
from tracer.errors import RequirementError, UsageError
from tracer.metrics_page import MetricsPage, page
from tracer.status import Status
from tracer.watching import Moment

STATUS = Status(
    elapsed_ns=90_000_000_000,
    calls_per_s=2000.0,
    n_launches=100,
    launch_p50_ns=5000,
    launch_p99_ns=9000,
    device_util_pct={0: 97.0},
    tokens_per_s=None,
    n_lost=3,
    n_rows=10,
    sources=[Source('a"b', "ok", n_rows=4, cost_ns=10**9), Source("nvml", "unavailable")],
)


class Made:
    def __init__(self) -> None:
        self.n_captures, self.n_refused = 2, 1
        self.last_verdict = {"cause": "hang.kernel", "confidence": 0.9}


def samples(text: str) -> dict[tuple, float]:
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_it_says():
    found = samples(page(STATUS, Made()))
    assert found["tracer_up",] == 1
    assert found["tracer_calls_per_second",] == 2000
    assert found["tracer_launch_seconds", "0.99"] == pytest.approx(9e-6)
    assert found["tracer_device_util_ratio", "0"] == pytest.approx(0.97)
    assert found["tracer_source_up", "nvml"] == 0
    assert found["tracer_source_cost_seconds_total", 'a"b'] == 1
    assert found["tracer_verdict", "hang.kernel"] == 0.9
    assert found["tracer_captures_total",] == 2
    assert ("tracer_tokens_per_second",) not in found


def test_it_is_served_on_this_host_and_ends():
    served = MetricsPage(0)
    url = f"http://127.0.0.1:{served.port}"
    assert samples(urllib.request.urlopen(f"{url}/metrics").read().decode())["tracer_up",] == 1
    served.look(Moment(1, lambda: STATUS, lambda reason: None))
    assert "tracer_lost_total 3" in urllib.request.urlopen(f"{url}/metrics").read().decode()
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"{url}/etc/passwd")
    with pytest.raises(UsageError, match="another --metrics-port"):
        MetricsPage(served.port)
    served.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/metrics", timeout=2)


def test_a_client_that_goes_away_makes_no_noise(capfd):
    served = MetricsPage(0)
    for request in (
        b"GET /metrics HTTP/1.1\r\n",
        b"GET /metrics HTTP/1.1\r\n\r\n",
        b"\xff\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", served.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(request)
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics") as answer:
        assert b"tracer_up 1" in answer.read()
    served.close()
    assert capfd.readouterr() == ("", "")


def test_what_fails_in_a_request_is_not_told(capfd):
    served = MetricsPage(0)
    served._text = None
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics")
    served.close()
    assert capfd.readouterr() == ("", "")


def test_without_a_thread_there_is_no_page(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", refuse)
    with pytest.raises(RequirementError, match="no room for a thread"):
        MetricsPage(0)
