"""The API process of the simulated LLM server: HTTP in front, an engine process behind.

Run as ``python -m tracer.simulated.server --config FILE``. It serves ``POST /v1/completions``
(with ``prompt_tokens`` and ``max_tokens``: no text is ever handled), ``GET /metrics`` and
``/health``, and ``POST /order`` for the staging of faults. One line with the port is printed
when it listens.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tracer.simulated.channel import Channel
from tracer.simulated.computing import compute
from tracer.simulated.metrics_page import MetricsPage, Progress
from tracer.simulated.options import ServerOptions
from tracer.simulated.orphan import end_with_parent

#: How often a handler looks whether its client is still there, in seconds.
_CLIENT_CHECK_S = 0.25


class Frontend:
    """What the API process knows: requests under way, the engine and the metrics.

    Args:
        options: Settings of the server.
    """

    def __init__(self, options: ServerOptions) -> None:
        self.page = MetricsPage(options.model_name, options.n_blocks, options.block_tokens)
        self._frontend_token_ns = options.frontend_token_ns
        self._tokeniser = threading.Lock()
        self._ids = itertools.count(1)
        self._progress: dict[int, Progress] = {}
        self._done: dict[int, threading.Event] = {}
        self._lock = threading.Lock()
        self._n_preemptions = 0
        self.state = "starting"
        self._channel, theirs = Channel.pair()
        self.engine = subprocess.Popen(
            [sys.executable, "-m", "tracer.simulated.engine", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._channel.send({"options": options.to_json()})
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def complete(
        self, prompt_tokens: int, max_tokens: int, n_samples: int, client: socket.socket
    ) -> dict[str, Any] | None:
        """Run one request to its end; None when the client or the engine goes away first."""
        request_id = next(self._ids)
        arrival = time.monotonic()
        self._tokenise(prompt_tokens)
        progress = Progress(prompt_tokens, max_tokens, n_samples, arrival)
        done = threading.Event()
        with self._lock:
            self._progress[request_id] = progress
            self._done[request_id] = done
        self.send({"add": (request_id, prompt_tokens, max_tokens, n_samples)})
        while not done.wait(_CLIENT_CHECK_S):
            if _is_closed(client) or self.state == "dead":
                self._abort(request_id)
                return None
        return {
            "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": progress.n_output},
            "ttft_s": (progress.first_token or progress.arrival) - progress.arrival,
            "e2e_s": (progress.last_token or progress.arrival) - progress.arrival,
        }

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the engine; silently dropped when it is gone."""
        try:
            self._channel.send(message)
        except OSError:
            self.state = "dead"

    def _tokenise(self, prompt_tokens: int) -> None:
        """Spend what a prompt takes before the engine gets it; one prompt at a time."""
        if self._frontend_token_ns:
            with self._tokeniser:
                compute(self._frontend_token_ns * prompt_tokens)

    def _abort(self, request_id: int) -> None:
        with self._lock:
            progress = self._progress.pop(request_id, None)
            self._done.pop(request_id, None)
            if progress is None:
                return
            self.page.observe_end(progress, "abort", 0, time.monotonic())
        self.send({"abort": request_id})

    def _read(self) -> None:
        """Take the engine's messages until it ends."""
        while True:
            try:
                message = self._channel.receive(None)
            except (EOFError, OSError):
                self.state = "dead"
                return
            if message is None:
                continue
            if "ready" in message:
                self.state = "ready"
            elif "held" in message:
                self.state = "held"
            else:
                with self._lock:
                    self._take_step(message, time.monotonic())

    def _take_step(self, message: dict[str, Any], now: float) -> None:
        page = self.page
        for request_id, queued_at in message["started"]:
            progress = self._progress.get(request_id)
            if progress is not None and progress.scheduled is None:
                progress.queued, progress.scheduled = queued_at, message["scheduled_at"]
        n_prompt_tokens = n_generated = 0
        for request_id, is_finished, n_preempted in message["outputs"]:
            progress = self._progress.get(request_id)
            if progress is None:
                continue
            if progress.first_token is None:
                n_prompt_tokens += progress.prompt_tokens
            n_generated += progress.n_samples
            page.observe_token(progress, message["ended_at"], now)
            if is_finished:
                page.observe_end(progress, "length", n_preempted, now)
                del self._progress[request_id]
                self._done.pop(request_id).set()
        page.set_engine(message["running"], message["waiting"], message["usage"])
        if message["outputs"]:
            page.observe_step(n_prompt_tokens, n_generated)
        page.count_preemptions(message["preemptions"] - self._n_preemptions)
        self._n_preemptions = message["preemptions"]


def _is_closed(client: socket.socket) -> bool:
    """Whether the client of a request has hung up."""
    try:
        if not select.select([client], [], [], 0)[0]:
            return False
        return not client.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    frontend: Frontend

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._reply(200, self.frontend.page.text(), "text/plain; version=0.0.4")
        elif self.path == "/health":
            state = {"state": self.frontend.state, "engine_pid": self.frontend.engine.pid}
            self._reply(200, json.dumps(state).encode(), "application/json")
        else:
            self._reply(404, b"{}", "application/json")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))) or b"{}")
        if self.path == "/order":
            self.frontend.send(body)
            self._reply(200, b"{}", "application/json")
        elif self.path == "/v1/completions":
            result = self.frontend.complete(
                int(body["prompt_tokens"]),
                int(body["max_tokens"]),
                int(body.get("n", 1)),
                self.connection,
            )
            status = 200 if result is not None else 503
            self._reply(status, json.dumps(result or {}).encode(), "application/json")
        else:
            self._reply(404, b"{}", "application/json")

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing per request."""

    def _reply(self, status: int, body: bytes, kind: str) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description="LLM server on a simulated device")
    parser.add_argument("--config", type=Path, required=True)
    options = ServerOptions.read(parser.parse_args().config)
    if options.server_cpus:
        os.sched_setaffinity(0, options.server_cpus)
    end_with_parent()
    frontend = Frontend(options)
    handler = type("Handler", (_Handler,), {"frontend": frontend})
    server = _Server(("127.0.0.1", options.port), handler)
    print(json.dumps({"port": server.server_address[1]}), flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever(poll_interval=0.5)


if __name__ == "__main__":
    main()
