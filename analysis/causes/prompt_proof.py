"""What proves that prompts held up the tokens, and not that something else did meanwhile.

A device that became slower makes tokens fewer too: by a lowered clock, another process's turns, or
longer contexts. None of these shows in an engine's metrics, and prompts may become more at the same
time. But they make every step slower by some factor, whatever it computes; prompts can stop the
tokens altogether, and a second with more of them loses more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.causes.prefill_steps import decodes_slower
from analysis.causes.prompt_dose import dose_of, speed_between
from analysis.causes.token_rates import Flags, Floats, Ints, Tokens, after, before
from analysis.facts import Facts
from analysis.finding import Evidence, Finding, Status

#: Nothing that only slows a device down leaves less than this part of its speed: clocks fall to a
#: quarter of their level, a handful of processes share a device.
SLOWEST = 0.1
#: Tokens/s of a request that make a stop as well: it waits for most of a second for each.
STOPPED = 1.5
#: Share of the missing tokens that must be missing in windows below that.
MOST = 0.5
#: Prompt tokens for each step of decodes that is missing. A step reads every weight once, which
#: lasts as long as the arithmetic of a hundred tokens on a GPU and of some fifteen on a CPU; for
#: fewer than this no device goes without a step.
PROMPT_PER_STEP = 10.0
#: Requests get their tokens as fast as ever from this share of their usual speed on: a few more of
#: them make a step longer too.
AS_EVER = 0.6
#: Share of the lost time that must follow the prompts from window to window.
EXPLAINED = 0.5


@dataclass(frozen=True)
class Proof:
    """What proves it, one clause, and its number."""

    text: str
    evidence: Evidence


def by_steps_told(steps: Finding | None, lost_share: float) -> Proof | None:
    """Return the proof that launches or batches of steps give, None where they tell of none, or of
    less than accounts for the share of the demand that was lost, in [0, 1].
    """
    if steps is None or steps.status is not Status.FOUND:
        return None
    if steps.lost_share < EXPLAINED * lost_share:
        return None
    share = Evidence("steps_of_prompts", round(100 * steps.lost_share, 1), "%", None, "cuda_call")
    return Proof("the steps of prompts are long among short steps of decodes", share)


def slower_decodes(facts: Facts, finding: Finding, spans: Ints, held: float) -> str:
    """Return that steps of decodes alone became longer by enough to account for what is missing in
    some intervals, and note it; empty where they did not, or were not recorded.

    Args:
        facts: Of the session.
        finding: The one to note it in.
        spans: Disjoint intervals in ns in which tokens were held up.
        held: Share of the usual tokens that is missing in them, in [0, 1].
    """
    told = decodes_slower(facts, spans)
    if told is None:
        return ""
    slower, n = told
    finding.evidence.append(Evidence("quickest_decodes", round(slower, 2), "ratio", n, "cuda_call"))
    if 1 - 1 / max(slower, 1.0) < EXPLAINED * held:
        return ""
    return (
        f"the quickest steps of decodes alone took {slower:.1f} times as long meanwhile: the "
        "device became slower (a lowered clock, another process on it, longer contexts)"
    )


def by_stop(tokens: Tokens, missing: Floats, is_held: Flags, usual_speed: float) -> Proof | None:
    """Return the proof that tokens all but stopped beside prompts that may take as long.

    Args:
        tokens: Rates of the engine.
        missing: Share of the usual tokens that are missing in each window, in [0, 1].
        is_held: Windows in which tokens were held up.
        usual_speed: Usual tokens/s of one request: steps/s.
    """
    seconds, speed = tokens.seconds, tokens.speed
    is_stopped = is_held & (1 - missing <= SLOWEST) & (speed <= STOPPED)
    if missing[is_stopped].sum() < MOST * missing[is_held].sum() or not is_stopped.any():
        return None
    near = is_held | after(is_held) | before(is_held)
    prompts = float(np.nansum((tokens.prompt * seconds)[near]))
    n_steps = float((missing * seconds)[is_held].sum()) * usual_speed
    if prompts < PROMPT_PER_STEP * n_steps:
        return None
    left = 100 * float(1 - missing[is_stopped].mean())
    n = int(is_stopped.sum())
    return Proof(
        f"{left:.1f} % of the usual tokens were left in {n} windows, less than a slower device "
        "leaves",
        Evidence("tokens_left", round(left, 1), "%", n, "engine_sample"),
    )


def by_dose(tokens: Tokens, lost: Floats, is_low: Flags, usual_speed: float) -> Proof | None:
    """Return the proof that lost time follows the prompts from window to window; none where tokens
    are slow between the prompts too.

    Args:
        tokens: Rates of the engine.
        lost: Share of each window that was lost, in [0, 1]; NaN where it does not count.
        is_low: Windows in which tokens were few, whatever prompts came.
        usual_speed: Usual tokens/s of one request.
    """
    rows = np.flatnonzero(is_low)
    place = np.arange(len(is_low))
    is_phase = np.isfinite(lost) & (place >= rows[0]) & (place <= rows[-1])
    between = speed_between(tokens.prompt, tokens.speed, is_phase)
    if between is not None and between < AS_EVER * usual_speed:
        return None
    dose = dose_of(tokens.prompt, lost, is_low)
    if dose is None or dose.explained < EXPLAINED:
        return None
    share = min(100 * dose.explained, 100.0)
    return Proof(
        f"what is lost follows the prompts from second to second, which accounts for {share:.0f} %",
        Evidence("lost_with_prompts", round(share), "%", dose.n, "engine_sample"),
    )


def missing_tokens(
    tokens: Tokens, is_batch: Flags, reference: float, usual_speed: float
) -> tuple[Floats, Floats]:
    """Return the share of the usual tokens that are missing in each window, in [0, 1]: of all and
    of each request, whichever is less; and the same with NaN outside of ``is_batch``.
    """
    left = np.maximum(tokens.generated / reference, tokens.speed / max(usual_speed, 1e-9))
    missing: Floats = 1 - np.clip(np.nan_to_num(left), 0.0, 1.0)
    return missing, np.where(is_batch, missing, np.nan)


def leave_open(facts: Facts, finding: Finding, text: str, otherwise: str = "") -> None:
    """Turn a finding without its proof into an undecided one that says what would settle it.

    Args:
        facts: Of the session.
        finding: The one to change.
        text: What was seen, a clause.
        otherwise: What tells against it, a clause; empty where only the proof is missing.
    """
    finding.status, finding.confidence = Status.UNDECIDED, 0.3 if otherwise else 0.45
    finding.summary = ""
    finding.undecided_because = f"{text}, but " + (
        otherwise
        or "that they follow the prompts does not show from second to second: a device that became "
        "slower then (a lowered clock, another process on it, longer contexts) looks the same"
    )
    gpu = facts.gpu
    wanted = []
    if gpu is None or gpu.samples["sm_clock_mhz"].isna().all():
        wanted.append("the clocks of the GPU")
    if gpu is None or gpu.processes.empty:
        wanted.append("its processes (NVML)")
    if not facts.processes:
        wanted.append("the launches of the steps (cuda_call: tracer record --pid PID as root)")
    finding.settled_by = ", ".join(wanted) or "device times of the steps: tracer record --cupti"
