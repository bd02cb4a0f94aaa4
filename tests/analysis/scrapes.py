"""Scrapes of an engine written on paper: gauges are set, counters and histograms grow a second."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis import attribute
from analysis.attribution import Attribution
from analysis.finding import Finding
from probes.engine.names import VOCABULARY
from tests.analysis.builder import S, SessionBuilder

KINDS = {metric.name: metric.kind for metric in VOCABULARY}
BOUNDS = (0.01, 0.1, 0.5, 1.0, 1.5, 2.0, 4.0, 8.0, math.inf)


class Scrapes:
    """One engine. A histogram is given as (mean, samples a second), a counter as its rate; a key
    ``metric reason`` is the series of that reason.
    """

    def __init__(self, endpoint: str = "http://127.0.0.1:8000/metrics", period: int = 1) -> None:
        self.endpoint, self.period = endpoint, period
        self.now = self.start = 1_000 * S
        self.rows: list[dict[str, Any]] = []
        self._values: dict[tuple[str, str, str | None, float | None], float] = {}

    def play(self, seconds: int, **metrics: Any) -> Scrapes:
        """Let time pass; the first call also makes the first scrape."""
        if not self.rows:
            self._apply(metrics, 0)
            self._scrape()
        for _ in range(seconds // self.period):
            self.now += self.period * S
            self._apply(metrics, self.period)
            self._scrape()
        return self

    def _apply(self, metrics: Mapping[str, Any], seconds: int) -> None:
        for key, value in metrics.items():
            name, _, reason = key.partition("__")
            labels = f'{{"reason": "{reason}"}}' if reason else None
            kind = KINDS[name]
            if kind == "gauge":
                self._values[name, kind, labels, None] = float(value)
            elif kind == "counter":
                self._add(name, kind, labels, None, value * seconds)
            else:
                mean, rate = value
                self._add(name, "sum", labels, None, mean * rate * seconds)
                self._add(name, "count", labels, None, rate * seconds)
                for bound in BOUNDS:
                    self._add(name, "bucket", labels, bound, rate * seconds * (mean <= bound))

    def _add(self, *key: Any) -> None:
        *where, value = key
        index = (where[0], where[1], where[2], where[3])
        self._values[index] = self._values.get(index, 0.0) + float(value)

    def _scrape(self) -> None:
        self.rows += [
            {
                "time_ns": self.now,
                "endpoint": self.endpoint,
                "engine": "vllm",
                "metric": metric,
                "raw_name": metric,
                "labels": labels,
                "kind": kind,
                "upper_bound": bound,
                "value": value,
            }
            for (metric, kind, labels, bound), value in self._values.items()
        ]

    def builder(self, path: Path, *others: Scrapes, **manifest: Any) -> SessionBuilder:
        """Return a session of this engine and others, not yet written."""
        manifest = {"origin": "scrapes", "gpus": [], **manifest}
        builder = SessionBuilder(path, start_ns=self.start, end_ns=self.now, **manifest)
        for engine in (self, *others):
            builder.add("engine_sample", engine.rows)
        return builder

    def attribution(self, path: Path, *others: Scrapes) -> Attribution:
        """Return what an analysis says of it."""
        return attribute(self.builder(path / "session", *others).write())


def finding(attribution: Attribution, cause: str) -> Finding:
    """Return the answer about one cause."""
    answers: Sequence[Finding] = (*attribution.findings, *attribution.checked)
    return next(item for item in answers if item.cause == cause)


def gpu_rows(start: int, seconds: int, **columns: Any) -> list[dict[str, Any]]:
    """Samples of device 0 once a second."""
    return [
        {
            "time_ns": start + index * S,
            "device": 0,
            "source": "nvml",
            "sample_ns": start + index * S,
            "period_ns": S,
            **columns,
        }
        for index in range(1, seconds + 1)
    ]
