"""Memory that grows over hours: a leak that nothing follows, or a pool that latency follows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import engine as words
from analysis import quantiles, trend
from analysis.causes.declaration import Cause, Needs
from analysis.causes.flat_clock import clock_changes, why_not_flat
from analysis.engine import EngineSeries
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LEAK = "memory.host_leak"
POOL = "kv.pool_growth"

#: Growth that matters: a share of the memory at the begin, and bytes.
GROWTH_SHARE = 0.03
GROWTH_BYTES = 32 << 20
#: Growth of the second half against the first: a pool that fills up slows down, a leak does not.
GOES_ON = 0.5
#: A block counts as idle with less than this of the usual requests, and may grow by at most this
#: of what a usual block does.
IDLE = 0.05
IDLE_GROWTH = 0.25
N_IDLE = 2
#: Latency follows the memory from this rank correlation and rise on.
FOLLOWS = 0.8
LATENCY_RISE = 1.3
#: Requests that a 95th percentile needs.
N_P95 = 20
#: Load is alike within this from the first to the last third.
ALIKE = (0.75, 1.33)


@dataclass(frozen=True)
class _Growth:
    """Resident anonymous memory of one process by block, bytes, and how it grew."""

    pid: int
    memory: Floats

    @property
    def total(self) -> float:
        known = self.memory[np.isfinite(self.memory)]
        return float(known[-1] - known[0]) if len(known) else 0.0

    @property
    def is_growing(self) -> bool:
        both = trend.ends(self.memory)
        if both is None or both[1] <= both[0]:
            return False
        least = max(GROWTH_BYTES, GROWTH_SHARE * both[0])
        return both[1] - both[0] >= least and trend.is_steady(self.memory)


def _goes_on(growth: _Growth, requests: Floats | None) -> bool:
    """Whether memory grew in the second half of the time with requests much like in the first; the
    first tenth is warm-up.
    """
    steps = np.diff(growth.memory)
    known = np.isfinite(steps)
    if requests is not None and np.nansum(requests) > 0:
        asked = np.nan_to_num(requests[1:] + requests[:-1]) / 2
        busy = known & (asked > IDLE * np.median(asked[asked > 0]))
        known = busy if busy.sum() >= trend.N_KNOWN else known
    grown = steps[known]
    grown = grown[len(grown) // 10 :]
    middle = len(grown) // 2
    return bool(grown[middle:].sum() >= GOES_ON * grown[:middle].sum())


def find_leak(facts: Facts) -> Finding:
    """Return whether a process keeps memory of every request."""
    edges = trend.blocks(facts.start_ns, facts.end_ns)
    if edges is None:
        return _too_short(LEAK)
    finding = Finding(LEAK, Status.NOT_FOUND, confidence=0.85)
    grown = [item for item in _growths(facts, edges) if item.is_growing]
    if not grown:
        finding.excluded.append(Exclusion(LEAK, "no process grew steadily"))
        return finding
    worst = max(grown, key=lambda item: item.total)
    hours = (int(edges[-1]) - int(edges[0])) / 3.6e12
    name = facts.process_name(worst.pid) or "a process"
    finding.where = Where(worst.pid, process=facts.process_name(worst.pid))
    finding.start_ns, finding.end_ns = facts.start_ns, facts.end_ns
    n = int(np.isfinite(worst.memory).sum())
    finding.evidence = [
        Evidence("anonymous_growth", round(worst.total), "bytes", n, "process_sample"),
        Evidence("per_hour", round(worst.total / hours), "bytes/h", n, "process_sample"),
    ]
    requests = _requests(facts.engine, edges)
    if not _goes_on(worst, requests):
        finding.excluded.append(
            Exclusion(LEAK, f"{name} (pid {worst.pid}) grew and then hardly more: a pool or cache")
        )
        return finding
    text = (
        f"{name} (pid {worst.pid}) keeps {worst.total / hours / (1 << 20):.0f} MiB more each hour"
    )
    if requests is None or not np.nansum(requests):
        return _undecided(
            finding,
            f"{text}, but nothing tells how many requests it served: a cache that is not full yet "
            "looks the same",
            "the engine's metrics (--engine URL), over hours",
        )
    each = worst.total / float(np.nansum(requests))
    finding.evidence.append(
        Evidence("per_request", round(each), "bytes", round(float(np.nansum(requests))), "")
    )
    idle = _idle_growth(worst.memory, requests)
    if idle is not None:
        finding.evidence.append(
            Evidence("growth_when_idle", round(idle[0], 2), "ratio", idle[1], "process_sample")
        )
        if idle[0] > IDLE_GROWTH:
            return _undecided(
                finding,
                f"{text}, also while it served nothing: it is not a matter of requests",
                "what that process does when idle",
            )
    follows = _latency_follows(facts, edges, worst)
    if follows is not None and follows[0] >= FOLLOWS and follows[2] >= LATENCY_RISE:
        finding.excluded.append(Exclusion(LEAK, f"the time to first token follows it ({POOL})"))
        return finding
    finding.status = Status.FOUND
    finding.confidence = (0.9 if idle is not None else 0.75) * facts.trust("process")
    finding.summary = (
        f"{text}, {each:.0f} bytes a request"
        + (", and nothing while idle" if idle is not None else "")
        + ". It will run out of memory; latency does not follow it."
    )
    finding.excluded.append(Exclusion(POOL, "the growth goes on, and latency does not follow it"))
    return finding


def find_pool_growth(facts: Facts) -> Finding:
    """Return whether the time to first token follows the memory of a process over hours."""
    edges = trend.blocks(facts.start_ns, facts.end_ns)
    if edges is None:
        return _too_short(POOL)
    finding = Finding(POOL, Status.NOT_FOUND, confidence=0.8)
    grown = [item for item in _growths(facts, edges) if item.is_growing]
    if not grown:
        finding.excluded.append(Exclusion(POOL, "no process grew steadily"))
        return finding
    worst = max(grown, key=lambda item: item.total)
    follows = _latency_follows(facts, edges, worst)
    finding.where = Where(worst.pid, process=facts.process_name(worst.pid))
    if follows is None:
        finding.excluded.append(
            Exclusion(POOL, "the times to first token are not in the recording for long enough")
        )
        return finding
    correlation, n, rise = follows
    finding.start_ns, finding.end_ns = facts.start_ns, facts.end_ns
    finding.evidence = [
        Evidence("anonymous_growth", round(worst.total), "bytes", n, "process_sample"),
        Evidence("ttft_p95_rise", round(rise, 2), "ratio", n, "engine_sample"),
        Evidence("rank_correlation", round(correlation, 2), "", n, ""),
    ]
    if correlation < FOLLOWS or rise < LATENCY_RISE:
        finding.excluded.append(
            Exclusion(
                POOL,
                f"the time to first token rose {rise:.2f} times and follows the memory by "
                f"{correlation:.2f} only",
            )
        )
        return finding
    finding.lost_share = min(1 - 1 / rise, 1.0) / 2
    finding.lost_ns = int(finding.lost_share * facts.demand_ns)
    load = _load_change(facts.engine, edges)
    text = (
        f"memory of {facts.process_name(worst.pid) or 'a process'} (pid {worst.pid}) grew by "
        f"{worst.total / (1 << 20):.0f} MiB and the 95th percentile of the time to first token "
        f"{rise:.1f} times with it"
    )
    if load is None or not ALIKE[0] <= load <= ALIKE[1]:
        return _undecided(
            finding,
            f"{text}, but "
            + ("nothing tells the load" if load is None else f"arrivals changed {load:.2f} times"),
            "the same over hours at like load",
        )
    engine = facts.engine
    preempted = engine.counter(words.PREEMPTIONS) if engine is not None else None
    if preempted is not None and float(preempted.increase().sum()) >= 3:
        return _undecided(
            finding,
            f"{text}, but requests were preempted as well",
            "a recording without preemption",
        )
    why = why_not_flat(clock_changes(facts, edges))
    if why:
        return _undecided(
            finding, f"{text}, but {why}", "the clocks of the GPU (NVML) over the same hours"
        )
    finding.status = Status.FOUND
    finding.confidence = 0.8 * facts.trust("process", "engine")
    finding.summary = f"{text[0].upper()}{text[1:]}, at like load."
    return finding


def _too_short(cause: str) -> Finding:
    return Finding(
        cause,
        Status.NOT_APPLICABLE,
        undecided_because="the recording is too short to tell a drift; record for hours: "
        "tracer record --pid PID --duration 6h",
    )


def _undecided(finding: Finding, because: str, settled_by: str) -> Finding:
    finding.status, finding.confidence = Status.UNDECIDED, 0.45
    finding.undecided_because, finding.settled_by = because, settled_by
    return finding


def _growths(facts: Facts, edges: Ints) -> list[_Growth]:
    columns = ("time_ns", "pid", "rss_anon_bytes")
    rows = facts.session.table("process_sample", columns=columns).to_pandas().dropna()
    result = []
    for pid, own in rows.groupby("pid"):
        time = own["time_ns"].to_numpy(dtype=np.int64)
        value = own["rss_anon_bytes"].to_numpy(dtype=float)
        result.append(_Growth(int(pid), trend.level(time, value, edges)))
    return result


def _requests(engine: EngineSeries | None, edges: Ints) -> Floats | None:
    """Requests that ended in each block."""
    if engine is None:
        return None
    series = engine.counter(words.FINISHED) or engine.series(words.TTFT, "count")
    if series is None:
        return None
    return series.between(np.clip(edges, int(series.time[0]), int(series.time[-1])))


def _idle_growth(memory: Floats, requests: Floats) -> tuple[float, int] | None:
    """Growth of a block without requests against one with them; None without idle blocks."""
    steps = np.diff(memory)
    asked = (requests[1:] + requests[:-1]) / 2
    known = np.isfinite(steps) & np.isfinite(asked)
    usual = quantiles.median(asked[known])
    if usual is None or usual <= 0:
        return None
    idle = known & (asked <= IDLE * usual)
    busy = known & (asked > usual / 2)
    if idle.sum() < N_IDLE or busy.sum() < N_IDLE:
        return None
    level = float(np.mean(steps[busy]))
    return float(np.mean(steps[idle])) / level if level > 0 else 1.0, int(idle.sum())


def _latency_follows(facts: Facts, edges: Ints, growth: _Growth) -> tuple[float, int, float] | None:
    """Rank correlation of the p95 of the time to first token with the memory, over how many
    blocks, and by how much it rose.
    """
    engine = facts.engine
    if engine is None:
        return None
    held = np.clip(edges, int(engine.time[0]), int(engine.time[-1]))
    told = engine.buckets(words.TTFT, held)
    p95 = engine.mean(words.TTFT, held) if told is None else told.quantile(0.95, N_P95)
    if p95 is None:
        return None
    alike, rise = trend.rank_correlation(p95, growth.memory), trend.ratio(p95)
    if alike is None or rise is None:
        return None
    return alike[0], alike[1], rise


def _load_change(engine: EngineSeries | None, edges: Ints) -> float | None:
    requests = _requests(engine, edges)
    return None if requests is None else trend.ratio(requests)


CAUSES = (
    Cause(
        LEAK,
        "resident memory grows without bound",
        "A process keeps memory of every request.",
        "Anonymous memory rises steadily and without slowing, per request, and not when idle.",
        "A pool that grows and then stays; page cache.",
        "Record for hours: tracer record --pid PID --engine URL --duration 6h.",
        "Find the container that is never emptied; restart before memory runs out.",
        Needs(("process_sample",), optional=("engine_sample",)),
        find_leak,
    ),
    Cause(
        POOL,
        "latency follows a growing pool",
        "A pool grows over hours and latency with it.",
        "Resident memory rises steadily and the 95th percentile of the time to first token "
        "follows it, at like load, without preemption and at flat clocks.",
        "A leak: latency does not follow it; more load; clocks that fall over the same hours.",
        "Record for hours with --engine URL.",
        "Bound the pool.",
        Needs(("process_sample", "engine_sample"), optional=("gpu_sample",)),
        find_pool_growth,
    ),
)
