"""Few tokens that wait long among many that come as fast as ever: prompts between decodes."""

from __future__ import annotations

import numpy as np

from analysis import engine as words
from analysis import intervals, quantiles
from analysis.causes.prefill_steps import HOGGING, LONG_STEP, N_STEPS, where
from analysis.causes.prompt_dose import DOSE, more_prompts, was_paused
from analysis.causes.prompt_proof import (
    EXPLAINED,
    by_dose,
    by_steps_told,
    leave_open,
    missing_tokens,
)
from analysis.causes.token_rates import GOOD, N_WINDOWS, Flags, Tokens, after, before
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status
from analysis.severity import MATERIAL_SHARE, assess

#: Share of a window that its requests must have waited for a token beyond usual steps.
WAIT_SHARE = 0.1
#: Tokens that must have waited in a window: one request alone may have been held by anything.
N_WAITS = 2.0
#: Share of the tokens that may wait where the rest comes as fast as ever.
MOST_WAITS = 0.5
#: Prompt tokens for each step that the waits lasted. A decode step reads every weight once, which
#: lasts as long as some 150 to 300 tokens' arithmetic; a third is asked for.
PROMPT_PER_STEP = 50.0


def by_waits(
    facts: Facts, tokens: Tokens, is_batch: Flags, steps: Finding | None, reference: float
) -> Finding | None:
    """Return few tokens that waited long beside prompts that take that long to compute.

    Tells prompts that stand between decodes for parts of a second, whatever the scrapes' distance.
    None where the waits cost nothing material or the prompts do not account for them.

    Args:
        facts: Of the session.
        tokens: Rates of its engine.
        is_batch: Windows with a batch.
        steps: What launches or batches of steps tell of prompts, None without any.
        reference: Tokens/s of good seconds.
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
    seconds = tokens.seconds
    is_held = (waited >= WAIT_SHARE * seconds) & (waits >= N_WAITS)
    is_held |= before(is_held) & is_batch & (tokens.generated < waits)
    spans = intervals.union(intervals.make(tokens.edges[:-1][is_held], tokens.edges[1:][is_held]))
    severity = assess(spans, facts.demand)
    lost_ns = int(min(1e9 * waited[is_held].sum(), severity.lost_ns))
    share = lost_ns / facts.demand_ns
    near = is_held | before(is_held) | after(is_held)
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
    lost = np.where(is_batch, np.minimum(waited / seconds, 1.0), np.nan)
    is_good = is_batch & (tokens.generated >= GOOD * reference)
    usual_speed = quantiles.median(tokens.speed[is_good]) or 0.0
    missing, _within = missing_tokens(tokens, is_batch, max(reference, 1e-9), usual_speed)
    rows = np.flatnonzero(is_held)
    phase = is_batch & (np.arange(len(is_held)) >= rows[0]) & (np.arange(len(is_held)) <= rows[-1])
    # Where the other tokens take longer too, most of them wait, or what is missing is more than
    # the waits.
    is_rest_quick = waits[phase].sum() <= MOST_WAITS * buckets.counts[phase].sum()
    is_rest_quick &= waited[phase].sum() >= EXPLAINED * (missing * seconds)[phase].sum()
    proof = by_steps_told(steps, share)
    if proof is None and is_rest_quick:
        proof = by_dose(tokens, lost, is_held, usual_speed)
    if proof is not None:
        finding.evidence.append(proof.evidence)
    elif more is None and not facts.processes:
        finding.status, finding.confidence, finding.spans = Status.UNDECIDED, 0.45, intervals.EMPTY
        finding.undecided_because = (
            f"{n_waits} tokens waited long beside prompts, but both come in every second: pauses "
            "of the host look the same"
        )
        finding.settled_by = "cuda_call: tracer record --pid PID as root"
    else:
        finding.spans = intervals.EMPTY
        leave_open(facts, finding, f"{n_waits} tokens waited long beside prompts")
    return finding
