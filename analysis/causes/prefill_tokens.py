"""Prompts that hold up tokens, told by the engine: tokens per second, and the time between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import engine as words
from analysis import intervals, quantiles
from analysis.causes.prefill_steps import HOGGING, LONG_STEP, N_STEPS, by_steps, where
from analysis.causes.prompt_dose import DOSE, more_prompts, tokens_despite_prompts, was_paused
from analysis.engine import EngineSeries, gauge_at
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status
from analysis.severity import MATERIAL_SHARE, assess

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: are its upper quarter: a service that is hogged for half of the time still shows them.
HELD_SHARE = 0.5
GOOD_QUANTILE = 0.75
#: Rise of the time between tokens that the held-up seconds must show.
TOKEN_RISE = 2.0
#: Prompts that must come in a held-up second or the next, against the good seconds.
PROMPT_RISE = 3.0
#: Requests that must run: one prefilling alone keeps nobody waiting.
RUNNING = 2.0
#: suspected though there is no good second to compare with.
PROMPT_HEAVY = 10.0
#: Share of a window that its requests must have waited for a token beyond such steps.
WAIT_SHARE = 0.1
#: weight once, which lasts as long as some 150 to 300 tokens' arithmetic; a third is asked for.
PROMPT_PER_STEP = 50.0
#: Windows that a reference level needs.
N_WINDOWS = 3
#: Scrapes closer than this are taken together, ns.
_WINDOW_NS = 900_000_000


@dataclass(frozen=True)
class Tokens:
    """Rates per window from the engine: tokens/s, requests, seconds."""

    edges: Ints
    prompt: Floats
    generated: Floats
    running: Floats
    gap_seconds: Floats | None
    n_gaps: Floats
    preempted: Floats

    def between(self, windows: npt.NDArray[np.bool_]) -> tuple[float, int] | None:
        """Mean time between tokens over some windows in s, and their tokens."""
        if self.gap_seconds is None:
            return None
        known = windows & np.isfinite(self.gap_seconds) & np.isfinite(self.n_gaps)
        n = float(self.n_gaps[known].sum())
        return (float(self.gap_seconds[known].sum()) / n, int(n)) if n > 0 else None


def load_tokens(engine: EngineSeries) -> Tokens | None:
    """Return the rates from scrape to scrape, None where the engine does not tell them in time."""
    prompt = engine.counter(words.PROMPT_TOKENS)
    generated = engine.counter(words.GENERATION_TOKENS)
    running = engine.gauge(words.RUNNING)
    if prompt is None or generated is None or running is None or generated.is_lagging:
        return None
    if len(engine.time) < N_WINDOWS + 2:
        return None
    # Counters are exact at the scrapes: windows run from scrape to scrape.
    index = (engine.time - engine.time[0]) // _WINDOW_NS
    edges = engine.time[np.flatnonzero(np.diff(index, prepend=-1) > 0)]
    if len(edges) < N_WINDOWS + 1:
        return None
    seconds = np.diff(edges) / 1e9
    preempted = engine.counter(words.PREEMPTIONS)
    gaps = engine.series(words.INTER_TOKEN, "sum")
    n_gaps = engine.series(words.INTER_TOKEN, "count")
    return Tokens(
        edges,
        prompt.between(edges) / seconds,
        generated.between(edges) / seconds,
        np.maximum(gauge_at(running, edges[1:]), gauge_at(running, edges[:-1])),
        None if gaps is None or n_gaps is None else gaps.between(edges),
        np.zeros(len(seconds)) if n_gaps is None else n_gaps.between(edges),
        np.zeros(len(seconds)) if preempted is None else preempted.between(edges),
    )


def _by_waits(facts: Facts, tokens: Tokens, is_batch: npt.NDArray[np.bool_]) -> Finding | None:
    """Few tokens that wait long, beside prompts that take that long to compute.

    Tells prompts that stand between decodes for parts of a second, whatever the scrapes' distance.
    None where the waits cost nothing material or the prompts do not account for them.
    """
    assert facts.engine is not None
    buckets = facts.engine.buckets(words.INTER_TOKEN, tokens.edges)
    usual = None if buckets is None else buckets.median_bound(is_batch)
    if buckets is None or usual is None or usual[1] < N_WINDOWS * N_STEPS:
        return None
    lower = buckets.bounds[:-1]
    is_long = lower >= LONG_STEP * usual[0]
    waits = np.where(is_batch, buckets.counts[:, is_long].sum(axis=1), 0.0)
    # Each counts as its bucket's lower bound, for every request that ran: less than the truth.
    waited = buckets.counts[:, is_long] @ lower[is_long] / np.maximum(tokens.running, 1.0)
    waited = np.where(is_batch, waited, 0.0)
    seconds = np.diff(tokens.edges) / 1e9
    is_held = (waited >= WAIT_SHARE * seconds) & (waits >= RUNNING)
    is_held |= np.append(is_held[1:], False) & is_batch & (tokens.generated < waits)
    spans = intervals.union(intervals.make(tokens.edges[:-1][is_held], tokens.edges[1:][is_held]))
    severity = assess(spans, facts.demand)
    lost_ns = int(min(1e9 * waited[is_held].sum(), severity.lost_ns))
    share = lost_ns / facts.demand_ns
    near = is_held | np.append(is_held[1:], False) | _after(is_held)
    prompts = float(np.nansum((tokens.prompt * seconds)[near]))
    n_steps = waited[is_held].sum() / usual[0]
    if share < MATERIAL_SHARE or prompts < PROMPT_PER_STEP * n_steps:
        return None
    if float(np.nansum(tokens.preempted[near])) >= 1:
        return None
    if was_paused(facts, tokens.edges, near, 0.5 * LONG_STEP * usual[0], lost_ns):
        return None
    more = more_prompts(tokens.prompt, is_held, near, is_batch)
    if more is not None and more < DOSE and not facts.processes:
        return None  # as many prompts come in seconds in which no token waits
    n_waits = int(waits[is_held].sum())
    finding = Finding(
        HOGGING,
        Status.FOUND,
        confidence=0.85 * facts.trust("engine"),
        where=where(facts),
        spans=spans,
        start_ns=severity.start_ns,
        end_ns=severity.end_ns,
        lost_ns=lost_ns,
        lost_share=share,
        evidence=[
            Evidence("inter_token_p50_at_most", usual[0], "s", usual[1], "engine_sample"),
            Evidence(
                "tokens_that_waited", n_waits, "tokens", int(buckets.counts.sum()), "engine_sample"
            ),
            Evidence("waited", round(1e9 * float(waited[is_held].sum())), "ns", n_waits, ""),
            Evidence("prompts_meanwhile", round(prompts), "tokens", int(near.sum()), "engine"),
        ],
        excluded=[
            Exclusion("kv.preemption", "no request was preempted meanwhile"),
            Exclusion("hang.kernel", "tokens and prompts went on"),
        ],
        summary=f"Prompts held the device: half of the tokens came within {1e3 * usual[0]:.0f} ms "
        f"of the one before, but {n_waits} waited at least {LONG_STEP:.0f} times that, for "
        f"{100 * share:.0f} % of the time with demand, beside {prompts:.0f} tokens of prompts.",
    )
    if more is None and not facts.processes:
        finding.status, finding.confidence, finding.spans = Status.UNDECIDED, 0.45, intervals.EMPTY
        finding.undecided_because = (
            f"{n_waits} tokens waited long beside prompts, but both come in every second: pauses "
            "of the host look the same"
        )
        finding.settled_by = "cuda_call: tracer record --pid PID as root"
    return finding


@dataclass(frozen=True)
class _Level:
    """What undisturbed decodes do: tokens/s, and where it is told by them alone, the mean time
    between tokens in s with their number.
    """

    rate: float
    gap: tuple[float, int] | None = None


def by_tokens(facts: Facts, tokens: Tokens) -> Finding:
    """Return whether prompts held up the tokens, by the rates of the engine."""
    is_known = np.isfinite(tokens.generated) & np.isfinite(tokens.prompt)
    is_batch = is_known & (tokens.running >= RUNNING)
    good = quantiles.quantile(tokens.generated[is_batch], GOOD_QUANTILE)
    finding = _against(facts, tokens, is_batch, _Level(0.0 if good is None else good.value))
    if finding.status is Status.NOT_FOUND:
        # Hogged all the time, no whole second is good, but the tokens between two prompts are.
        for level in (
            _between_prompts(facts.engine, tokens, is_batch),
            _without_prompts(tokens, is_batch),
        ):
            if level is not None:
                second = _against(facts, tokens, is_batch, level)
                if second.status is not Status.NOT_FOUND:
                    return second
        by_waits = _by_waits(facts, tokens, is_batch)
        if by_waits is not None:
            return by_waits
    return finding


def _without_prompts(tokens: Tokens, is_batch: npt.NDArray[np.bool_]) -> _Level | None:
    """The level of the seconds in which, and after which, no prompt was computed at all."""
    none = np.nan_to_num(tokens.prompt) <= 0
    quiet = is_batch & none & np.append(none[1:], True) & (np.nan_to_num(tokens.generated) > 0)
    rate = quantiles.median(tokens.generated[quiet])
    return _Level(rate) if rate is not None and quiet.sum() >= 2 * N_WINDOWS else None


def _between_prompts(
    engine: EngineSeries | None, tokens: Tokens, is_batch: npt.NDArray[np.bool_]
) -> _Level | None:
    """The level that the usual time between tokens shows.

    Most tokens of a hogged engine still follow the one before after one decode step: few tokens
    wait long. So the histogram's median bounds the step where it is exposed; else the seconds with
    the shortest mean do.
    """
    if engine is None or tokens.gap_seconds is None or is_batch.sum() < N_WINDOWS:
        return None
    running = quantiles.median(tokens.running[is_batch])
    assert running is not None
    found = []
    buckets = engine.buckets(words.INTER_TOKEN, tokens.edges)
    usual = None if buckets is None else buckets.median_bound(is_batch)
    if usual is not None and usual[1] >= N_WINDOWS * N_STEPS and usual[0] > 0:
        found.append(usual)
    n = np.nan_to_num(tokens.n_gaps)
    rows = np.flatnonzero(is_batch & (n >= N_STEPS) & (np.nan_to_num(tokens.gap_seconds) > 0))
    if len(rows) >= N_WINDOWS:
        gaps = tokens.gap_seconds[rows] / n[rows]
        order = np.argsort(gaps)[:N_WINDOWS]
        found.append((float(gaps[order[-1]]), int(n[rows[order]].sum())))
    if not found:
        return None
    gap = min(found)
    return _Level(running / gap[0], gap)


def _against(
    facts: Facts, tokens: Tokens, is_batch: npt.NDArray[np.bool_], level: _Level
) -> Finding:
    finding = Finding(HOGGING, Status.NOT_FOUND, confidence=0.85, where=where(facts))
    if is_batch.sum() < N_WINDOWS:
        return finding
    reference = level.rate
    prompt = np.nan_to_num(np.where(np.isfinite(tokens.generated), tokens.prompt, 0.0))
    quiet = is_batch & (tokens.generated >= GOOD_QUANTILE * reference)
    if reference <= 0 and prompt.sum() <= 0:
        return finding
    if reference <= 0 or _is_prompt_heavy(prompt, tokens.generated, is_batch):
        return _no_reference(facts, finding, tokens, is_batch)
    # Prompts are counted when their first token comes, so a prefill shows at its end: a window
    # holds prompts when they come in it or in the next one, and those that are counted just after
    # a low window tell nothing of the usual prompts.
    soon = np.maximum(prompt, np.append(prompt[1:], 0.0))
    # Fewer requests get fewer tokens together: each of them has to get fewer.
    speed = tokens.generated / np.maximum(tokens.running, 1.0)
    usual_speed = quantiles.median(speed[quiet])
    if usual_speed is None:
        usual_speed = reference / (quantiles.median(tokens.running[is_batch]) or 1.0)
    is_low = is_batch & (tokens.generated < HELD_SHARE * reference)
    is_low &= speed < HELD_SHARE * usual_speed
    usual_prompt = quantiles.median(prompt[quiet & ~_after(is_low)]) or 0.0
    has_prompts = soon >= max(PROMPT_RISE * usual_prompt, reference)
    is_held = is_low & has_prompts
    if level.gap is not None:
        is_held &= soon > PROMPT_HEAVY * tokens.generated
    part = np.where(is_held, 1 - tokens.generated / reference, 0.0)
    spans = intervals.union(intervals.make(tokens.edges[:-1][is_held], tokens.edges[1:][is_held]))
    severity = assess(spans, facts.demand)
    lost = float((part * np.diff(tokens.edges))[is_held].sum())
    finding.lost_ns = int(min(lost, severity.lost_ns))
    finding.lost_share = finding.lost_ns / facts.demand_ns
    finding.start_ns, finding.end_ns = severity.start_ns, severity.end_ns
    n_held = int(is_held.sum())
    n_usual = int(quiet.sum()) if level.gap is None else level.gap[1]
    finding.evidence = [
        Evidence("generation_usual", round(reference, 1), "tokens/s", n_usual, "engine"),
    ]
    if n_held:
        finding.evidence += [
            Evidence(
                "generation_held",
                round(float(tokens.generated[is_held].mean()), 1),
                "tokens/s",
                n_held,
                "engine",
            ),
            Evidence(
                "prompts_meanwhile", round(float(soon[is_held].mean()), 1), "tokens/s", n_held, ""
            ),
            Evidence(
                "running", round(float(tokens.running[is_held].mean()), 1), "requests", n_held
            ),
        ]
    # A token that waited out the burst comes in the window after it.
    near = is_held | _after(is_held)
    usual = level.gap or tokens.between(quiet & ~near)
    late = max(
        (mean for mean in (tokens.between(is_held), tokens.between(near)) if mean),
        default=None,
    )
    rise = None
    if usual is not None and late is not None and n_held:
        rise = late[0] / usual[0]
        finding.evidence.append(
            Evidence("inter_token_rise", round(rise, 2), "ratio", late[1], "engine_sample")
        )
    gap_s = (quantiles.median(tokens.running[is_batch]) or 1.0) / reference
    beside = near | np.append(is_held[1:], False)
    if (
        not severity.is_material
        or n_held == 0
        or (rise is not None and rise < TOKEN_RISE)
        or was_paused(facts, tokens.edges, beside, 0.5 * LONG_STEP * gap_s, finding.lost_ns)
    ):
        finding.excluded.append(
            Exclusion(
                HOGGING,
                f"generation was held up beside prompts in {n_held} of {int(is_batch.sum())} "
                "windows with a batch",
            )
        )
        finding.lost_ns, finding.lost_share = 0, 0.0
        return finding
    n_preempted = float(np.nansum(tokens.preempted[is_held]))
    if n_preempted >= 1:
        finding.status, finding.confidence = Status.UNDECIDED, 0.4
        finding.undecided_because = (
            f"{n_preempted:.0f} requests were preempted meanwhile: their prompts are computed "
            "again, which looks the same"
        )
        finding.settled_by = "the analysis of kv.preemption"
        return finding
    finding.status = Status.FOUND
    finding.confidence = (0.93 if rise is not None else 0.8) * facts.trust("engine")
    finding.spans = spans
    finding.summary = (
        f"Prompts held the device: generation fell from {reference:.0f} to "
        f"{float(tokens.generated[is_held].mean()):.0f} tokens/s with "
        f"{float(tokens.running[is_held].mean()):.0f} requests running"
        + (f", and the time between tokens rose {rise:.1f} times." if rise is not None else ".")
    )
    finding.excluded += [
        Exclusion("kv.preemption", "no request was preempted meanwhile"),
        Exclusion("hang.kernel", "tokens and prompts went on"),
    ]
    return finding


def _after(windows: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The windows that follow one of those."""
    return np.append(False, windows[:-1])


