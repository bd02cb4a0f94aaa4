"""Requests wait though there is room: held by the one at the head, or by a transfer."""

from __future__ import annotations

import numpy as np

from analysis import engine as words
from analysis.causes.capacity import MORE_PROMPTS, N_BEFORE, before_queue, rate
from analysis.causes.declaration import Cause, Needs
from analysis.causes.engine_load import KV_FULL, Flags, Load, load_windows
from analysis.engine import EngineSeries
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status
from analysis.severity import Severity, assess

HEAD = "queue.head_of_line"
REMOTE = "queue.remote_wait"

#: Windows with a queue and room that make it persistent, and their share of the demand.
N_HELD = 5
HELD_SHARE = 0.25
#: The batch has room below this share of its limit, or of the largest size that it had.
BELOW_LIMIT = 0.9
#: Share of the queued windows in which the batch holds to its largest size.
STEADY = 0.8
#: The cache is nearly empty below this share, so that what it holds is not what keeps others out.
KV_EMPTY = 0.15
#: Tokens that take so many times as long as before the queue are a device that is full or slower.
SLOWER = 1.25
#: Share of the held windows in which not one token may come for nothing to be served at all.
NO_TOKENS = 0.9


def find_head_of_line(facts: Facts) -> Finding:
    """Return whether admission held requests back though batch and cache had room."""
    return _find(facts, HEAD)


def find_remote_wait(facts: Facts) -> Finding:
    """Return whether requests held their place waiting for keys and values from elsewhere."""
    return _find(facts, REMOTE)


def _find(facts: Facts, cause: str) -> Finding:
    engine = facts.engine
    load = load_windows(engine, N_HELD) if engine is not None else None
    if engine is None or load is None or not engine.has(words.WAITING):
        return Finding(
            cause,
            Status.NOT_APPLICABLE,
            undecided_because="running and waiting requests of an engine are not in the recording "
            "for long enough; record with --engine URL",
        )
    finding = Finding(cause, Status.NOT_FOUND, confidence=0.85)
    if load.kv_usage is None and not engine.has(words.LIMIT):
        held: Flags = load.waiting > 0
        severity = assess(load.spans(held), facts.demand)
        is_long = held.sum() >= N_HELD and severity.share >= HELD_SHARE
        finding.excluded.append(
            Exclusion(
                cause,
                "neither the limit of the batch nor the use of the cache is exposed"
                if is_long
                else f"requests waited on in {int(held.sum())} of {len(held)} seconds",
            )
        )
        return finding
    held = (load.waiting > 0) & _has_room(engine, load)
    severity = assess(load.spans(held), facts.demand)
    n = int(held.sum())
    if n < N_HELD or severity.share < HELD_SHARE or _is_full(load, held):
        finding.excluded.append(
            Exclusion(cause, f"requests waited beside room for them in {n} of {len(held)} seconds")
        )
        return finding
    _describe(load, held, severity, finding)
    is_dead = _is_still(load, held)
    if cause == HEAD:
        return _head(facts, load, held, finding, is_dead=is_dead)
    return _remote(facts, engine, load, held, finding, is_dead=is_dead)


def _has_room(engine: EngineSeries, load: Load) -> Flags:
    """Windows whose batch is below its limit and whose cache is not full."""
    exposed = engine.gauge(words.LIMIT)
    most = float(load.running.max())
    room: Flags = load.running < BELOW_LIMIT * max(most, 1.0)
    if exposed is not None and exposed.value.max() > 0:
        limit = float(exposed.value.max())
        queued = load.waiting > 0
        n_at_most = int((queued & (load.running >= BELOW_LIMIT * most)).sum())
        # A batch that holds to one size near its limit is held by something like a limit.
        is_held = n_at_most >= STEADY * max(int(queued.sum()), 1) and most >= limit / 2
        room = load.running < BELOW_LIMIT * (min(limit, most) if is_held else limit)
    if load.kv_usage is not None:
        room &= load.kv_usage < KV_FULL
        if exposed is None:
            # A batch may be small because its requests are long: half a cache is room enough.
            room |= (load.kv_usage < KV_FULL / 2) & (load.running <= 1)
    room &= np.nan_to_num(load.preempted) == 0
    return room


