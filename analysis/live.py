"""What a recording that is still being written says about its last seconds.

Rows reach the disk in segments, a few seconds late, so that everything here is about a stretch
that ended a little while ago: what is newer may not be there yet, and would look like silence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow.compute as pc

from analysis import engine as words
from analysis.attribution import attribute
from analysis.budget import STATES, Budget
from analysis.calls import Calls
from analysis.conclusion import Verdict
from analysis.engine import EngineSeries, gauge_at
from analysis.facts import Facts
from analysis.manifest import Source
from analysis.quantiles import Quantile, quantile
from analysis.timeline import Session

_SECOND_NS = 1_000_000_000
#: How long rows may be on their way to the disk, ns.
LAG_NS = 4 * _SECOND_NS
#: Length of the stretch that the verdict is about, ns.
SPAN_NS = 30 * _SECOND_NS
#: Rates and percentiles are over this much of its end, ns.
RATE_NS = 10 * _SECOND_NS
#: Share of the stretch from which waiting for one task is told.
_LEAST_WAIT = 0.005
#: Neighbours that are named.
_MOST_NEIGHBOURS = 5


@dataclass(frozen=True)
class DeviceLook:
    """The newest sample of one device; None is not known."""

    index: int
    util_pct: float | None
    power_mw: int | None
    sm_clock_mhz: int | None
    memory_used_bytes: int | None


@dataclass(frozen=True)
class BudgetLook:
    """Where the time of one device went: share by state, and the leading state second by second."""

    device: int | None
    shares: dict[str, float]
    leading: tuple[str, ...]


@dataclass(frozen=True)
class LaunchLook:
    """Launch calls over the last seconds, percentiles by nearest rank in ns."""

    per_s: float
    median: Quantile | None
    tail: Quantile | None
    longest_ns: int | None


@dataclass(frozen=True)
class ServiceLook:
    """The engine over the last seconds; None is not known."""

    running: float | None
    waiting: float | None
    tokens_per_s: float | None
    ttft_s: float | None
    inter_token_s: float | None
    kv_usage: float | None


@dataclass(frozen=True)
class Neighbour:
    """Another process that had a device or a CPU of the launching thread.

    Attributes:
        pid: Its process; None is not known.
        name: Its name.
        what: ``GPU 0`` or ``CPU``.
        share: Of the device's SMs, or of the stretch in which the thread waited for it; None is not
            known.
        n_more: Further processes of that name, whose share is in it.
    """

    pid: int | None
    name: str
    what: str
    share: float | None
    n_more: int = 0


@dataclass(frozen=True)
class Look:
    """One look at a running recording.

    Attributes:
        start_ns: Begin of the stretch it is about, CLOCK_MONOTONIC.
        end_ns: End of it.
        verdict: The verdict about the stretch.
        budgets: One entry a device.
        launches: Launch calls; None where calls are not recorded.
        devices: Newest sample of each device.
        service: The engine; None where it is not scraped.
        neighbours: Others on the devices and on the launching thread's CPU, the worst first.
        missing: Sources that are not there, and why.
        n_lost: Records lost since the begin.
        is_simulated: It comes from the simulated device.
    """

    start_ns: int
    end_ns: int
    verdict: Verdict
    budgets: list[BudgetLook]
    launches: LaunchLook | None
    devices: list[DeviceLook]
    service: ServiceLook | None
    neighbours: list[Neighbour]
    missing: list[Source]
    n_lost: int
    is_simulated: bool


def look(session: Session, now_ns: int, span_ns: int = SPAN_NS) -> Look | None:
    """Return what the last seconds of a running session say; None while there is too little.

    Args:
        session: The session, opened anew for each look.
        now_ns: Present time, CLOCK_MONOTONIC.
        span_ns: Length of the stretch, ns.
    """
    manifest = replace(session.manifest, end_ns=session.manifest.end_ns or now_ns)
    whole = Session(session.path, manifest)
    end = min(now_ns - LAG_NS, whole.end_ns)
    if end - whole.start_ns < _SECOND_NS:
        return None
    part = whole.between(end - span_ns, end)
    attribution = attribute(part)
    facts = Facts(part)
    newest = whole.between(end - span_ns, whole.end_ns)
    return Look(
        start_ns=part.start_ns,
        end_ns=part.end_ns,
        verdict=attribution.verdict,
        budgets=[_budget(budget) for budget in attribution.budgets],
        launches=None if facts.calls is None else _launches(facts.calls, part),
        devices=_devices(newest),
        service=None if facts.engine is None else _service(facts.engine, part),
        neighbours=_neighbours(newest, facts),
        missing=[item for item in manifest.sources if item.state in ("unavailable", "lost")],
        n_lost=sum(item.n_lost for item in manifest.sources),
        is_simulated=manifest.is_simulated,
    )


def _budget(budget: Budget) -> BudgetLook:
    n = len(budget.edges) - 1
    table = np.zeros((len(STATES), n), dtype=np.int64)
    for (state, _reason), values in budget.spent.items():
        table[STATES.index(state)] += values
    leading = tuple(STATES[index] for index in table.argmax(axis=0).tolist())
    return BudgetLook(budget.device, budget.by_state(), leading)


def _launches(calls: Calls, part: Session) -> LaunchLook:
    begin = max(part.end_ns - RATE_NS, part.start_ns)
    is_own = calls.is_kind("launch", "graph_launch") & (calls.start >= begin)
    durations = calls.duration[is_own & calls.has_return]
    return LaunchLook(
        float(is_own.sum()) / ((part.end_ns - begin) / 1e9),
        quantile(durations, 0.5),
        quantile(durations, 0.99),
        int(durations.max()) if len(durations) else None,
    )


def _devices(newest: Session) -> list[DeviceLook]:
    if not newest.has("gpu_sample"):
        return []
    names = ("util_pct", "power_mw", "sm_clock_mhz", "memory_used_bytes")
    rows = newest.table("gpu_sample", columns=["time_ns", "device", *names])
    found: dict[int, dict[str, float | int]] = {}
    for row in rows.to_pylist():
        told = {name: row[name] for name in names if row[name] is not None}
        found.setdefault(row["device"], {}).update(told)
    return [
        DeviceLook(
            index,
            told.get("util_pct"),
            _whole(told.get("power_mw")),
            _whole(told.get("sm_clock_mhz")),
            _whole(told.get("memory_used_bytes")),
        )
        for index, told in sorted(found.items())
    ]


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _service(engine: EngineSeries, part: Session) -> ServiceLook:
    edges = np.array([max(part.end_ns - RATE_NS, part.start_ns), part.end_ns], dtype=np.int64)
    # Only between two scrapes is it known what came in between.
    edges = np.clip(edges, int(engine.time[0]), int(engine.time[-1]))
    seconds = int(edges[1] - edges[0]) / 1e9
    tokens = engine.counter(words.GENERATION_TOKENS)
    rate = None
    if tokens is not None and seconds > 0:
        grown = float(tokens.between(edges)[0])
        rate = grown / seconds if np.isfinite(grown) else None

    def gauge(metric: str) -> float | None:
        series = engine.gauge(metric)
        return None if series is None else float(gauge_at(series, edges[1:])[0])

    def mean(metric: str) -> float | None:
        values = engine.mean(metric, edges) if seconds > 0 else None
        return None if values is None or not np.isfinite(values[0]) else float(values[0])

    return ServiceLook(
        gauge(words.RUNNING),
        gauge(words.WAITING),
        rate,
        mean(words.TTFT),
        mean(words.INTER_TOKEN),
        gauge(words.KV_USAGE),
    )


def _neighbours(newest: Session, facts: Facts) -> list[Neighbour]:
    return [*_on_devices(newest), *_on_cpus(facts)][:_MOST_NEIGHBOURS]


def _on_devices(newest: Session) -> list[Neighbour]:
    """Processes outside of the target with a context on a device at its newest sample."""
    if not newest.has("gpu_process"):
        return []
    columns = ["time_ns", "device", "pid", "name", "sm_util_pct", "is_target"]
    rows = newest.table("gpu_process", columns=columns)
    if rows.num_rows == 0:
        return []
    last = pc.max(rows["time_ns"]).as_py()
    rows = rows.filter(pc.greater_equal(rows["time_ns"], last - _SECOND_NS))
    found = {
        (row["device"], row["pid"]): Neighbour(
            row["pid"],
            row["name"] or "?",
            f"GPU {row['device']}",
            None if row["sm_util_pct"] is None else row["sm_util_pct"] / 100,
        )
        for row in rows.to_pylist()
        if not row["is_target"]
    }
    return sorted(found.values(), key=lambda item: -(item.share or 0.0))


def _on_cpus(facts: Facts) -> list[Neighbour]:
    """Tasks that held a CPU for which a launching thread waited, with the share of the stretch."""
    absences = facts.absences
    if absences is None or len(absences) == 0:
        return []
    launching = [launcher.tid for launcher in facts.launchers.values()]
    own = absences.pick(np.isin(absences.tid, launching))
    waited = np.bincount(own.culprit, weights=own.end - own.ready, minlength=len(absences.culprits))
    length = max(facts.end_ns - facts.start_ns, 1)
    by_name: dict[str, dict[int | None, float]] = {}
    for index in np.flatnonzero(waited / length >= _LEAST_WAIT).tolist():
        pid, tid, name = absences.culprits[index]
        if tid != 0:
            pids = by_name.setdefault(name or "?", {})
            pids[pid] = pids.get(pid, 0.0) + float(waited[index]) / length
    found = [
        Neighbour(
            max(pids, key=lambda pid: pids[pid]), name, "CPU", sum(pids.values()), len(pids) - 1
        )
        for name, pids in by_name.items()
    ]
    return sorted(found, key=lambda item: -(item.share or 0.0))
