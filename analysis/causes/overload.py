"""More work than capacity: requests wait at the door while the engine is as full as it gets."""

from __future__ import annotations

import numpy as np

from analysis import engine as words
from analysis import quantiles
from analysis.causes.capacity import N_BEFORE, arrivals_rise, before_queue, less_capacity
from analysis.causes.declaration import Cause, Needs
from analysis.causes.engine_load import KV_FULL, Flags, Load, load_windows
from analysis.causes.imbalance import has_room_elsewhere
from analysis.engine import EngineSeries
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status
from analysis.severity import assess

OVERLOAD = "queue.overload"

#: Windows with a queue that make it persistent: shorter ones are the waits of a healthy service.
N_QUEUED = 5
#: Share of the time with demand in which requests must wait.
QUEUED_SHARE = 0.25
#: Queue against the batch: a shorter one is served within a fraction of a request's time.
DEPTH = 0.25
#: Share of the queued windows in which tokens must come: else the service hangs, and its queue
#: follows from that.
SERVED_SHARE = 0.5
#: Share of the queued windows in which the batch or the cache must be full.
FULL_SHARE = 0.6
#: The batch counts as full from this share of its limit on.
AT_LIMIT = 0.95
#: A batch that holds to its largest size counts as full too, from this share of the limit on: not
#: every place can be used (a token budget, requests of several sequences).
NEAR_LIMIT = 0.75
#: Percentile of the sizes near the largest that counts as the largest.
LARGEST = 0.9
#: Service counts as slower from this rise of the time between tokens on, and arrivals as more.
SLOWER = 1.5
MORE = 1.25
#: Share of the time with demand in which a short queue must stand to be one that stays.
STANDING_SHARE = 0.5


def find_overload(facts: Facts) -> Finding:
    """Return whether more work arrived than the engine could serve."""
    load = load_windows(facts.engine, N_BEFORE) if facts.engine is not None else None
    if load is None or facts.engine is None or not facts.engine.has(words.WAITING):
        return Finding(
            OVERLOAD,
            Status.NOT_APPLICABLE,
            undecided_because="running and waiting requests of an engine are not in the recording "
            "for long enough; record with --engine URL",
        )
    finding = Finding(OVERLOAD, Status.NOT_FOUND, confidence=0.9)
    if has_room_elsewhere(facts.engine):
        finding.excluded.append(
            Exclusion(
                OVERLOAD, "another engine had room while requests waited at one (queue.imbalance)"
            )
        )
        return finding
    is_queued = load.waiting > 0
    severity = assess(load.spans(is_queued), facts.demand)
    n = int(is_queued.sum())
    if n < N_QUEUED or severity.share < QUEUED_SHARE:
        finding.excluded.append(
            Exclusion(OVERLOAD, f"requests waited on in {n} of {len(is_queued)} seconds")
        )
        return finding
    # A short queue that always stands is not the one that grows later.
    is_deep = load.waiting >= np.maximum(1.0, DEPTH * load.running)
    deep = assess(load.spans(is_deep), facts.demand)
    if is_deep.sum() >= N_QUEUED and deep.share >= QUEUED_SHARE:
        is_queued, severity, n = is_deep, deep, int(is_deep.sum())
    waiting = float(load.waiting[is_queued].mean())
    running = float(load.running[is_queued].mean())
    if waiting < max(1.0, DEPTH * running):
        is_told = load.kv_usage is not None or facts.engine.has(words.LIMIT)
        stands = severity.share >= STANDING_SHARE and not is_told
        if stands and _suspect_growth(load, is_queued, finding):
            finding.start_ns, finding.end_ns = severity.start_ns, severity.end_ns
            return finding
        finding.excluded.append(
            Exclusion(OVERLOAD, f"{waiting:.1f} requests waited beside {running:.1f} running")
        )
        return finding
    finding.start_ns, finding.end_ns = severity.start_ns, severity.end_ns
    finding.evidence = [
        Evidence("waiting", round(waiting, 1), "requests", n, "engine_sample"),
        Evidence("running", round(running, 1), "requests", n, "engine_sample"),
        Evidence("queued_share", round(100 * severity.share, 1), "%", n, ""),
    ]
    _decide(facts, load, is_queued, finding)
    return finding


