"""An engine that serves requests step by step, on a device whose speed may change unseen.

Only what its metrics page tells is recorded, once a second. What it does is not described but
follows: the queue from arrivals and speed, the time between tokens from the steps.
"""

from __future__ import annotations

import bisect
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis import attribute
from analysis.attribution import Attribution
from tests.analysis.builder import GAP_BOUNDS, S, SessionBuilder

#: Metrics of the page that are gauges.
GAUGES = ("requests_running", "requests_waiting", "requests_max", "kv_usage")


@dataclass
class Request:
    """One request: tokens of its prompt still to compute, of its answer still to make."""

    prompt: int
    left: int
    answer: int
    last_s: float = 0.0


@dataclass
class Engine:
    """The engine, its device and its load.

    Attributes:
        seed: Of all that is drawn.
        step_s: Time of a step that decodes one request.
        request_s: What each further request adds to it.
        prompt_s: What each token of a prompt adds to it.
        chunk: Prompt tokens computed in one step at most.
        limit: Requests in the batch at most.
        pool: Tokens that the cache holds.
        slower: How many times slower the device is at a time in s.
        arrivals: Requests per second at a time in s.
        prompt_tokens: Mean length of a prompt that comes at a time in s.
        answer_tokens: Mean length of an answer.
        hidden: Metrics that the page does not have.
    """

    seed: int
    step_s: float = 0.012
    request_s: float = 0.0002
    prompt_s: float = 0.00005
    chunk: int = 2048
    limit: int = 64
    pool: int = 2_000_000
    slower: Callable[[float], float] = lambda _now: 1.0
    arrivals: Callable[[float], float] = lambda _now: 3.0
    prompt_tokens: Callable[[float], float] = lambda _now: 300.0
    answer_tokens: float = 200.0
    hidden: tuple[str, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.queue: deque[Request] = deque()
        self.batch: list[Request] = []
        self.totals = dict.fromkeys(
            ("prompt_tokens", "generation_tokens", "requests_received", "requests_finished"), 0.0
        ) | {"preemptions": 0.0}
        self.gaps = [0] * len(GAP_BOUNDS)
        self.gap_s, self.n_gaps = 0.0, 0
        self.steps: list[tuple[float, float, float]] = []

    def play(self, seconds: int) -> Engine:
        """Serve for so long."""
        now, due, scrape = 0.0, 0.0, 0
        while True:
            while scrape <= now:
                self._scrape(scrape)
                scrape += 1
                if scrape > seconds:
                    return self
            while due <= now:
                prompt = max(int(self.rng.gammavariate(2, self.prompt_tokens(due) / 2)), 1)
                answer = max(int(self.rng.gammavariate(3, self.answer_tokens / 3)), 1)
                self.queue.append(Request(prompt, prompt, answer))
                self.totals["requests_received"] += 1
                due += self.rng.expovariate(self.arrivals(due))
            self._admit()
            now = self._step(now) if self.batch else min(due, now + 0.05)

    def prompts_share(self, begin_s: float, end_s: float) -> float:
        """Return the share of the device's time between two times that prompts took, in [0, 1]."""
        inside = [step for step in self.steps if begin_s <= step[0] < end_s]
        return sum(step[2] for step in inside) / max(sum(step[1] for step in inside), 1e-9)

    def _admit(self) -> None:
        used = self._used()
        while self.queue and len(self.batch) < self.limit:
            if used + self.queue[0].prompt > self.pool:
                return
            used += self.queue[0].prompt
            self.batch.append(self.queue.popleft())

    def _used(self) -> int:
        return sum(request.prompt - request.left for request in self.batch)

    def _step(self, now: float) -> float:
        """One step: a chunk of prompts, and a token of every request whose prompt is done."""
        budget, done = self.chunk, []
        decodes = [request for request in self.batch if request.left == 0]
        for request in self.batch:
            part = min(request.left, budget)
            budget -= part
            request.left -= part
            if part and request.left == 0:
                done.append(request)
        factor = self.slower(now) * self.rng.uniform(0.97, 1.03)
        prompts_s = factor * self.prompt_s * (self.chunk - budget)
        length = factor * (self.step_s + self.request_s * len(decodes)) + prompts_s
        self.steps.append((now, length, prompts_s))
        now += length
        for request in (*decodes, *done):
            self.totals["generation_tokens"] += 1
            request.answer -= 1
            request.prompt += 1
            if request.last_s:
                gap = now - request.last_s
                self.gap_s += gap
                self.n_gaps += 1
                self.gaps[bisect.bisect_left(GAP_BOUNDS, gap)] += 1
            else:
                self.totals["prompt_tokens"] += request.prompt - 1
            request.last_s = now
        ended = [request for request in self.batch if request.left == 0 and request.answer <= 0]
        self.totals["requests_finished"] += len(ended)
        self.batch = [request for request in self.batch if request.left or request.answer > 0]
        return now

    def _scrape(self, second: int) -> None:
        gauges = (len(self.batch), len(self.queue), self.limit, self._used() / self.pool)
        values: list[tuple[str, str, float, float | None]] = [
            *((name, "gauge", value, None) for name, value in zip(GAUGES, gauges, strict=True)),
            *((name, "counter", value, None) for name, value in self.totals.items()),
            ("inter_token_seconds", "sum", self.gap_s, None),
            ("inter_token_seconds", "count", self.n_gaps, None),
        ]
        total = 0
        for bound, n in zip(GAP_BOUNDS, self.gaps, strict=True):
            total += n
            values.append(("inter_token_seconds", "bucket", total, bound))
        self.rows += [
            {
                "time_ns": (1_000 + second) * S,
                "endpoint": "http://127.0.0.1:8000/metrics",
                "engine": "vllm",
                "metric": metric,
                "raw_name": metric,
                "kind": kind,
                "upper_bound": bound,
                "value": float(value),
            }
            for metric, kind, value, bound in values
            if metric not in self.hidden
        ]

    def attribution(self, path: Path) -> Attribution:
        """What an analysis says of the scrapes."""
        limits = {"start_ns": self.rows[0]["time_ns"], "end_ns": self.rows[-1]["time_ns"]}
        builder = SessionBuilder(path / "session", origin="scrapes", gpus=[], **limits)
        return attribute(builder.add("engine_sample", self.rows).write())
