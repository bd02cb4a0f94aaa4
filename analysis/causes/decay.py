"""Prompts are computed more slowly with uptime, at like load."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis import engine as words
from analysis import trend
from analysis.causes.declaration import Cause, Needs
from analysis.causes.engine_load import load_windows
from analysis.causes.eviction import DECAY, suspect_eviction
from analysis.causes.flat_clock import clock_changes, why_not_flat
from analysis.engine import EngineSeries
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Fall of the prompt speed from the first to the last third that is a decay.
SLOWER = 0.8
#: Requests that a block needs for its speed.
N_REQUESTS = 5
#: Load, prompt length and clock are alike within this from first to last third.
ALIKE = (0.75, 1.33)
#: Tokens that take so many times as long show that the whole device is slower.
SLOWER_TOKENS = 1.25


def find_decay(facts: Facts) -> Finding:
    """Return whether the speed of prefill fell over hours while load and clocks stayed."""
    engine = facts.engine
    edges = trend.blocks(facts.start_ns, facts.end_ns)
    speed = None if engine is None or edges is None else _speed(engine, edges)
    if engine is not None and edges is not None and speed is None:
        suspected = suspect_eviction(facts, engine, edges)
        if suspected is not None:
            return suspected
    if engine is None or edges is None or speed is None:
        return Finding(
            DECAY,
            Status.NOT_APPLICABLE,
            undecided_because="prompt tokens and prefill times of an engine are not in the "
            "recording for hours; record with --engine URL --duration 6h",
        )
    finding = Finding(DECAY, Status.NOT_FOUND, confidence=0.85)
    change, both = trend.ratio(speed), trend.ends(speed)
    n = int(np.isfinite(speed).sum())
    if change is None or both is None:
        finding.excluded.append(Exclusion(DECAY, f"prompts came in {n} blocks of time only"))
        return finding
    finding.evidence = [
        Evidence("prefill_speed_first", round(both[0], 1), "tokens/s", n, "engine_sample"),
        Evidence("prefill_speed_last", round(both[1], 1), "tokens/s", n, "engine_sample"),
        Evidence("probability_by_chance", float(f"{trend.chance_of_trend(speed):.2g}"), "", n),
    ]
    if change > SLOWER or not trend.is_steady(speed):
        finding.excluded.append(
            Exclusion(DECAY, f"prompts are computed at {change:.2f} times the speed of the begin")
        )
        return finding
    finding.start_ns, finding.end_ns = facts.start_ns, facts.end_ns
    spent = engine.series(words.PREFILL_SECONDS, "sum")
    assert spent is not None
    seconds = float(spent.increase().sum()) / max((facts.end_ns - facts.start_ns) / 1e9, 1.0)
    finding.lost_share = min(seconds, 1.0) * (1 - change)
    finding.lost_ns = int(finding.lost_share * facts.demand_ns)
    return _decide(facts, engine, edges, finding, change)


def _speed(engine: EngineSeries, edges: Ints) -> Floats | None:
    """Prompt tokens computed per second of prefill in each block."""
    seconds = engine.series(words.PREFILL_SECONDS, "sum")
    count = engine.series(words.PREFILL_SECONDS, "count")
    tokens = (
        engine.series(words.PREFILL_TOKENS, "sum")
        or engine.series(words.REQUEST_PROMPT, "sum")
        or engine.counter(words.PROMPT_TOKENS)
    )
    if seconds is None or count is None or tokens is None:
        return None
    spent, n, made = (item.between(_held(engine, edges)) for item in (seconds, count, tokens))
    with np.errstate(divide="ignore", invalid="ignore"):
        speed: Floats = np.where((n >= N_REQUESTS) & (spent > 0), made / spent, np.nan)
    return speed


def _held(engine: EngineSeries, edges: Ints) -> Ints:
    """Edges within the scrapes."""
    result: Ints = np.clip(edges, int(engine.time[0]), int(engine.time[-1]))
    return result


def _decide(
    facts: Facts, engine: EngineSeries, edges: Ints, finding: Finding, change: float
) -> Finding:
    reasons = []
    for name, values in _load(engine, edges).items():
        ratio = trend.ratio(values)
        if ratio is None:
            continue
        finding.evidence.append(
            Evidence(f"{name}_change", round(ratio, 2), "ratio", len(values), "engine_sample")
        )
        if not ALIKE[0] <= ratio <= ALIKE[1]:
            reasons.append(f"{name.replace('_', ' ')} changed {ratio:.2f} times as well")
    preempted = engine.counter(words.PREEMPTIONS)
    n_preempted = 0.0 if preempted is None else float(preempted.increase().sum())
    if n_preempted >= 3:
        reasons.append(f"{n_preempted:.0f} requests were preempted and computed again")
    slower = _token_rise(engine, edges)
    if slower is None:
        reasons.append(
            "how long tokens took, which another process on the device changes too, is not exposed"
        )
    else:
        finding.evidence.append(Evidence("inter_token_rise", round(slower, 2), "ratio"))
        if slower >= SLOWER_TOKENS:
            reasons.append(f"tokens took {slower:.2f} times as long too, as on a slower device")
    changes = clock_changes(facts, edges)
    finding.evidence += [
        Evidence(f"clock_change of device {device}", round(ratio, 2), "ratio")
        for device, ratio in changes
    ]
    reasons += [why] if (why := why_not_flat(changes)) else []
    text = f"prompts are computed at {change:.2f} times the speed of the begin, falling steadily"
    if reasons:
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.undecided_because = f"{text}, but {'; '.join(reasons)}"
        finding.settled_by = "a recording at like load, with GPU samples"
        return finding
    finding.status, finding.confidence = Status.FOUND, 0.85 * facts.trust("engine")
    finding.summary = (
        f"{text[0].upper()}{text[1:]}, at like load, without preemptions and at a flat clock."
    )
    finding.excluded += [
        Exclusion("kv.preemption", f"{n_preempted:.0f} requests were preempted"),
    ]
    return finding


def _token_rise(engine: EngineSeries, edges: Ints) -> float | None:
    """How many times as long a token took in the last third as in the first, None where unknown."""
    load = load_windows(engine, trend.N_KNOWN)
    if load is None or not np.isfinite(load.generated).any():
        return None
    at = np.searchsorted(edges, load.edges[:-1], side="right") - 1
    gaps = [load.token_gap(at == index) for index in range(len(edges) - 1)]
    return trend.ratio(np.array([np.nan if gap is None else gap[0] for gap in gaps]))


def _load(engine: EngineSeries, edges: Ints) -> dict[str, Floats]:
    """What the speed of prefill depends on, by block: batch, arrivals, length of prompts."""
    result: dict[str, Floats] = {}
    running = engine.gauge(words.RUNNING)
    if running is not None:
        result["requests_running"] = trend.level(running.time, running.value, edges)
    held = _held(engine, edges)
    prompts = engine.counter(words.PROMPT_TOKENS)
    if prompts is not None:
        seconds = np.maximum(np.diff(held) / 1e9, 1e-9)
        result["prompt_rate"] = prompts.between(held) / seconds
    length = engine.mean(words.REQUEST_PROMPT, held)
    if length is not None:
        result["prompt_length"] = length
    return result


CAUSES = (
    Cause(
        DECAY,
        "prompts are computed more slowly with uptime",
        "Prefill speed falls over hours and a restart cures it.",
        "Computed prompt tokens per second of prefill fall steadily with uptime at like load, with "
        "flat preemptions and clocks and tokens as fast as before. Requests that take longer since "
        "the cache evicts, at like load, make it no more than suspected.",
        "A full KV cache, garbage collection, throttling, longer prompts, another process.",
        "Record for hours with --engine URL, and the clocks of the GPU (NVML).",
        "Test the engine's cache eviction in place, without a restart.",
        Needs(("engine_sample",), optional=("gpu_sample",)),
        find_decay,
    ),
)