def _is_full(load: Load, held: Flags) -> bool:
    """Whether the queue is as persistent in full windows: then it is overload that ebbs."""
    queued = load.waiting > 0
    return bool(held.sum() < 0.6 * queued.sum())


def _describe(load: Load, held: Flags, severity: Severity, finding: Finding) -> None:
    n = int(held.sum())
    finding.start_ns, finding.end_ns = severity.start_ns, severity.end_ns
    finding.evidence = [
        Evidence("waiting", round(float(load.waiting[held].mean()), 1), "requests", n, ""),
        Evidence("running", round(float(load.running[held].mean()), 1), "requests", n, ""),
        Evidence("running_most", round(float(load.running.max()), 1), "requests", len(held), ""),
    ]
    if load.kv_usage is not None:
        finding.evidence.append(
            Evidence("kv_usage", round(100 * float(load.kv_usage[held].mean()), 1), "%", n, "")
        )


def _is_still(load: Load, held: Flags) -> bool:
    """Whether hardly a token came while requests waited beside room."""
    made = np.nan_to_num(load.generated[held]) + np.nan_to_num(load.prompts[held])
    return bool((made <= 0).mean() >= NO_TOKENS)


def _head(facts: Facts, load: Load, held: Flags, finding: Finding, *, is_dead: bool) -> Finding:
    if is_dead:
        finding.excluded.append(Exclusion(HEAD, "no token came: nothing was served at all"))
        return finding
    waiting, running = (float(item.value) for item in finding.evidence[:2])
    most = float(load.running.max())
    finding.lost_share = max(1 - running / max(most, running, 1.0), 0.0) * _share(facts, load, held)
    finding.lost_ns = int(finding.lost_share * facts.demand_ns)
    full = (
        ""
        if load.kv_usage is None
        else f", and the cache was {100 * float(load.kv_usage[held].mean()):.0f} % full"
    )
    deferred = _deferred(facts)
    if deferred:
        finding.excluded.append(
            Exclusion(HEAD, f"{deferred:.0f} of them were deferred for a transfer ({REMOTE})")
        )
        finding.lost_ns, finding.lost_share = 0, 0.0
        return finding
    before = before_queue(load, load.waiting > 0)
    other = _device_instead(load, held, before, finding)
    if other:
        finding.status, finding.confidence = Status.UNDECIDED, 0.45
        finding.undecided_because = (
            f"{waiting:.0f} requests waited beside {running:.0f} running of up to {most:.0f}"
            f"{full}, but {other}: a device full of prompts, or slower than before, keeps them "
            "waiting as well"
        )
        finding.settled_by = (
            "the clocks of the GPU and its processes (NVML), and the launches (cuda_call: tracer "
            "record --pid PID as root)"
        )
        return finding
    finding.status = Status.FOUND
    finding.confidence = (0.85 if load.kv_usage is not None else 0.7) * facts.trust("engine")
    if before.sum() < N_BEFORE:
        # Whether the device is slower than it was, or full of prompts, has nothing to show by.
        finding.confidence = min(finding.confidence, 0.65)
    finding.summary = (
        f"{waiting:.0f} requests waited beside room for them: {running:.0f} were running of up to "
        f"{most:.0f}{full}; admission holds them back, not capacity."
    )
    finding.excluded += [
        Exclusion("queue.overload", "neither the batch nor the cache was full"),
        Exclusion("kv.preemption", "no request was preempted in that time"),
    ]
    return finding