def _decide(facts: Facts, load: Load, is_queued: Flags, finding: Finding) -> None:
    assert facts.engine is not None
    n = int(is_queued.sum())
    generated = load.generated[is_queued & np.isfinite(load.generated)]
    if len(generated) and (generated <= 0).mean() > 1 - SERVED_SHARE:
        finding.excluded.append(
            Exclusion(
                OVERLOAD,
                f"no token came in {100 * (generated <= 0).mean():.0f} % of the seconds with a "
                "queue: nothing was served",
            )
        )
        return
    at_limit = _at_limit(facts.engine, load, is_queued)
    at_full_cache = _at_full_cache(load)
    used = float((at_limit | at_full_cache)[is_queued].mean())
    finding.evidence += [
        Evidence("at_batch_limit", round(100 * float(at_limit[is_queued].mean()), 1), "%", n),
        Evidence("at_full_cache", round(100 * float(at_full_cache[is_queued].mean()), 1), "%", n),
    ]
    _tell_rates(facts.engine, load, is_queued, finding)
    if used < FULL_SHARE:
        if load.kv_usage is None and not facts.engine.has(words.LIMIT):
            finding.status, finding.confidence = Status.UNDECIDED, 0.4
            finding.undecided_because = (
                "requests waited, but neither the limit of the batch nor the use of the cache is "
                "exposed: whether the engine could have admitted them cannot be told"
            )
            finding.settled_by = "an engine that exposes them"
            return
        finding.excluded.append(
            Exclusion(
                OVERLOAD,
                "requests waited though neither the batch nor the cache was full in "
                f"{100 * (1 - used):.0f} % of that time: admission is what holds them "
                "(queue.head_of_line)",
            )
        )
        return
    slower = _slower_first(load, is_queued, finding)
    if slower:
        finding.excluded.append(
            Exclusion(OVERLOAD, "service time rose and arrivals did not: the queue follows from it")
        )
        return
    less = less_capacity(load, is_queued, finding.evidence)
    if less:
        finding.status, finding.confidence = Status.UNDECIDED, 0.45
        finding.undecided_because = (
            f"{float(load.waiting[is_queued].mean()):.0f} requests waited, but {less}: a device "
            "that became slower then (a lowered clock, another process on it), or longer requests, "
            "make the same queue"
        )
        finding.settled_by = (
            "the clocks of the GPU and its processes (NVML), and the lengths of the requests"
        )
        return
    evicted = float((np.nan_to_num(load.preempted) > 0)[is_queued].mean())
    if evicted >= 0.5:
        finding.status, finding.confidence = Status.UNDECIDED, 0.35
        finding.undecided_because = (
            f"requests were evicted in {100 * evicted:.0f} % of the seconds with a queue: what is "
            "computed again may be what fills the service (kv.preemption)"
        )
        finding.settled_by = "the analysis of kv.preemption"
        return
    finding.status = Status.FOUND
    finding.confidence = (0.75 if slower is None else 0.88) * facts.trust("engine")
    if before_queue(load, is_queued).sum() < N_BEFORE:
        # What the engine serves at best is not known: it may be slower than it was.
        finding.confidence = 0.65 * facts.trust("engine")
    if not facts.engine.has(words.LIMIT) and at_full_cache[is_queued].mean() < FULL_SHARE:
        # The limit is concluded from the batch's largest size.
        finding.confidence *= 0.9
    waiting, running = (float(item.value) for item in finding.evidence[:2])
    place = "the cache is full" if at_full_cache[is_queued].mean() > 0.5 else "the batch is full"
    finding.summary = (
        f"More work than capacity: {waiting:.0f} requests waited beside {running:.0f} running, "
        f"and {place}."
    )
    finding.excluded.append(
        Exclusion("queue.head_of_line", f"the batch or the cache was full in {100 * used:.0f} %")
    )
    # The device is used all the time: more capacity shortens the wait and returns no device time.


def _suspect_growth(load: Load, is_queued: Flags, finding: Finding) -> bool:
    """Fill in that a short queue has stood since more arrived, at an unchanged speed of service;
    return whether that is so.
    """
    before = before_queue(load, is_queued)
    if load.arrived is None or before.sum() < N_BEFORE:
        return False
    usual, late = load.token_gap(before), load.token_gap(is_queued)
    seconds = load.length_ns / 1e9
    rates = [
        float(np.nansum(load.arrived[part]) / seconds[part].sum()) for part in (before, is_queued)
    ]
    if usual is None or late is None or usual[0] <= 0 or rates[0] <= 0:
        return False
    rise, more = late[0] / usual[0], rates[1] / rates[0]
    if more < MORE or rise >= MORE:
        return False
    waiting, running = float(load.waiting[is_queued].mean()), float(load.running[is_queued].mean())
    finding.evidence = [
        Evidence("waiting", round(waiting, 1), "requests", int(is_queued.sum()), "engine_sample"),
        Evidence("running", round(running, 1), "requests", int(is_queued.sum()), "engine_sample"),
        Evidence("arrivals_rise", round(more, 2), "ratio", int(is_queued.sum()), "engine_sample"),
        Evidence("inter_token_rise", round(rise, 2), "ratio", late[1], "engine_sample"),
    ]
    finding.status, finding.confidence = Status.UNDECIDED, 0.4
    finding.undecided_because = (
        f"since {more:.1f} times as many requests come, at an unchanged speed of service, "
        f"{waiting:.0f} waited beside {running:.0f} running; whether the engine could have "
        "admitted them is not exposed"
    )
    finding.settled_by = "the limit of the batch and the use of the cache of the engine"
    return True


