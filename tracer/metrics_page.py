"""A small Prometheus page on this host: the recorder's own health, and the current verdict."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from analysis.manifest import Source
from probes.probe import Batch
from tracer.captures import Captures
from tracer.errors import RequirementError, UsageError
from tracer.status import Status
from tracer.watching import Moment

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ADDRESS = "127.0.0.1"


class _Server(ThreadingHTTPServer):
    """A server that a client cannot make talk: what fails in a request ends that request only."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing; standard error is the recording's."""


class MetricsPage:
    """Serves the newest status under ``/metrics``; only this host can reach it.

    Args:
        port: TCP port; 0 for any.

    Raises:
        UsageError: the port cannot be had.
        RequirementError: no thread can be had.
    """

    def __init__(self, port: int) -> None:
        #: What the triggers did; None without triggers.
        self.captures: Captures | None = None
        self._text = page(None, None)
        owner = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                """Answer with the page."""
                is_known = self.path.split("?")[0] in ("/", "/metrics")
                body = (owner._text if is_known else "not found\n").encode()
                self.send_response(200 if is_known else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        try:
            self._server = _Server((ADDRESS, port), Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"port {port} cannot be served ({error}); choose another --metrics-port"
            ) from None
        self.port = int(self._server.server_address[1])
        thread = threading.Thread(
            target=self._server.serve_forever, name="metrics-page", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            self._server.server_close()
            raise RequirementError(
                "the metrics page cannot be served (no room for a thread); raise the limit of "
                "memory or of processes (ulimit -v, ulimit -u), or leave out --metrics-port"
            ) from None

    def observe(self, batch: Batch, now_ns: int) -> None:
        """Rows are nothing to it."""

    def look(self, moment: Moment) -> Sequence[Batch]:
        """Renew the page."""
        self._text = page(moment.status(), self.captures)
        return ()

    def close(self) -> Sequence[Batch]:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        return ()


def page(status: Status | None, captures: Captures | None) -> str:
    """Return the page's text; before the first second only that the recorder is up."""
    lines = ["# TYPE tracer_up gauge", "tracer_up 1"]
    if status is not None:
        lines += _status_lines(status)
    if captures is not None:
        lines += [
            "# TYPE tracer_captures_total counter",
            f"tracer_captures_total {captures.n_captures}",
            "# TYPE tracer_captures_refused_total counter",
            f"tracer_captures_refused_total {captures.n_refused}",
        ]
        verdict = captures.last_verdict
        if verdict is not None:
            cause = _label(str(verdict["cause"]))
            lines += [
                "# HELP tracer_verdict Confidence in the last verdict, by cause.",
                "# TYPE tracer_verdict gauge",
                f'tracer_verdict{{cause="{cause}"}} {float(verdict["confidence"]):g}',
            ]
    return "\n".join(lines) + "\n"


def _status_lines(status: Status) -> list[str]:
    values: list[tuple[str, str, float | None]] = [
        ("tracer_elapsed_seconds", "gauge", status.elapsed_ns / 1e9),
        ("tracer_rows_total", "counter", status.n_rows),
        ("tracer_lost_total", "counter", status.n_lost),
        ("tracer_problem", "gauge", 1 if status.problem else 0),
        ("tracer_calls_per_second", "gauge", status.calls_per_s),
        ("tracer_tokens_per_second", "gauge", status.tokens_per_s),
    ]
    for name, q in (("launch_p50_ns", "0.5"), ("launch_p99_ns", "0.99")):
        value = getattr(status, name)
        if value is not None:
            values.append((f'tracer_launch_seconds{{quantile="{q}"}}', "gauge", value / 1e9))
    values.extend(
        (f'tracer_device_util_ratio{{device="{device}"}}', "gauge", util / 100)
        for device, util in status.device_util_pct.items()
    )
    for source in status.sources:
        values.extend(_source_values(source))
    lines: list[str] = []
    typed: set[str] = set()
    for name, kind, value in sorted(values, key=lambda item: item[0]):
        if value is None:
            continue
        family = name.split("{")[0]
        if family not in typed:
            typed.add(family)
            lines.append(f"# TYPE {family} {kind}")
        lines.append(f"{name} {value:.10g}")
    return lines


def _source_values(source: Source) -> list[tuple[str, str, float | None]]:
    label = f'{{source="{_label(source.name)}"}}'
    cost = None if source.cost_ns is None else source.cost_ns / 1e9
    return [
        (f"tracer_source_up{label}", "gauge", float(source.state in ("ok", "degraded"))),
        (f"tracer_source_rows_total{label}", "counter", source.n_rows),
        (f"tracer_source_lost_total{label}", "counter", source.n_lost),
        (f"tracer_source_cost_seconds_total{label}", "counter", cost),
    ]


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
