"""Prompts that hold up tokens, told by the engine: tokens per second, and the time between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis import engine as words
from analysis import intervals, quantiles
from analysis.causes.prefill_steps import HOGGING, LONG_STEP, N_STEPS, where
from analysis.causes.prefill_waits import by_waits
from analysis.causes.prompt_dose import tokens_despite_prompts, was_paused
from analysis.causes.prompt_proof import (
    by_dose,
    by_steps_told,
    by_stop,
    leave_open,
    missing_tokens,
    slower_decodes,
)
from analysis.causes.token_rates import GOOD, N_WINDOWS, Flags, Floats, Tokens, after, before
from analysis.engine import EngineSeries
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status
from analysis.severity import assess

#: Generation below this share of the engine's own good seconds counts as held up. The good seconds
#: are its upper quarter: a service that is hogged for half of the time still shows them.
HELD_SHARE = 0.5
GOOD_QUANTILE = 0.75
#: Rise of the time between tokens that the held-up seconds must show.
TOKEN_RISE = 2.0
#: Prompts that must come in a held-up second or the next, against the good seconds.
PROMPT_RISE = 3.0
#: Requests that must run: one prefilling alone keeps nobody waiting.
RUNNING = 2.0
#: Prompt tokens per generated token in a second that is mostly prompts: hogging is suspected then
#: though there is no good second to compare with.
PROMPT_HEAVY = 10.0


@dataclass(frozen=True)
class _Level:
    """What undisturbed decodes do: tokens/s, and where it is told by them alone, the mean time
    between tokens in s with their number.
    """

    rate: float
    gap: tuple[float, int] | None = None


def by_tokens(facts: Facts, tokens: Tokens, steps: Finding | None) -> Finding:
    """Return whether prompts held up the tokens, by the rates of the engine.

    Args:
        facts: Of the session.
        tokens: Rates of its engine.
        steps: What launches or batches of steps tell of prompts, None without any.
    """
    is_known = np.isfinite(tokens.generated) & np.isfinite(tokens.prompt)
    is_batch = is_known & (tokens.running >= RUNNING)
    good = quantiles.quantile(tokens.generated[is_batch], GOOD_QUANTILE)
    level = _Level(0.0 if good is None else good.value)
    finding, is_open = _against(facts, tokens, is_batch, level, steps)
    if finding.status is Status.NOT_FOUND:
        # Hogged all the time, no whole second is good, but the tokens between two prompts are.
        for other in (
            _between_prompts(facts.engine, tokens, is_batch),
            _without_prompts(tokens, is_batch),
        ):
            if other is not None and finding.status is Status.NOT_FOUND:
                second, is_open = _against(facts, tokens, is_batch, other, steps)
                finding = finding if second.status is Status.NOT_FOUND else second
    if finding.status is Status.NOT_FOUND or is_open:
        waits = by_waits(facts, tokens, is_batch, steps, level.rate)
        if waits is not None and (waits.status is Status.FOUND or not is_open):
            return waits
    return finding


def _without_prompts(tokens: Tokens, is_batch: Flags) -> _Level | None:
    """The level of the seconds in which, and after which, no prompt was computed at all."""
    none = np.nan_to_num(tokens.prompt) <= 0
    quiet = is_batch & none & np.append(none[1:], True) & (np.nan_to_num(tokens.generated) > 0)
    rate = quantiles.median(tokens.generated[quiet])
    return _Level(rate) if rate is not None and quiet.sum() >= 2 * N_WINDOWS else None


def _between_prompts(engine: EngineSeries | None, tokens: Tokens, is_batch: Flags) -> _Level | None:
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
    facts: Facts, tokens: Tokens, is_batch: Flags, level: _Level, steps: Finding | None
) -> tuple[Finding, bool]:
    """The answer by one level, and whether only its proof is missing."""
    finding = Finding(HOGGING, Status.NOT_FOUND, confidence=0.85, where=where(facts))
    if is_batch.sum() < N_WINDOWS:
        return finding, False
    reference = level.rate
    prompt = np.nan_to_num(np.where(np.isfinite(tokens.generated), tokens.prompt, 0.0))
    quiet = is_batch & (tokens.generated >= GOOD * reference)
    if reference <= 0 and prompt.sum() <= 0:
        return finding, False
    if reference <= 0 or _is_prompt_heavy(prompt, tokens.generated, is_batch):
        return steps or _no_reference(facts, finding, tokens, is_batch), False
    # Prompts are counted when their first token comes, so a prefill shows at its end: a window
    # holds prompts when they come in it or in the next one, and those that are counted just after
    # a low window tell nothing of the usual prompts.
    soon: Floats = np.maximum(prompt, np.append(prompt[1:], 0.0))
    # Fewer requests get fewer tokens together: each of them has to get fewer.
    speed = tokens.speed
    usual_speed = quantiles.median(speed[quiet])
    if usual_speed is None:
        usual_speed = reference / (quantiles.median(tokens.running[is_batch]) or 1.0)
    is_low = is_batch & (tokens.generated < HELD_SHARE * reference)
    is_low &= speed < HELD_SHARE * usual_speed
    usual_prompt = quantiles.median(prompt[quiet & ~after(is_low)]) or 0.0
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
    near = is_held | after(is_held)
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
    beside = near | before(is_held)
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
        return finding, False
    n_preempted = float(np.nansum(tokens.preempted[is_held]))
    if n_preempted >= 1:
        finding.status, finding.confidence = Status.UNDECIDED, 0.4
        finding.undecided_because = (
            f"{n_preempted:.0f} requests were preempted meanwhile: their prompts are computed "
            "again, which looks the same"
        )
        finding.settled_by = "the analysis of kv.preemption"
        return finding, False
    missing, lost_part = missing_tokens(tokens, is_batch, reference, usual_speed)
    slower = slower_decodes(facts, finding, spans, float(missing[is_held].mean()))
    proof = (
        None
        if slower
        else (
            by_steps_told(steps, finding.lost_share)
            or by_stop(tokens, missing, is_held, usual_speed)
            or by_dose(tokens, lost_part, _while(is_low, is_held), usual_speed)
        )
    )
    if proof is None:
        held = float(tokens.generated[is_held].mean())
        leave_open(
            facts,
            finding,
            f"generation fell from {reference:.0f} to {held:.0f} tokens/s beside "
            f"{float(soon[is_held].mean()):.0f} tokens/s of prompts",
            slower,
        )
        return finding, not slower
    finding.evidence.append(proof.evidence)
    finding.status = Status.FOUND
    finding.confidence = (0.93 if rise is not None else 0.8) * facts.trust("engine")
    finding.spans = spans
    finding.summary = (
        f"Prompts held the device: generation fell from {reference:.0f} to "
        f"{float(tokens.generated[is_held].mean()):.0f} tokens/s with "
        f"{float(tokens.running[is_held].mean()):.0f} requests running"
        + (f", and the time between tokens rose {rise:.1f} times" if rise is not None else "")
        + f"; {proof.text}."
    )
    finding.excluded += [
        Exclusion("kv.preemption", "no request was preempted meanwhile"),
        Exclusion("hang.kernel", "tokens and prompts went on"),
    ]
    return finding, False


def _while(is_low: Flags, is_held: Flags) -> Flags:
    """Windows with few tokens from the first that was held up to the last, with prompts or not."""
    rows = np.flatnonzero(is_held)
    result = is_low.copy()
    result[: rows[0]] = result[rows[-1] + 1 :] = False
    return result


def _is_prompt_heavy(prompt: Floats, generated: Floats, is_batch: Flags) -> bool:
    """Whether nearly every second with a batch is mostly prompts."""
    heavy = prompt[is_batch] > PROMPT_HEAVY * np.maximum(generated[is_batch], 1.0)
    return bool(heavy.mean() >= 0.8)


def _no_reference(facts: Facts, finding: Finding, tokens: Tokens, is_batch: Flags) -> Finding:
    """Prompts all the time: nothing to compare with but the steps themselves."""
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
