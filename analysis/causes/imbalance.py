"""One of several engines or data-parallel ranks gets too much of the load."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import engine as words
from analysis import quantiles
from analysis.causes.declaration import Cause, Needs
from analysis.engine import EngineSeries, gauge_at
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

IMBALANCE = "queue.imbalance"

#: Scrapes that a statement needs, and the share of them in which the hot engine has the queue.
N_SCRAPES = 5
STEADY = 0.6
#: Another engine has room when nobody waits at it and it runs at most this share of what the hot
#: one does.
ROOM = 0.8
#: The hot engine gets more of the load when it makes so many times the tokens of those with room.
MORE_TOKENS = 1.1


@dataclass(frozen=True)
class _Engine:
    """Gauges of one engine at each scrape of any, and the tokens that it made in all; None where
    that is not exposed.
    """

    name: str
    running: Floats
    waiting: Floats
    kv: Floats | None
    tokens: float | None


def find_imbalance(facts: Facts) -> Finding:
    """Return whether requests waited at one engine while others had room."""
    engines = _engines(facts.engine) if facts.engine is not None else []
    if len(engines) < 2 or len(engines[0].running) < N_SCRAPES:
        return Finding(
            IMBALANCE,
            Status.NOT_APPLICABLE,
            undecided_because="fewer than two engines or ranks were scraped; record with one "
            "--engine URL for each",
        )
    waiting = np.stack([item.waiting for item in engines])
    running = np.stack([item.running for item in engines])
    finding = Finding(IMBALANCE, Status.NOT_FOUND, confidence=0.85)
    total = waiting.sum(axis=0)
    queued = total >= 1
    n = int(queued.sum())
    if n < N_SCRAPES:
        finding.excluded.append(Exclusion(IMBALANCE, f"requests waited in {n} scrapes"))
        return finding
    hot, has_room, is_hot = _hot(waiting, running)
    coolest = has_room.min(axis=0)
    steady = float(is_hot[queued].mean())
    name = engines[hot].name
    finding.evidence = [
        Evidence("engines", len(engines), "", None, "engine_sample"),
        Evidence("hot_engine", name, "", n, "engine_sample"),
        Evidence("waiting_there", round(float(waiting[hot][queued].mean()), 1), "requests", n),
        Evidence(
            "waiting_elsewhere",
            round(float((total - waiting[hot])[queued].mean()), 1),
            "requests",
            n,
        ),
        Evidence("running_there", round(float(running[hot][queued].mean()), 1), "requests", n),
    ]
    for item in engines:
        if item.kv is not None:
            finding.evidence.append(
                Evidence(
                    f"kv_usage of {item.name}",
                    round(100 * float(item.kv[queued].mean()), 1),
                    "%",
                    n,
                    "engine_sample",
                )
            )
    share = float(queued.mean())
    if steady < STEADY or share < 0.25:
        finding.excluded.append(
            Exclusion(
                IMBALANCE,
                f"requests waited at {name} with room elsewhere in {100 * steady:.0f} % of the "
                "scrapes with a queue",
            )
        )
        return finding
    spare = 1 - float(coolest[is_hot].mean()) / max(float(running[hot][is_hot].mean()), 1.0)
    finding.lost_share = share * spare / len(engines)
    finding.lost_ns = int(finding.lost_share * facts.demand_ns)
    finding.start_ns, finding.end_ns = facts.start_ns, facts.end_ns
    others = [
        item.tokens
        for index, item in enumerate(engines)
        if item.tokens is not None and np.isfinite(has_room[index][is_hot]).mean() >= STEADY
    ]
    own = engines[hot].tokens
    usual = quantiles.median(np.array(others)) if others else None
    if own is not None and usual is not None:
        finding.evidence += [
            Evidence("tokens_there", round(own), "tokens", n, "engine_sample"),
            Evidence("tokens_elsewhere", round(usual), "tokens", len(others), "engine_sample"),
        ]
    if own is None or usual is None or own < MORE_TOKENS * usual:
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.undecided_because = (
            f"requests waited at {name} while another engine had room, but "
            + (
                "how many tokens each of them made is not exposed"
                if own is None or usual is None
                else f"it made {own:.0f} tokens and those with room {usual:.0f}"
            )
            + ": an engine that is slower than the others (a lowered clock, another process on its "
            "device) gathers a queue of the same load"
        )
        finding.settled_by = (
            "arrivals at each engine, and the clocks of every GPU and its processes (NVML)"
        )
        return finding
    finding.status, finding.confidence = Status.FOUND, 0.88 * facts.trust("engine")
    finding.summary = (
        f"{float(waiting[hot][is_hot].mean()):.0f} requests waited at {name} beside "
        f"{float(running[hot][is_hot].mean()):.0f} running, while another engine ran "
        f"{float(coolest[is_hot].mean()):.0f}: the load is not spread evenly."
    )
    finding.excluded.append(Exclusion("queue.overload", "other engines had room meanwhile"))
    return finding


def _hot(waiting: Floats, running: Floats) -> tuple[int, Floats, Flags]:
    """The engine with the longest queue; what each engine with room runs at each scrape, infinity
    for the others; and the scrapes in which requests wait at the hot one beside such room.
    """
    queued = waiting.sum(axis=0) >= 1
    hot = int(np.argmax(waiting[:, queued].sum(axis=1)))
    # An engine at which nobody waits counts with what it runs, the others as full.
    has_room: Floats = np.where(waiting > 0, np.inf, running)
    has_room[hot] = np.inf
    is_hot: Flags = queued & (waiting[hot] >= 1) & (has_room.min(axis=0) <= ROOM * running[hot])
    return hot, has_room, is_hot


def has_room_elsewhere(engine: EngineSeries) -> bool:
    """Return whether most of the time in which requests waited at one of several engines, another
    had room for them.
    """
    engines = _engines(engine)
    if len(engines) < 2:
        return False
    waiting = np.stack([item.waiting for item in engines])
    queued = waiting.sum(axis=0) >= 1
    if queued.sum() < N_SCRAPES:
        return False
    _hot_one, _room, is_hot = _hot(waiting, np.stack([item.running for item in engines]))
    return bool(is_hot[queued].mean() >= STEADY)


def _engines(engine: EngineSeries) -> list[_Engine]:
    """Every endpoint, or rank of one, with gauges of running and waiting requests."""
    time = engine.time
    parts = {
        metric: dict(engine.separate(metric, "gauge"))
        for metric in (words.RUNNING, words.WAITING, words.KV_USAGE)
    }
    tokens = engine.separate(words.GENERATION_TOKENS, "counter")
    both = sorted(set(parts[words.RUNNING]) & set(parts[words.WAITING]))
    result = []
    for name in both:
        kv = parts[words.KV_USAGE].get(name)
        result.append(
            _Engine(
                name,
                gauge_at(parts[words.RUNNING][name], time),
                gauge_at(parts[words.WAITING][name], time),
                None if kv is None else gauge_at(kv, time),
                float(tokens[name].increase().sum()) if name in tokens else None,
            )
        )
    return result


CAUSES = (
    Cause(
        IMBALANCE,
        "one replica or rank is hot",
        "The load balancer sends too much to one place.",
        "Requests wait steadily at one engine or rank while another runs fewer than it, and makes "
        "fewer tokens.",
        "Overload of all; a replica that is slower than the others at the same load.",
        "Record every engine: tracer record --pid PID --engine URL for each.",
        "Balance by tokens, not by requests.",
        Needs(("engine_sample",)),
        find_imbalance,
    ),
)
