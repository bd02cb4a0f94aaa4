"""The answer about a recording over days of which only parts hold full detail.

Each stretch with full detail is analysed like a recording of its own; what takes hours (leaks,
decay, drifts) is looked for in the samples of the whole, and stalls in its exact counts.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis import engine as words
from analysis import trend
from analysis.causes.declaration import Cause
from analysis.finding import Finding, Status
from analysis.kept import Kept
from analysis.long_series import (
    SECOND_NS,
    engine_counters,
    increases,
    launch_lengths,
    submissions,
)
from analysis.report.words import duration_text
from analysis.timeline import Session

if TYPE_CHECKING:
    from analysis.attribution import Attribution

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Tables of which only parts are kept.
DETAIL = frozenset({"cuda_call", "gpu_activity", "offcpu", "open_call"})
#: Causes that take hours and rest on samples: looked for in the whole.
OVER_HOURS = frozenset({"kv.pool_growth", "memory.host_leak", "prefill.decay"})
#: Most stretches with full detail that are analysed, the newest.
MOST_STRETCHES = 8
#: A stretch shorter than this tells nothing.
SHORTEST_NS = 3 * SECOND_NS
#: Without any submission for so long, while requests ran, is a stall.
STALL_NS = 10 * SECOND_NS
#: A level that rose by less is not called a drift.
LEAST_DRIFT = 0.08
#: A drift has begun where this part of it is done.
BEGUN = 0.1


@dataclass(frozen=True)
class Stall:
    """A stretch without any submission although requests ran, ns."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Drift:
    """A level that rose or fell steadily over the whole.

    Attributes:
        name: What drifted.
        unit: Its unit.
        before: Median of the first third of the recording.
        after: Median of the last third.
        start_ns: When it had begun, ns.
        load_ratio: Load of the last third against the first; null where not known.
    """

    name: str
    unit: str
    before: float
    after: float
    start_ns: int
    load_ratio: float | None


