"""Signs of lost time that no found cause explains: they withhold "healthy"."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import engine as words
from analysis import intervals, quantiles
from analysis.causes.engine_load import load_windows
from analysis.engine import gauge_at
from analysis.facts import Facts
from analysis.finding import Evidence
from analysis.first_tokens import late_first_tokens
from analysis.gpu import Samples
from analysis.threads import Launcher
from analysis.waits import waits_of

Ints = npt.NDArray[np.int64]

#: More requests wait than seldom where they do in more than this share of the scrapes.
SELDOM = 0.05
#: Share of the demand in which the device may be idle in a healthy service: a step that does its
#: host work between two syncs leaves the device alone for a fifth of it and still meets demand.
IDLE_SHARE = 0.25
#: Longest time without a token in a healthy engine with running requests, ns.
STALL_NS = 3_000_000_000
#: Where neither calls nor device times were recorded, less is needed to withhold "healthy": the
#: device idle for this share of the demand, or seconds whose time between tokens differs so much.
BLIND_IDLE_SHARE = 0.2
BLIND_TOKEN_SPREAD = 1.7
BLIND_FIRST_SPREAD = 5.0
#: The load counts as the largest from this share of the most running requests on.
MOST_LOAD = 0.75
#: How much the time between tokens may rise for ten seconds over its median.
TOKEN_RISE = 2.5
_BLOCK_NS = 10_000_000_000


@dataclass(frozen=True)
class Sign:
    """One sign that time is lost, with its number and how much of the demand it concerns."""

    text: str
    evidence: Evidence
    share: float


def find_signs(facts: Facts) -> list[Sign]:
    """Signs of lost time that no found cause explains."""
    signs: list[Sign] = []
    demand = facts.demand
    for device in facts.devices:
        idle = intervals.intersect(facts.idle(device), demand) if facts.processes else demand[:0]
        if device in facts.activity:
            idle = intervals.intersect(facts.idle(device), demand)
        launcher = facts.main_launcher(device)
        if launcher is not None and not facts.is_demand_told:
            # Asleep without a request known: it may simply have waited for work.
            idle = intervals.subtract(idle, launcher.states["asleep"])
        elif launcher is not None:
            # Asleep until another process sends something: requests come one by one.
            idle = intervals.subtract(idle, _between_requests(facts, launcher))
        share = intervals.total(idle) / facts.demand_ns
        if share >= IDLE_SHARE:
            name = "the device" if device is None else f"device {device}"
            signs.append(
                Sign(
                    f"{name} was idle for {100 * share:.0f} % of the time with demand",
                    Evidence("idle_with_demand", round(100 * share, 1), "%", None, "cuda_call"),
                    share,
                )
            )
        samples = facts.utilisation(device)
        mean = _used_with_requests(facts, samples) if samples is not None else None
        told = facts.is_demand_told and facts.demand_ns > 3 * 10**9
        most = BLIND_IDLE_SHARE if is_blind(facts) else 2 * IDLE_SHARE
        if mean is not None and told and mean[1] >= 3 and mean[0] < 100 * (1 - most):
            signs.append(
                Sign(
                    f"the device was {mean[0]:.0f} % utilised while requests were running",
                    Evidence(
                        "utilisation_with_demand", round(mean[0], 1), "%", mean[1], "gpu_sample"
                    ),
                    1 - mean[0] / 100,
                )
            )
    signs.extend(_engine_signs(facts))
    signs.extend(_open_signs(facts))
    return signs


def _between_requests(facts: Facts, launcher: Launcher) -> Ints:
    """When the launching thread slept until another process woke it, while nobody waited."""
    waits = waits_of(launcher)
    by_other = ~np.isin(waits.waker_pid, [launcher.pid, *facts.processes])
    spans = intervals.union(waits.spans[by_other])
    waiting = facts.engine.gauge(words.WAITING) if facts.engine is not None else None
    if waiting is None or (waiting.value > 0).mean() > SELDOM:
        return intervals.EMPTY
    return spans


def _used_with_requests(facts: Facts, samples: Samples) -> tuple[float, int] | None:
    """Mean utilisation in % while requests ran, and of how many samples; None without any.

    Requests that take far less than the time between two scrapes leave most of them without one,
    though tokens came in between: what the device did in all that time, it did while they ran.
    """
    running = facts.engine.gauge(words.RUNNING) if facts.engine is not None else None
    if running is not None:
        at = intervals.assign(running.time, facts.demand) >= 0
        present = float((running.value[at] > 0).mean()) if at.any() else 1.0
        mean = samples.mean(facts.demand)
        if present < MOST_LOAD and mean is not None:
            return min(mean[0] / max(present, 1e-9), 100.0), mean[1]
    return samples.mean(_at_most_load(facts))


def _at_most_load(facts: Facts) -> Ints:
    """The time with demand in which about as many requests ran as ever: with few of them a device
    has nothing to do for good reasons.
    """
    running = facts.engine.gauge(words.RUNNING) if facts.engine is not None else None
    if running is None or len(running.time) < 2:
        return facts.demand
    both = np.minimum(running.value[1:], running.value[:-1])
    many = both >= MOST_LOAD * float(running.value.max())
    spans = intervals.union(intervals.make(running.time[:-1][many], running.time[1:][many]))
    return intervals.intersect(spans, facts.demand) if len(spans) else facts.demand


def _open_signs(facts: Facts) -> list[Sign]:
    """Calls that were entered long before the end and have not returned."""
    signs = []
    for row in facts.open_calls:
        age = facts.end_ns - int(row["start_ns"])
        if age < STALL_NS or int(row["time_ns"]) < facts.end_ns - STALL_NS:
            continue
        doubt = ", as far as is known: records of this thread were lost" * bool(row["is_doubtful"])
        state = row["thread_state"]
        stopped = " and the process was stopped by a signal" if state in ("T", "t") else ""
        signs.append(
            Sign(
                f"thread {row['tid']} has been inside {row['function']} for "
                f"{age / 1e9:.1f} s{stopped}{doubt}",
                Evidence("open_call_age", age, "ns", None, "open_call"),
                min(age / facts.demand_ns, 1.0),
            )
        )
    return signs


def _engine_signs(facts: Facts) -> list[Sign]:
    """Stalls, slower tokens, preemptions and queues, as the engine tells."""
    engine = facts.engine
    if engine is None or len(engine.time) < 3:
        return []
    signs = []
    tokens = engine.counter(words.GENERATION_TOKENS)
    running = engine.gauge(words.RUNNING)
    waiting = engine.gauge(words.WAITING)
    if tokens is not None and running is not None and not tokens.is_lagging:
        is_still = (np.diff(tokens.value) <= 0) & (gauge_at(running, tokens.time[1:]) > 0)
        prompts = engine.counter(words.PROMPT_TOKENS)
        if prompts is not None and len(prompts.time) == len(tokens.time):
            is_still &= np.diff(prompts.value) <= 0
        still = intervals.union(
            intervals.make(tokens.time[:-1][is_still], tokens.time[1:][is_still])
        )
        longest = int((still[:, 1] - still[:, 0]).max()) if len(still) else 0
        if longest >= STALL_NS:
            signs.append(
                Sign(
                    f"no token came for {longest / 1e9:.1f} s while requests were running",
                    Evidence("token_stall", longest, "ns", len(tokens.time), "engine_sample"),
                    longest / facts.demand_ns,
                )
            )
    edges = intervals.windows(int(engine.time[0]), int(engine.time[-1]), _BLOCK_NS)
    means = engine.mean(words.INTER_TOKEN, edges)
    if means is not None:
        means = means[np.isfinite(means)]
        if len(means) >= 3 and means.max() > TOKEN_RISE * np.median(means):
            ratio = float(means.max() / np.median(means))
            signs.append(
                Sign(
                    f"the time between tokens rose to {ratio:.1f} times its median",
                    Evidence(
                        "inter_token_rise", round(ratio, 2), "ratio", len(means), "engine_sample"
                    ),
                    float((means > TOKEN_RISE * np.median(means)).mean()),
                )
            )
    if is_blind(facts):
        signs.extend(_spread(engine))
    preempted = engine.counter(words.PREEMPTIONS)
    if preempted is not None and preempted.increase().sum() >= 3:
        n = int(preempted.increase().sum())
        signs.append(
            Sign(
                f"{n} requests were preempted for lack of KV cache",
                Evidence("preemptions", n, "", len(preempted.time), "engine_sample"),
                0.2,
            )
        )
    if waiting is not None and len(waiting.value) > 3:
        queued = float((waiting.value > 0).mean())
        if queued > 0.5:
            signs.append(
                Sign(
                    f"requests waited at the door in {100 * queued:.0f} % of the scrapes",
                    Evidence(
                        "scrapes_with_queue", round(100 * queued, 1), "%", len(waiting.value), ""
                    ),
                    queued,
                )
            )
    return signs


def is_blind(facts: Facts) -> bool:
    """Whether nothing tells what was launched or ran."""
    return facts.calls is None and not facts.activity


def _spread(engine: words.EngineSeries) -> list[Sign]:
    """Seconds of the same recording in which tokens, first or further, took much longer than in
    others.
    """
    means = engine.mean(words.INTER_TOKEN, engine.time)
    if means is None:
        means = _gaps(engine)
    first = engine.mean(words.TTFT, engine.time)
    signs = []
    for name, values, most in (
        ("the time between tokens", means, BLIND_TOKEN_SPREAD),
        ("the time to first token", first, BLIND_FIRST_SPREAD),
    ):
        known = np.empty(0) if values is None else values[np.isfinite(values)]
        low, high = quantiles.quantile(known, 0.1), quantiles.quantile(known, 0.9)
        if len(known) < 5 or low is None or high is None or low.value <= 0:
            continue
        ratio = high.value / low.value
        if ratio < most:
            continue
        signs.append(
            Sign(
                f"{name} differed {ratio:.1f} times between seconds",
                Evidence("spread", round(ratio, 2), "ratio", len(known), "engine_sample"),
                1 - 1 / ratio,
            )
        )
    tail = late_first_tokens(engine)
    if tail is not None:
        signs.append(
            Sign(
                f"one first token in a hundred took {tail.p99:.1f} s or more, nine in ten at most "
                f"{tail.p90:.2f} s",
                Evidence("first_token_p99", round(tail.p99, 2), "s", tail.n, "engine_sample"),
                0.01,
            )
        )
    return signs


def _gaps(engine: words.EngineSeries) -> npt.NDArray[np.float64]:
    """What a running request waited for a token in each second, by those that came, s."""
    load = load_windows(engine, 5)
    if load is None:
        return np.empty(0)
    return load.token_gaps[load.running > 0]
