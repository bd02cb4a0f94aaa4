"""Prompts hold the device while decodes wait: told by the engine, or by the steps alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import engine as words
from analysis import intervals, quantiles
from analysis.causes import engine_steps
from analysis.causes.declaration import Cause, Needs
from analysis.engine import EngineSeries, gauge_at
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.severity import assess

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

HOGGING = engine_steps.HOGGING

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
#: Prompt tokens per generated token in nearly all seconds with a batch, from which hogging is
#: suspected though there is no good second to compare with.
PROMPT_HEAVY = 10.0
#: A step with prompts counts as long from this many times a decode step: such a step delays every
#: running request by that many tokens.
LONG_STEP = 3.0
#: Windows or steps that a reference level needs.
N_WINDOWS = 3
N_STEPS = 10
#: Scrapes closer than this are taken together, ns.
_WINDOW_NS = 900_000_000


@dataclass(frozen=True)
class _Tokens:
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


def _tokens(engine: EngineSeries) -> _Tokens | None:
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
    return _Tokens(
        edges,
        prompt.between(edges) / seconds,
        generated.between(edges) / seconds,
        np.maximum(gauge_at(running, edges[1:]), gauge_at(running, edges[:-1])),
        None if gaps is None or n_gaps is None else gaps.between(edges),
        np.zeros(len(seconds)) if n_gaps is None else n_gaps.between(edges),
        np.zeros(len(seconds)) if preempted is None else preempted.between(edges),
    )


def find_hogging(facts: Facts) -> Finding:
    """Return whether prompts held the device while decodes waited."""
    finding = Finding(HOGGING, Status.NOT_FOUND, confidence=0.8)
    tokens = _tokens(facts.engine) if facts.engine is not None else None
    steps = engine_steps.find_by_batches(facts) or _by_steps(facts)
    if tokens is None and steps is None:
        return Finding(
            HOGGING,
            Status.NOT_APPLICABLE,
            undecided_because="neither tokens per second of an engine nor steps with graphs and "
            "eager launches side by side are in the recording; record with --engine URL",
        )
    if tokens is not None:
        finding = _by_tokens(facts, tokens)
        if steps is not None and finding.status is Status.FOUND:
            finding.evidence.extend(steps.evidence)
    elif steps is not None:
        finding = steps
    return finding


@dataclass(frozen=True)
class _Level:
    """What undisturbed decodes do: tokens/s, and where it is told by them alone, the mean time
    between tokens in s with their number.
    """

    rate: float
    gap: tuple[float, int] | None = None


def _by_tokens(facts: Facts, tokens: _Tokens) -> Finding:
    is_known = np.isfinite(tokens.generated) & np.isfinite(tokens.prompt)
    is_batch = is_known & (tokens.running >= RUNNING)
    good = quantiles.quantile(tokens.generated[is_batch], GOOD_QUANTILE)
    finding = _against(facts, tokens, is_batch, _Level(0.0 if good is None else good.value))
    if finding.status is Status.NOT_FOUND:
        # Hogged all the time, no whole second is good, but the tokens between two prompts are.
        level = _between_prompts(facts.engine, tokens, is_batch)
        if level is not None:
            second = _against(facts, tokens, is_batch, level)
            if second.status is not Status.NOT_FOUND:
                return second
    return finding


def _between_prompts(
    engine: EngineSeries | None, tokens: _Tokens, is_batch: npt.NDArray[np.bool_]
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
    usual = engine.at_most(words.INTER_TOKEN, 0.5, tokens.edges, is_batch)
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
    facts: Facts, tokens: _Tokens, is_batch: npt.NDArray[np.bool_], level: _Level
) -> Finding:
    finding = Finding(HOGGING, Status.NOT_FOUND, confidence=0.85, where=_where(facts))
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
    is_low = is_batch & (tokens.generated < HELD_SHARE * reference)
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
    if not severity.is_material or n_held == 0 or (rise is not None and rise < TOKEN_RISE):
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
    facts: Facts, finding: Finding, tokens: _Tokens, is_batch: npt.NDArray[np.bool_]
) -> Finding:
    """Prompts all the time: nothing to compare with but the steps themselves."""
    steps = _by_steps(facts)
    if steps is not None:
        return steps
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


def _where(facts: Facts) -> Where:
    if not facts.processes:
        return Where()
    pid = facts.processes[0]
    return Where(
        pid, facts.launchers[pid].tid, facts.device_of[pid], process=facts.process_name(pid)
    )


def _by_steps(facts: Facts) -> Finding | None:
    """Long eager steps among short graph steps: None where the steps are not of two kinds."""
    if facts.calls is None or not facts.processes:
        return None
    pid = facts.processes[0]
    steps = facts.steps(pid)
    waited = np.where(steps.is_waiting, steps.work_end - steps.sync_start, 0)
    length = np.maximum(steps.work_end - steps.first_launch, 0)
    is_graph = (steps.n_graphs > 0) & (steps.n_launches <= 10 * steps.n_graphs)
    usual_launches = quantiles.median(steps.n_launches[is_graph])
    if usual_launches is None or is_graph.sum() < N_STEPS:
        return None
    is_eager = (steps.n_graphs == 0) & (steps.n_launches > 10 * max(usual_launches, 1))
    # A prefill waits for its kernels; an eager step that waits for nothing is bound by the host.
    is_eager &= 2 * waited >= length
    if is_eager.sum() < N_STEPS // 3:
        return None
    decode = quantiles.median(length[is_graph])
    prefill = quantiles.median(length[is_eager])
    assert decode is not None
    assert prefill is not None
    # Decodes wait in a long step that lies between two steps of decodes.
    index = np.flatnonzero(is_graph)
    is_between = np.zeros(len(length), dtype=bool)
    is_between[index[0] : index[-1]] = True
    is_hog = is_eager & is_between & (length >= LONG_STEP * decode)
    spans = intervals.union(intervals.make(steps.first_launch[is_hog], steps.work_end[is_hog]))
    severity = assess(spans, facts.demand)
    ratio = prefill / max(decode, 1.0)
    finding = Finding(
        HOGGING,
        Status.NOT_FOUND,
        confidence=0.6,
        where=_where(facts),
        start_ns=severity.start_ns,
        end_ns=severity.end_ns,
        lost_ns=severity.lost_ns,
        lost_share=severity.share,
        evidence=[
            Evidence("graph_step_p50", int(decode), "ns", int(is_graph.sum()), "cuda_call"),
            Evidence("eager_step_p50", int(prefill), "ns", int(is_eager.sum()), "cuda_call"),
        ],
    )
    if not severity.is_material or severity.share < 0.25 or ratio < LONG_STEP:
        finding.excluded.append(
            Exclusion(
                HOGGING,
                f"eager steps of {LONG_STEP:.0f} times a decode step take "
                f"{100 * severity.share:.0f} % of the time with demand",
            )
        )
        finding.lost_ns, finding.lost_share = 0, 0.0
        return finding
    finding.status = Status.FOUND
    finding.confidence = 0.7 * facts.trust("cuda")
    finding.spans = spans
    finding.summary = (
        f"Long eager steps ({prefill / 1e6:.0f} ms) stand between short graph steps "
        f"({decode / 1e6:.1f} ms) for {100 * severity.share:.0f} % of the time: prompts hold the "
        "device while decodes wait."
    )
    return finding


CAUSES = (
    Cause(
        HOGGING,
        "prompts hold the device while decodes wait",
        "Prefill steps take so long that running requests hardly get a token.",
        "Prompt tokens come while generation is near zero with two or more requests running, and "
        "the time between tokens rises; or long eager steps among short graph steps; or steps "
        "whose names tell of prompts, against steps of decodes alone.",
        "Preemption and recompute, a hang.",
        "Record the engine's metrics: tracer record --pid PID --engine URL.",
        "Use smaller prefill chunks (max_num_batched_tokens), interleave decode steps, or put "
        "prefill on other devices.",
        Needs(
            any_of=(("engine_sample", "cuda_call", "annotation"),),
            optional=("gpu_sample",),
        ),
        find_hogging,
    ),
)