def attribute_long(
    session: Session, kept: Kept, window_ns: int, causes: Iterable[Cause]
) -> Attribution:
    """Return the answer about a recording of which only parts hold full detail.

    The budget and the latencies are those of the last stretch with full detail.
    """
    from analysis.attribution import attribute

    causes = list(causes)
    start_ns, end_ns = session.start_ns, session.end_ns
    spans = [
        span for span in kept.detailed(start_ns, end_ns) if span[1] - span[0] >= SHORTEST_NS
    ] or [(start_ns, end_ns)]
    stretches = [
        attribute(session.between(*span), window_ns, causes) for span in spans[-MOST_STRETCHES:]
    ]
    last = stretches[-1]
    slow = attribute(
        session.without(DETAIL),
        max(window_ns, (end_ns - start_ns) // 1000),
        [cause for cause in causes if cause.slug in OVER_HOURS],
    )
    stalls, drifts = find_stalls(session), find_drifts(session)
    notes = [_kept_sentence(session, kept, spans), *_stall_notes(session, stalls)]
    notes += [_drift_sentence(session, drift) for drift in drifts]
    early = [_captured(session, item) for item in stretches[:-1]]
    notes += [text for text in early if text]
    found_slow = [item for item in slow.findings if item.status is Status.FOUND]
    last.findings.extend(item for item in slow.findings if item.cause in OVER_HOURS)
    last.checked[:] = [item for item in last.checked if item.cause not in OVER_HOURS]
    last.checked.extend(slow.checked)
    verdict = last.verdict
    if verdict.status is not Status.FOUND or verdict.cause in ("healthy", "no_demand"):
        verdict = _older(stretches[:-1], slow, found_slow) or verdict
    return type(last)(
        verdict=verdict,
        findings=last.findings,
        checked=last.checked,
        budgets=last.budgets,
        latency=last.latency,
        notes=[*notes, *last.notes],
        start_ns=start_ns,
        end_ns=end_ns,
        is_simulated=last.is_simulated,
        name=last.name,
    )


def _older(stretches: list[Attribution], slow: Attribution, found_slow: list[Finding]) -> Any:
    """The verdict of an earlier capture, or of the whole, where the last stretch has none."""
    for item in reversed(stretches):
        is_found = item.verdict.status is Status.FOUND
        if is_found and item.verdict.cause not in ("healthy", "no_demand"):
            return item.verdict
    return slow.verdict if found_slow else None


def find_stalls(session: Session) -> list[Stall]:
    """Return the stretches of at least ten seconds without any submission in which requests ran,
    as the engine's metrics tell; none without an engine.
    """
    counted = submissions(session)
    if counted is None or not session.has("engine_sample"):
        return []
    first_ns, total = counted
    is_busy = np.flatnonzero(total)
    if len(is_busy) < 2:
        return []
    begin = first_ns + (is_busy[:-1] + 1) * SECOND_NS
    end = first_ns + is_busy[1:] * SECOND_NS
    tail = (first_ns + (is_busy[-1] + 1) * SECOND_NS, session.end_ns)
    gaps = [
        (int(a), int(b))
        for a, b in [*zip(begin.tolist(), end.tolist(), strict=True), tail]
        if b - a >= STALL_NS
    ]
    time, running = _running(session)
    found = []
    for start_ns, end_ns in gaps:
        low, high = np.searchsorted(time, (start_ns, end_ns))
        if high > low and (running[low:high] > 0).all():
            found.append(Stall(start_ns, end_ns))
    return found


def _running(session: Session) -> tuple[Ints, Floats]:
    """Requests running at each scrape, added up over engines."""
    rows = session.table("engine_sample", columns=["time_ns", "metric", "kind", "value"])
    metric = rows["metric"].to_numpy(zero_copy_only=False)
    chosen = rows.filter(metric == words.RUNNING)
    time, value = chosen["time_ns"].to_numpy(), chosen["value"].to_numpy(zero_copy_only=False)
    unique, at = np.unique(time, return_inverse=True)
    weights = np.nan_to_num(value.astype(float))
    running: Floats = np.bincount(at.reshape(-1), weights=weights).astype(np.float64)
    return unique, running


def find_drifts(session: Session) -> list[Drift]:
    """Return the levels that rose or fell steadily over the whole; none in under half an hour."""
    edges = trend.blocks(session.start_ns, session.end_ns)
    if edges is None:
        return []
    series: list[tuple[str, str, Floats]] = []
    lengths = launch_lengths(session, edges)
    if lengths is not None:
        values = [lengths.quantile(index, 0.5) for index in range(len(edges) - 1)]
        known = [np.nan if item is None else float(item[0]) for item in values]
        series.append(("median launch", "ns", np.array(known)))
    sums = engine_counters(session, (words.INTER_TOKEN,), "sum")
    counts = engine_counters(session, (words.INTER_TOKEN,), "count")
    total = increases(sums, words.INTER_TOKEN, edges)
    n = increases(counts, words.INTER_TOKEN, edges)
    if total is not None and n is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            series.append(("time between tokens", "ns", np.where(n > 0, 1e9 * total / n, np.nan)))
    tokens = increases(
        engine_counters(session, (words.GENERATION_TOKENS,), "counter"),
        words.GENERATION_TOKENS,
        edges,
    )
    load = trend.ratio(tokens) if tokens is not None else None
    return [
        drift
        for name, unit, values in series
        if (drift := _drift(name, unit, values, edges, load)) is not None
    ]


def _drift(name: str, unit: str, values: Floats, edges: Ints, load: float | None) -> Drift | None:
    both = trend.ends(values)
    if both is None or both[0] <= 0 or not trend.is_steady(values):
        return None
    before, after = both
    if abs(after / before - 1) < LEAST_DRIFT:
        return None
    done = (values - before) / (after - before)
    late = np.flatnonzero(np.nan_to_num(done, nan=0.0) < BEGUN)
    at = int(late[-1]) + 1 if len(late) else 0
    return Drift(name, unit, before, after, int(edges[min(at, len(edges) - 2)]), load)


def when(session: Session, time_ns: int) -> str:
    """Return a time of a session as text: the wall clock's (UTC), or seconds from its begin."""
    start = session.manifest.start_realtime_ns
    begin = session.manifest.start_ns
    if start is None or begin is None:
        return f"{(time_ns - session.start_ns) / 1e9:.0f} s after the begin"
    moment = datetime.datetime.fromtimestamp((start + time_ns - begin) / 1e9, datetime.timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def _kept_sentence(session: Session, kept: Kept, spans: list[tuple[int, int]]) -> str:
    detail = sum(end - start for start, end in spans)
    return (
        f"The recording lasts {_length(session.end_ns - session.start_ns)}; full detail is kept of "
        f"{_length(detail)} of it, in {len(spans)} stretch{'es' if len(spans) > 1 else ''} "
        f"(the last from {when(session, spans[-1][0])}). Verdict and budget are about that one; "
        "counts and histograms are exact for the whole."
    )


def _stall_notes(session: Session, stalls: list[Stall]) -> list[str]:
    notes = [
        f"Stall: nothing was handed to the device for {_length(item.end_ns - item.start_ns)} from "
        f"{when(session, item.start_ns)}, while requests were running."
        for item in stalls[:20]
    ]
    if len(stalls) > 20:
        notes.append(f"... and {len(stalls) - 20} more stalls.")
    return notes


def _drift_sentence(session: Session, drift: Drift) -> str:
    change = 100 * (drift.after / drift.before - 1)
    text = (
        f"Drift: the {drift.name} went from {duration_text(drift.before)} to "
        f"{duration_text(drift.after)} ({change:+.0f} %), steadily since "
        f"{when(session, drift.start_ns)}"
    )
    if drift.load_ratio is not None:
        text += f"; tokens per second changed by {100 * (drift.load_ratio - 1):+.0f} % meanwhile"
    return text + "."


def _captured(session: Session, item: Attribution) -> str:
    if item.verdict.cause in ("healthy", "no_demand"):
        return ""
    return (
        f"Capture of {when(session, item.start_ns)}: {item.verdict.cause} "
        f"({100 * item.verdict.confidence:.0f} % sure, {item.verdict.status.value}). "
        f"{item.verdict.text}"
    )


def _length(length_ns: int) -> str:
    seconds = length_ns / 1e9
    for limit, unit in ((172_800, "d"), (7200, "h"), (180, "min")):
        if seconds >= limit:
            divisor = {"d": 86_400, "h": 3600, "min": 60}[unit]
            return f"{seconds / divisor:.1f} {unit}"
    return f"{seconds:.0f} s"
