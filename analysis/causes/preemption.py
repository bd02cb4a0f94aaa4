"""The cache of keys and values is full: requests are evicted and computed again."""

from __future__ import annotations

import itertools

import numpy as np

from analysis import engine as words
from analysis import quantiles, trend
from analysis.causes.declaration import Cause, Needs
from analysis.causes.engine_load import KV_FULL, Flags, Floats, Load, load_windows
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status
from analysis.severity import MATERIAL_SHARE, Severity, assess

PREEMPTION = "kv.preemption"

#: Windows that the analysis needs, and that a level to compare with needs.
N_WINDOWS = 3
#: Preemptions that make a pattern rather than an accident.
N_PREEMPTED = 3
#: Share of the windows with preemptions in which the cache must be seen full: it is emptied by the
#: preemption itself, so a scrape may miss the peak.
FULL_SHARE = 0.5
#: A cache that stays full between two preemptions this close is one episode, ns.
NEAR_NS = 20_000_000_000
#: Rise of the time between tokens in the windows with preemptions, or fall of the tokens, that
#: shows that they cost something.
EFFECT = 1.15
#: Nothing that only slows a device down makes tokens take so many times as long.
SLOWEST = 10.0
#: Over hours the time between tokens follows the evictions from this rank correlation on.
FOLLOWS = 0.8


def find_preemption(facts: Facts) -> Finding:
    """Return whether requests were evicted from a full cache and computed again."""
    load = load_windows(facts.engine, N_WINDOWS) if facts.engine is not None else None
    if load is None or not np.isfinite(load.preempted).any():
        return Finding(
            PREEMPTION,
            Status.NOT_APPLICABLE,
            undecided_because="the engine's preemptions, running and waiting requests are not in "
            "the recording for long enough; record with --engine URL",
        )
    is_hit = np.nan_to_num(load.preempted) > 0
    n = float(np.nansum(load.preempted))
    severity = assess(load.spans(is_hit), facts.demand)
    if n >= N_PREEMPTED and severity.share < 2 * MATERIAL_SHARE:
        # Few and far between: what matters is the episode, not the seconds of the evictions.
        is_hit = _while_evicting(load)
        severity = assess(load.spans(is_hit), facts.demand)
    finding = Finding(PREEMPTION, Status.NOT_FOUND, confidence=0.9)
    if n < N_PREEMPTED or not severity.is_material:
        highest = None if load.kv_usage is None else float(load.kv_usage.max())
        full = "" if highest is None else f"; the cache was at most {100 * highest:.0f} % full"
        finding.excluded.append(
            Exclusion(PREEMPTION, f"{n:.0f} requests were preempted{full}, which alone costs none")
        )
        return finding
    _measure(facts, load, is_hit, severity, finding)
    return finding


def _measure(facts: Facts, load: Load, is_hit: Flags, severity: Severity, finding: Finding) -> None:
    """Fill in what the preemptions cost, and decide."""
    n = float(np.nansum(load.preempted))
    n_hit = int(is_hit.sum())
    seconds = float(load.length_ns[_between(load, severity)].sum()) / 1e9
    finding.start_ns, finding.end_ns = severity.start_ns, severity.end_ns
    finding.evidence = [
        Evidence("preemptions", int(n), "requests", n_hit, "engine_sample"),
        Evidence("preemption_rate", round(n / max(seconds, 1e-9), 2), "1/s", n_hit, ""),
    ]
    full = None
    if load.kv_usage is not None:
        full = float((load.kv_usage[is_hit] >= KV_FULL).mean())
        top = quantiles.median(load.kv_usage[is_hit]) or 0.0
        finding.evidence += [
            Evidence("kv_usage_at_preemption_p50", round(100 * top, 1), "%", n_hit, ""),
            Evidence("preempted_at_full_kv", round(100 * full, 1), "%", n_hit, ""),
        ]
    again = _recomputed(facts, load, is_hit)
    work = float(np.nansum(load.prompts)) + float(np.nansum(load.generated))
    if again is not None:
        finding.evidence += [
            Evidence("recomputed_tokens", int(again.sum()), "tokens", int(n), "engine_sample"),
            Evidence(
                "recomputed_per_new_token", round(again.sum() / max(work, 1.0), 2), "ratio", None
            ),
        ]
    effect = _effect(load, is_hit, finding)
    # Without a level to compare with, the work done twice is the share of the time.
    part = np.where(is_hit, 1.0 - 1.0 / effect, 0.0) if effect is not None else None
    if part is None and again is not None:
        new = np.nan_to_num(load.prompts) + np.nan_to_num(load.generated)
        part = np.where(is_hit, again / np.maximum(again + new, 1.0), 0.0)
    if part is not None:
        lost = float((np.clip(part, 0.0, 1.0) * load.length_ns).sum())
        finding.lost_ns = int(min(lost, severity.lost_ns))
        finding.lost_share = finding.lost_ns / facts.demand_ns
    repeated = 0.0 if again is None else float(again.sum()) / max(work, 1.0)
    _decide(facts, load, is_hit, finding, n, full, effect, repeated)


