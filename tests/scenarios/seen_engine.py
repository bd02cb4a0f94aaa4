"""What an engine's metrics page shows of a case."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from probes.engine.names import VOCABULARY
from tests.analysis.builder import S
from tests.scenarios.play import Actor
from tests.scenarios.scene import Row, Scene, part_of

KINDS = {metric.name: metric.kind for metric in VOCABULARY}
#: Bounds of the buckets of every histogram, s or tokens.
BOUNDS = (
    *(0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 25.0, 50.0),
    *(100.0, 500.0, 2_000.0, 10_000.0, 100_000.0, math.inf),
)
#: Quantiles that a histogram's mean is spread over (log-normal, sigma 0.4).
_SPREAD = tuple(math.exp(0.4 * z - 0.08) for z in (-1.28, -0.52, 0.0, 0.52, 1.28))
#: Tokens of a request where a case does not say.
_ANSWER_TOKENS, _PROMPT_TOKENS = 200, 300


def engine_samples(scene: Scene, actors: Sequence[Actor]) -> list[Row]:
    """Scrapes of every engine: what the case describes, else what the steps brought."""
    rows: list[Row] = []
    for index in range(int(scene.service.get("engines", 1))):
        actor = actors[index] if index < len(actors) else actors[0]
        rows.extend(_one_engine(scene, actor, index))
    return rows


def _one_engine(scene: Scene, actor: Actor, index: int) -> list[Row]:
    # In one order, since what is drawn first decides what is drawn next.
    described = dict.fromkeys(
        metric
        for _start, _end, phase in scene.phases
        for metric in part_of(phase.get("engine", {}), index)
    )
    unknown = set(described) - set(KINDS)
    assert not unknown, f"the vocabulary of engine metrics has no {unknown}"
    marks = {key: value for key, value in actor.marks.items() if key not in described}
    _answers(scene, marks, described)
    counters = dict.fromkeys(described, 0.0)
    drawn: dict[str, list[tuple[int, float, float]]] = {
        metric: [] for metric in described if KINDS[metric] == "histogram"
    }
    gauges: list[tuple[int, str, float]] = []
    step = scene.period_ns / S
    for time, share, phase in scene.times():
        part = part_of(phase.get("engine", {}), index)
        is_frozen = "hang" in phase.get("faults", {})
        for metric, spec in _with_gauges(phase, part, described).items():
            kind = KINDS[metric]
            if kind == "gauge":
                # What is configured does not waver.
                is_exact = is_frozen or metric.endswith(("_tokens", "_max"))
                level = float(scene.value(spec, share, is_exact))
                gauges.append((time, metric, _gauge(metric, level)))
            elif kind == "counter":
                counters[metric] += float(scene.value(spec, share)) * step
                gauges.append((time, metric, _whole(metric, counters[metric])))
            else:
                weight = spec["per_s"] * step / len(_SPREAD)
                mean = scene.value(spec["mean"], share)
                drawn[metric].extend((time, mean * factor, weight) for factor in _SPREAD)
    rows = [
        _scrape(time, index, metric, KINDS[metric], value)
        for time, metric, value in gauges
        if scene.has("engine", metric)
    ]
    times = [time for time, _share, _phase in scene.times()]
    for metric, values in {**marks, **drawn}.items():
        if scene.has("engine", metric):
            rows.extend(_accumulated(times, index, metric, values))
    return rows


def _with_gauges(
    phase: Mapping[str, Any], part: Mapping[str, Any], described: Collection[str]
) -> dict[str, Any]:
    """What a phase describes, and the gauges that every engine has; the rest stands still."""
    base: dict[str, Any] = {
        "requests_running": phase.get("running", 4),
        "requests_waiting": phase.get("waiting", 0),
        "kv_usage": 0.3,
        "preemptions": 0,
    }
    still = {metric: 0 for metric in described if KINDS[metric] == "counter"}
    values = {**base, **still, **part}
    if "preemptions" not in described:
        # A counter of this engine as well, at rest.
        values.pop("preemptions")
    return values


def _answers(
    scene: Scene, marks: dict[str, list[tuple[int, float, float]]], described: Collection[str]
) -> None:
    """Requests that finish as their tokens come, where the case does not describe them."""
    generated = marks.get("generation_tokens")
    if not generated:
        return
    total, finished = 0.0, []
    for time, n, _weight in generated:
        total += n
        if total >= _ANSWER_TOKENS:
            total -= _ANSWER_TOKENS
            finished.append(time)
    for metric, value in (
        ("requests_finished", 1.0),
        ("ttft_seconds", 0.09),
        ("queue_seconds", 0.004),
        ("request_prompt_tokens", _PROMPT_TOKENS),
        ("request_generation_tokens", _ANSWER_TOKENS),
    ):
        if metric not in described:
            is_count = KINDS[metric] == "counter"
            shake = (1.0, 1.0) if is_count else (1 - scene.noise, 1 + scene.noise)
            marks[metric] = [(t, value * scene.rng.uniform(*shake), 1.0) for t in finished]
    if "prompt_tokens" not in described:
        marks["prompt_tokens"] = sorted(
            [*marks.get("prompt_tokens", []), *((t, _PROMPT_TOKENS, 1.0) for t in finished)]
        )
    if "preemptions" not in described:
        marks["preemptions"] = [(scene.start, 0.0, 1.0)]


def _gauge(metric: str, value: float) -> float:
    if metric.startswith(("requests_", "adapters_")):
        return float(max(round(value), 0))
    return min(max(value, 0.0), 1.0) if metric == "kv_usage" else value


def _whole(metric: str, value: float) -> float:
    return value if metric.endswith("_seconds") else float(int(value))


def _accumulated(
    times: Sequence[int], index: int, metric: str, values: Sequence[tuple[int, float, float]]
) -> list[Row]:
    """A counter, or sum, count and buckets of a histogram, as they were at each scrape."""
    if not values:
        return []
    when, value, weight = (np.array(column) for column in zip(*sorted(values), strict=True))
    position = np.searchsorted(when, times, side="right")

    def until(amounts: Any) -> Any:
        return np.concatenate([[0.0], np.cumsum(amounts)])[position]

    if KINDS[metric] == "counter":
        return [
            _scrape(time, index, metric, "counter", _whole(metric, float(n)))
            for time, n in zip(times, until(value), strict=True)
        ]
    rows = []
    for kind, amounts in (("sum", value * weight), ("count", weight)):
        rows += [
            _scrape(time, index, metric, kind, float(n) if kind == "sum" else round(float(n)))
            for time, n in zip(times, until(amounts), strict=True)
        ]
    for bound in BOUNDS:
        below = until(weight * (value <= bound))
        rows += [
            _scrape(time, index, metric, "bucket", round(float(n)), bound)
            for time, n in zip(times, below, strict=True)
        ]
    return rows


def _scrape(
    time: int, index: int, metric: str, kind: str, value: float, bound: float | None = None
) -> Row:
    return {
        "time_ns": time,
        "endpoint": "http://127.0.0.1:8000/metrics",
        "engine": "vllm",
        "metric": metric,
        "raw_name": f"vllm:{metric}",
        "labels": f'{{"engine":"{index}"}}',
        "kind": kind,
        "upper_bound": bound,
        "value": float(value),
        "scrape_ns": 5_000_000,
        "is_lagging": metric in ("queue_seconds", "prefill_seconds", "e2e_seconds"),
    }