def _device_instead(load: Load, held: Flags, before: Flags, finding: Finding) -> str:
    """What tells that the device may be the limit, a clause: tokens take longer than before the
    queue, or more prompts are computed; empty where neither is so.
    """
    if before.sum() < N_BEFORE:
        return ""
    usual, late = load.token_gap(before), load.token_gap(held)
    if usual is not None and late is not None and usual[0] > 0:
        rise = late[0] / usual[0]
        finding.evidence.append(
            Evidence("inter_token_rise", round(rise, 2), "ratio", late[1], "engine_sample")
        )
        if rise >= SLOWER:
            return f"tokens took {rise:.1f} times as long as before"
    usually, now = (rate(load, load.prompts, part) for part in (before, held))
    if now > 0 and now >= MORE_PROMPTS * usually:
        return f"{now:.0f} prompt tokens/s were computed instead of {usually:.0f}"
    return ""


def _share(facts: Facts, load: Load, held: Flags) -> float:
    return assess(load.spans(held), facts.demand).share


def _deferred(facts: Facts) -> float:
    """Requests that the engine says it keeps waiting for something else, at the median."""
    engine = facts.engine
    assert engine is not None
    values = [
        series.value
        for labels, series in engine.labelled(words.WAITING_BY_REASON, "gauge")
        if "defer" in labels or "remote" in labels
    ]
    return max((float(np.median(value)) for value in values), default=0.0)


def _remote(
    facts: Facts,
    engine: EngineSeries,
    load: Load,
    held: Flags,
    finding: Finding,
    *,
    is_dead: bool,
) -> Finding:
    deferred = _deferred(facts)
    kv = None if load.kv_usage is None else float(load.kv_usage[held].mean())
    is_empty = kv is not None and kv < KV_EMPTY
    if deferred:
        finding.evidence.append(
            Evidence("deferred", round(deferred, 1), "requests", len(engine.time), "engine_sample")
        )
    if not deferred and not (is_empty and is_dead):
        finding.excluded.append(
            Exclusion(
                REMOTE,
                "requests were served meanwhile and none is told to be deferred"
                if not is_dead
                else "the cache was in use, and no request is told to be deferred",
            )
        )
        return finding
    finding.lost_share = _share(facts, load, held)
    finding.lost_ns = int(finding.lost_share * facts.demand_ns)
    used = [
        mean[0]
        for device in facts.devices
        if (samples := facts.utilisation(device)) is not None
        and (mean := samples.mean(load.spans(held))) is not None
    ]
    if used and max(used) >= 50.0:
        finding.excluded.append(
            Exclusion(REMOTE, f"the device was {max(used):.0f} % utilised: it was not waiting")
        )
        finding.lost_ns, finding.lost_share = 0, 0.0
        return finding
    if not deferred:
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.undecided_because = (
            "requests waited, nothing was admitted and the cache was nearly empty: a transfer that "
            "does not come, or an engine whose scheduler stopped"
        )
        finding.settled_by = "the engine's transfer metrics, and the state of its sockets"
        return finding
    finding.status, finding.confidence = Status.FOUND, 0.85 * facts.trust("engine")
    finding.summary = (
        f"{deferred:.0f} requests were deferred for keys and values from elsewhere"
        + ("" if kv is None else f" while the cache was {100 * kv:.0f} % full")
        + ": the transfer is what the service waits for."
    )
    return finding


_RECORD = "Record the engine's metrics: tracer record --pid PID --engine URL."

CAUSES = (
    Cause(
        HEAD,
        "admission is blocked though memory is free",
        "One request at the head keeps others out.",
        "Requests wait on end with KV well below full, running below its limit and no preemption, "
        "while others are served.",
        "A full KV cache or batch; a device that is full of prompts or became slower; a scheduler "
        "that does nothing at all.",
        _RECORD,
        "Change the admission policy or the token budget.",
        Needs(("engine_sample",)),
        find_head_of_line,
    ),
    Cause(
        REMOTE,
        "slots are held for transfers that do not come",
        "Requests wait for remote KV.",
        "Requests that the engine tells to be deferred for a transfer, KV with room, the device "
        "idle; without such a word, nothing admitted into a nearly empty cache only suggests it.",
        "Head-of-line blocking, a stopped scheduler.",
        _RECORD,
        "Look at the transfer layer; free slots by timeout.",
        Needs(("engine_sample",), optional=("gpu_sample",)),
        find_remote_wait,
    ),
)