def _decide(
    facts: Facts,
    load: Load,
    is_hit: Flags,
    finding: Finding,
    n: float,
    full: float | None,
    effect: float | None,
    repeated: float,
) -> None:
    if full is None or full < FULL_SHARE:
        finding.status, finding.confidence = Status.UNDECIDED, 0.4
        finding.undecided_because = f"{n:.0f} requests were preempted, but " + (
            "the use of the cache is not exposed"
            if full is None
            else f"the cache was seen full in {100 * full:.0f} % of those seconds only"
        )
        finding.settled_by = "scrapes more often than once a second, with the use of the KV cache"
        return
    if effect is not None and effect < EFFECT and repeated < MATERIAL_SHARE:
        if _suspect_growing(facts, load, finding, n):
            return
        finding.excluded.append(
            Exclusion(
                PREEMPTION,
                f"tokens came as fast with preemptions as without, and {100 * repeated:.0f} % of "
                "the tokens were computed again",
            )
        )
        finding.lost_ns, finding.lost_share = 0, 0.0
        return
    if effect is None and repeated < MATERIAL_SHARE:
        finding.status, finding.confidence = Status.UNDECIDED, 0.4
        finding.undecided_because = (
            f"{n:.0f} requests were preempted from a full cache, but there is no second of the "
            "same load without to compare with"
        )
        return
    is_shown = effect is not None and effect >= EFFECT
    if effect is not None and effect < SLOWEST and repeated < MATERIAL_SHARE:
        free = int((_like(load, is_hit) & _among(is_hit)).sum())
        if free < N_WINDOWS:
            finding.status, finding.confidence = Status.UNDECIDED, 0.5
            finding.undecided_because = (
                f"{n:.0f} requests were preempted from a full cache and tokens took {effect:.1f} "
                f"times as long meanwhile, but in all that time {free} windows were without: a "
                "device that became slower then (a lowered clock, another process on it, longer "
                "contexts) looks the same, and how many tokens were computed again is not exposed"
            )
            finding.settled_by = (
                "the size of the KV pool, and the clocks of the GPU and its processes (NVML)"
            )
            return
    finding.status = Status.FOUND
    finding.confidence = (0.92 if is_shown else 0.75) * facts.trust("engine")
    finding.spans = load.spans(is_hit)
    told = {item.name: item.value for item in finding.evidence}
    finding.summary = (
        f"The KV cache was full: {n:.0f} requests were evicted "
        f"({told['preemption_rate']} per second)"
        + (
            f" and about {told['recomputed_tokens']} tokens computed again"
            if "recomputed_tokens" in told
            else ""
        )
        + (f"; tokens took {effect:.1f} times as long meanwhile." if is_shown else ".")
    )
    finding.excluded.append(
        Exclusion("prefill.hogging", "prompts were computed again, beyond those that arrived")
    )