def _at_limit(engine: EngineSeries, load: Load, is_queued: Flags) -> Flags:
    """Windows whose batch is at its limit: as exposed, else the size that it holds to."""
    exposed = engine.gauge(words.LIMIT)
    most = float(load.running.max())
    if exposed is not None and exposed.value.max() > 0:
        limit = float(exposed.value.max())
        if most < NEAR_LIMIT * limit or most >= AT_LIMIT * limit:
            return _is_at_least(load, AT_LIMIT * limit)
    # The largest size but for a few scrapes, which requests that leave late exceed.
    usual = quantiles.quantile(load.running[_is_at_least(load, NEAR_LIMIT * most)], LARGEST)
    held = _is_at_least(load, AT_LIMIT * (most if usual is None else usual.value))
    # A batch that only touches its largest size is held by something else.
    is_limit = most >= 1 and held[is_queued].mean() >= FULL_SHARE
    return held if is_limit else np.zeros(len(held), dtype=bool)


def _is_at_least(load: Load, size: float) -> Flags:
    result: Flags = load.running >= size
    return result


def _at_full_cache(load: Load) -> Flags:
    """Windows in which the cache is full, or a request was evicted from it."""
    evicted = np.nan_to_num(load.preempted) > 0
    if load.kv_usage is None:
        return evicted
    result: Flags = evicted | (load.kv_usage >= KV_FULL)
    return result


def _tell_rates(engine: EngineSeries, load: Load, is_queued: Flags, finding: Finding) -> None:
    """Arrivals against finished requests, and the wait that requests had."""
    seconds = load.length_ns / 1e9
    rows = is_queued | np.append(is_queued[1:], False)
    total = float(seconds[rows].sum())
    if load.arrived is not None and load.finished is not None:
        finding.evidence += [
            Evidence("arrivals", round(float(np.nansum(load.arrived[rows])) / total, 2), "1/s"),
            Evidence("finished", round(float(np.nansum(load.finished[rows])) / total, 2), "1/s"),
        ]
    for name, metric in (("queue_mean", words.QUEUE), ("ttft_mean", words.TTFT)):
        spans = load.spans(is_queued)
        mean = engine.mean(metric, np.array([spans[0, 0], spans[-1, 1]], dtype=np.int64))
        if mean is not None and np.isfinite(mean[0]):
            finding.evidence.append(
                Evidence(name, round(float(mean[0]), 2), "s", None, "engine_sample")
            )


def _slower_first(load: Load, is_queued: Flags, finding: Finding) -> bool | None:
    """Whether tokens took longer and no more requests came than before the queue; None where the
    time before is not recorded.
    """
    before = before_queue(load, is_queued)
    if before.sum() < N_BEFORE:
        return None
    usual, late = load.token_gap(before), load.token_gap(is_queued)
    if usual is None or late is None:
        return None
    rise = late[0] / usual[0] if usual[0] > 0 else 1.0
    finding.evidence.append(
        Evidence("inter_token_rise", round(rise, 2), "ratio", late[1], "engine_sample")
    )
    more = arrivals_rise(load, is_queued)
    if more is None:
        # Nothing tells the arrivals: a batch that is no larger and far slower tells enough.
        batch = float(load.running[is_queued].mean()) / max(float(load.running[before].mean()), 1.0)
        return True if rise >= 2 * SLOWER and batch < MORE else None
    finding.evidence.append(
        Evidence("arrivals_rise", round(more[0], 2), "ratio", more[1], "engine_sample")
    )
    return rise >= SLOWER and more[0] < MORE


CAUSES = (
    Cause(
        OVERLOAD,
        "more work than capacity",
        "Requests wait at the door.",
        "Requests wait on end while the batch is at its limit or the KV cache is full, and "
        "service time did not rise before them.",
        "A regression, or a device that becomes slower: there service time rises first, or fewer "
        "tokens are served; head-of-line blocking: there is room.",
        "Record the engine's metrics: tracer record --pid PID --engine URL.",
        "Add capacity or shed load.",
        Needs(("engine_sample",)),
        find_overload,
    ),
)
