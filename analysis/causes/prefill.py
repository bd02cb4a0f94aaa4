"""Prompts hold the device while decodes wait: told by the engine, or by the steps alone."""

from __future__ import annotations

from analysis.causes import engine_steps
from analysis.causes.declaration import Cause, Needs
from analysis.causes.prefill_steps import HOGGING, by_steps
from analysis.causes.prefill_tokens import by_tokens
from analysis.causes.token_rates import load_tokens
from analysis.facts import Facts
from analysis.finding import Finding, Status


def find_hogging(facts: Facts) -> Finding:
    """Return whether prompts held the device while decodes waited."""
    finding = Finding(HOGGING, Status.NOT_FOUND, confidence=0.8)
    tokens = load_tokens(facts.engine) if facts.engine is not None else None
    steps = engine_steps.find_by_batches(facts) or by_steps(facts)
    if tokens is None and steps is None:
        return Finding(
            HOGGING,
            Status.NOT_APPLICABLE,
            undecided_because="neither tokens per second of an engine nor steps with graphs and "
            "eager launches side by side are in the recording; record with --engine URL",
        )
    if tokens is not None:
        finding = by_tokens(facts, tokens, steps)
        if steps is not None and finding.status is Status.FOUND:
            finding.evidence.extend(steps.evidence)
    elif steps is not None:
        finding = steps
    return finding


CAUSES = (
    Cause(
        HOGGING,
        "prompts hold the device while decodes wait",
        "Prefill steps take so long that running requests hardly get a token.",
        "Prompt tokens come while generation all but stops with two or more requests running; or "
        "generation falls and what is lost follows the prompts from second to second; or long "
        "eager steps among short graph steps; or steps whose names tell of prompts, against steps "
        "of decodes alone.",
        "Preemption and recompute, a hang, a device that becomes slower while more prompts come "
        "(a lowered clock, a neighbour, longer contexts).",
        "Record the engine's metrics and the steps: tracer record --pid PID --engine URL as root.",
        "Use smaller prefill chunks (max_num_batched_tokens), interleave decode steps, or put "
        "prefill on other devices.",
        Needs(
            any_of=(("engine_sample", "cuda_call", "annotation"),),
            optional=("gpu_sample",),
        ),
        find_hogging,
    ),
)