def _suspect_growing(facts: Facts, load: Load, finding: Finding, n: float) -> bool:
    """Fill in that over hours tokens became slower with the evictions; return whether that is so:
    a mean over all of the time hides what the last hours cost.
    """
    edges = trend.blocks(int(load.edges[0]), int(load.edges[-1]))
    if edges is None:
        return False
    at = np.searchsorted(edges, load.edges[:-1], side="right") - 1
    blocks = [at == index for index in range(len(edges) - 1)]
    gaps = np.array([(load.token_gap(block) or (np.nan, 0))[0] for block in blocks])
    rates = np.array([float(np.nansum(load.preempted[block])) for block in blocks])
    alike, rise = trend.rank_correlation(gaps, rates), trend.ratio(gaps)
    if alike is None or rise is None or alike[0] < FOLLOWS or not trend.is_steady(gaps):
        return False
    if 1 - 1 / rise < MATERIAL_SHARE:
        return False
    finding.evidence += [
        Evidence("inter_token_rise", round(rise, 2), "ratio", alike[1], "engine_sample"),
        Evidence("rank_correlation", round(alike[0], 2), "", alike[1], "engine_sample"),
    ]
    finding.lost_share = (1 - 1 / rise) / 2
    finding.lost_ns = int(finding.lost_share * facts.demand_ns)
    finding.status, finding.confidence = Status.UNDECIDED, 0.5
    finding.undecided_because = (
        f"{n:.0f} requests were preempted from a full cache, and tokens took {rise:.2f} times as "
        "long in the last third as in the first, following the evictions; contexts that get longer "
        "look the same, and how many tokens were computed again is not exposed"
    )
    finding.settled_by = (
        "the size of the pool, prompt tokens computed, and the same load with fewer requests"
    )
    return True


def _while_evicting(load: Load) -> Flags:
    """Windows with a preemption, and those between two where the cache stays full: what was
    evicted is computed again meanwhile.
    """
    is_hit: Flags = np.nan_to_num(load.preempted) > 0
    if load.kv_usage is None:
        return is_hit
    hits = np.flatnonzero(is_hit)
    result = is_hit.copy()
    for before, after in itertools.pairwise(hits.tolist()):
        between = slice(before + 1, after)
        is_near = load.edges[after] - load.edges[before] <= NEAR_NS
        if is_near and bool((load.kv_usage[between] >= KV_FULL).all()):
            result[between] = True
    return result


def _between(load: Load, severity: Severity) -> Flags:
    """Windows between the first and the last that a cause hit."""
    result: Flags = (load.edges[1:] > severity.start_ns) & (load.edges[:-1] < severity.end_ns)
    return result


def _recomputed(facts: Facts, load: Load, is_hit: Flags) -> Floats | None:
    """Tokens computed again in each window: preempted requests times what a request held."""
    assert facts.engine is not None
    pool = facts.engine.gauge(words.KV_POOL)
    if pool is None or load.kv_usage is None or pool.value.max() <= 0:
        return None
    held = load.kv_usage * float(pool.value.max()) / np.maximum(load.running, 1.0)
    result: Floats = np.where(is_hit, np.nan_to_num(load.preempted) * held, 0.0)
    return result


def _like(load: Load, is_hit: Flags) -> Flags:
    """Windows to compare with: a batch of about that size or larger (which makes tokens no faster),
    and nobody preempted or just back.
    """
    usual_running = quantiles.median(load.running[is_hit]) or 1.0
    near = is_hit | np.append(is_hit[1:], False)
    result: Flags = ~near & (load.running >= usual_running / 2)
    return result


def _among(is_hit: Flags) -> Flags:
    """Windows between the first and the last with a preemption."""
    rows = np.flatnonzero(is_hit)
    result: Flags = np.zeros(len(is_hit), dtype=bool)
    result[rows[0] : rows[-1] + 1] = True
    return result


def _effect(load: Load, is_hit: Flags, finding: Finding) -> float | None:
    """How many times longer a token took with preemptions than in like windows without."""
    is_like = _like(load, is_hit)
    if is_like.sum() < N_WINDOWS:
        return None
    hit, like = load.token_gap(is_hit), load.token_gap(is_like)
    if hit is None or like is None or like[0] <= 0:
        return None
    effect = hit[0] / like[0]
    finding.evidence += [
        Evidence("inter_token_without", round(1e3 * like[0], 2), "ms", like[1], "engine_sample"),
        Evidence("inter_token_with", round(1e3 * hit[0], 2), "ms", hit[1], "engine_sample"),
    ]
    return effect


CAUSES = (
    Cause(
        PREEMPTION,
        "the KV cache is full and requests are computed again",
        "Requests are evicted and recomputed.",
        "Preemptions per second while the KV cache is near full, tokens computed again beyond "
        "those that arrived, and tokens that take longer meanwhile; a full cache alone is no "
        "cause.",
        "Prefill hogging; a device that becomes slower when the evictions begin.",
        "Record the engine's metrics: tracer record --pid PID --engine URL.",
        "Lower concurrency, raise the pool, or shorten contexts.",
        Needs(("engine_sample",)),
        find_preemption,
    ),
)