def _is_prompt_heavy(prompt: Floats, generated: Floats, is_batch: npt.NDArray[np.bool_]) -> bool:
    """Whether nearly every second with a batch is mostly prompts."""
    heavy = prompt[is_batch] > PROMPT_HEAVY * np.maximum(generated[is_batch], 1.0)
    return bool(heavy.mean() >= 0.8)


def _no_reference(
    facts: Facts, finding: Finding, tokens: Tokens, is_batch: npt.NDArray[np.bool_]
) -> Finding:
    """Prompts all the time: nothing to compare with but the steps themselves."""
    steps = by_steps(facts)
    if steps is not None:
        return steps
    unmoved = tokens_despite_prompts(
        tokens.edges, tokens.prompt, tokens.generated, tokens.running, is_batch
    )
    if unmoved is not None:
        more, left = unmoved
        finding.excluded.append(
            Exclusion(
                HOGGING,
                f"with {more:.1f} times the prompts a running request still got {left:.2f} times "
                "its tokens",
            )
        )
        return finding
    spans = intervals.union(intervals.make(tokens.edges[:-1][is_batch], tokens.edges[1:][is_batch]))
    severity = assess(spans, facts.demand)
    if not severity.is_material:
        return finding
    finding.status, finding.confidence = Status.UNDECIDED, 0.3
    finding.lost_share, finding.lost_ns = severity.share / 2, severity.lost_ns // 2
    finding.start_ns, finding.end_ns = severity.start_ns, severity.end_ns
    finding.undecided_because = "prompts came all the time: no level without them to compare with"
    finding.settled_by = "a longer recording, or the steps' launches (cuda_call)"
    return finding
