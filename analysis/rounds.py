"""A load test at a glance: one row per round, a round lasting from its mark to the next one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from analysis import engine as words
from analysis.finding import Status
from analysis.kept import Kept
from analysis.long_recording import find_stalls
from analysis.long_series import (
    SHORTEST_SLOPE_NS,
    bucket_quantile,
    engine_counters,
    increases,
    launch_lengths,
    memory_slopes,
)
from analysis.rates import describe
from analysis.report.words import duration_text
from analysis.timeline import Session

Ints = npt.NDArray[np.int64]

#: Version of the JSON of rounds; raised when a reader of the old one would misread it.
SCHEMA_VERSION = 1
#: Most rounds of a table; a session with more marks is refused.
MOST_ROUNDS = 5000
#: Most rounds whose findings are looked for by the analyzers, each costs a moment.
MOST_ANALYSED = 400
#: What the analyzers say where nothing is wrong.
QUIET = ("healthy", "no_demand", "unknown")
STALL = "stall"


class RoundsError(ValueError):
    """A session cannot be told by rounds; the text says why and what to do."""


@dataclass
class Round:
    """One round; null is not known.

    Attributes:
        name: Text of its mark.
        start_ns: When the mark came.
        end_ns: When the next one came, or the recording ended.
        tokens_per_s: Tokens generated per second.
        requests_per_s: Requests finished per second.
        ttft_p50_s: Median time to first token, upper bound of its bucket.
        ttft_p95_s: 95th percentile of it.
        n_ttft: Requests behind that.
        inter_token_p50_s: Median time between tokens.
        inter_token_p99_s: 99th percentile of it.
        launch_p50_ns: Median length of a launch.
        launch_p99_ns: 99th percentile of it.
        n_launches: Launches behind that.
        rss_bytes_per_h: Growth of resident memory; null where it was sampled for less than 4
            minutes.
        findings: Causes found in it, stalls and triggers that fired.
        is_analysed: Whether its detail was kept, so that the analyzers could look at it.
    """

    name: str
    start_ns: int
    end_ns: int
    tokens_per_s: float | None = None
    requests_per_s: float | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    n_ttft: int = 0
    inter_token_p50_s: float | None = None
    inter_token_p99_s: float | None = None
    launch_p50_ns: int | None = None
    launch_p99_ns: int | None = None
    n_launches: int = 0
    rss_bytes_per_h: float | None = None
    findings: list[str] = field(default_factory=list)
    is_analysed: bool = False


def rounds_of(session: Session) -> list[Round]:
    """Return the rounds of a session, in order.

    Raises:
        RoundsError: it has no mark, or too many.
    """
    marks = _marks(session)
    if not marks:
        raise RoundsError(
            'the session has no mark; put some in while it records: tracer mark "round 1"'
        )
    if len(marks) > MOST_ROUNDS:
        raise RoundsError(f"the session has {len(marks)} marks; a table holds {MOST_ROUNDS}")
    edges = np.array([*(time_ns for time_ns, _ in marks), session.end_ns], dtype=np.int64)
    edges = np.maximum.accumulate(edges)
    rounds = [
        Round(name, int(edges[index]), int(edges[index + 1]))
        for index, (_, name) in enumerate(marks)
    ]
    _add_engine(session, rounds, edges)
    _add_launches(session, rounds, edges)
    for item, slope in zip(rounds, memory_slopes(session, edges).tolist(), strict=True):
        item.rss_bytes_per_h = None if math.isnan(slope) else slope
    _add_findings(session, rounds)
    return rounds


def _marks(session: Session) -> list[tuple[int, str]]:
    if not session.has("event"):
        return []
    rows = session.table("event", columns=["time_ns", "kind", "name"])
    rows = rows.filter(pc.equal(rows["kind"], "mark"))
    times, names = rows["time_ns"].to_pylist(), rows["name"].to_pylist()
    return [(time_ns, name) for time_ns, name in zip(times, names, strict=True)]


def _add_engine(session: Session, rounds: list[Round], edges: Ints) -> None:
    counters = engine_counters(session, (words.GENERATION_TOKENS, words.FINISHED), "counter")
    seconds = np.maximum(np.diff(edges) / 1e9, 1e-9)
    tokens = increases(counters, words.GENERATION_TOKENS, edges)
    finished = increases(counters, words.FINISHED, edges)
    buckets = engine_counters(session, (words.TTFT, words.INTER_TOKEN), "bucket")
    ttft_50 = bucket_quantile(buckets, words.TTFT, 0.5, edges)
    ttft_95 = bucket_quantile(buckets, words.TTFT, 0.95, edges)
    token_50 = bucket_quantile(buckets, words.INTER_TOKEN, 0.5, edges)
    token_99 = bucket_quantile(buckets, words.INTER_TOKEN, 0.99, edges)
    for index, item in enumerate(rounds):
        if tokens is not None:
            item.tokens_per_s = float(tokens[index] / seconds[index])
        if finished is not None:
            item.requests_per_s = float(finished[index] / seconds[index])
        first = ttft_50[index]
        if first is not None:
            item.ttft_p50_s, item.n_ttft = first
        item.ttft_p95_s = _value(ttft_95[index])
        item.inter_token_p50_s = _value(token_50[index])
        item.inter_token_p99_s = _value(token_99[index])


def _value(found: tuple[float, int] | None) -> float | None:
    return None if found is None else found[0]


def _add_launches(session: Session, rounds: list[Round], edges: Ints) -> None:
    lengths = launch_lengths(session, edges)
    if lengths is None:
        return
    for index, item in enumerate(rounds):
        median, high = lengths.quantile(index, 0.5), lengths.quantile(index, 0.99)
        if median is not None and high is not None:
            item.launch_p50_ns, item.n_launches = median
            item.launch_p99_ns = high[0]


def _add_findings(session: Session, rounds: list[Round]) -> None:
    from analysis.attribution import attribute

    stalls = find_stalls(session)
    detailed = Kept.read(session.path).detailed(session.start_ns, session.end_ns)
    triggers = session.table("event", columns=["time_ns", "kind", "name"])
    triggers = triggers.filter(pc.equal(triggers["kind"], "trigger"))
    fired = list(zip(triggers["time_ns"].to_pylist(), triggers["name"].to_pylist(), strict=True))
    for index, item in enumerate(rounds):
        found: set[str] = set()
        if any(stall.start_ns < item.end_ns and stall.end_ns > item.start_ns for stall in stalls):
            found.add(STALL)
        found |= {name for time_ns, name in fired if item.start_ns <= time_ns < item.end_ns}
        is_whole = any(a <= item.start_ns and item.end_ns <= b for a, b in detailed)
        if is_whole and item.end_ns > item.start_ns and index >= len(rounds) - MOST_ANALYSED:
            answer = attribute(session.between(item.start_ns, item.end_ns))
            item.is_analysed = True
            found |= {
                one.cause
                for one in answer.findings
                if one.status is Status.FOUND and one.cause not in QUIET
            }
        item.findings = sorted(found)


def rates(rounds: list[Round]) -> dict[str, str]:
    """Return how often each finding came, in words with its bound; of hangs and stalls always."""
    names = {name for item in rounds for name in item.findings} | {"hang.kernel", STALL}
    result = {}
    for name in sorted(names):
        n_seen = sum(name in item.findings for item in rounds)
        # Without detail, only what is told of the whole could have been seen.
        is_told = name == STALL
        n_trials = sum(is_told or item.is_analysed or bool(item.findings) for item in rounds)
        if n_trials:
            result[name] = describe(n_seen, n_trials)
    return result


def to_json(rounds: list[Round]) -> dict[str, Any]:
    """Return the rounds as JSON-able data."""
    return {
        "schema_version": SCHEMA_VERSION,
        "rounds": [vars(item) for item in rounds],
        "rates": rates(rounds),
    }


_HEAD = (
    ("round", 23),
    ("s", 5),
    ("tok/s", 7),
    ("req/s", 6),
    ("TTFT p50", 8),
    ("p95", 8),
    ("ITL p50", 8),
    ("p99", 8),
    ("launch p99", 10),
    ("RSS/h", 9),
)
_LEGEND = (
    "Above: in how many of the rounds that could show it each finding came, and the bounds of\n"
    "its true rate with that confidence; few rounds allow only wide ones.\n"
    "RSS/h: growth of memory, - where it was sampled for less than "
    f"{SHORTEST_SLOPE_NS / 60e9:g} min."
)


def render(rounds: list[Round]) -> str:
    """Return the rounds as a table of text, and the rates below."""
    lines = [f"{_row([name for name, _ in _HEAD])}  findings"]
    for item in rounds:
        cells = [
            item.name[:22],
            f"{(item.end_ns - item.start_ns) / 1e9:.0f}",
            _number(item.tokens_per_s),
            _number(item.requests_per_s),
            _time(item.ttft_p50_s),
            _time(item.ttft_p95_s),
            _time(item.inter_token_p50_s),
            _time(item.inter_token_p99_s),
            _time(None if item.launch_p99_ns is None else item.launch_p99_ns / 1e9),
            "-" if item.rss_bytes_per_h is None else f"{item.rss_bytes_per_h / 1e6:+.0f} MB",
        ]
        lines.append(f"{_row(cells)}  {', '.join(item.findings) or '-'}")
    lines.append("")
    lines += [f"{name}: {text}" for name, text in rates(rounds).items()]
    lines += ["", _LEGEND]
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return " ".join(
        f"{cell:<{width}}" if index == 0 else f"{cell:>{width}}"
        for index, (cell, (_, width)) in enumerate(zip(cells, _HEAD, strict=True))
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration_text(1e9 * seconds)
