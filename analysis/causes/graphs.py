"""CUDA graphs give way to eager launches: the same steps, launched kernel by kernel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import engine as words
from analysis import intervals, quantiles
from analysis.causes.declaration import Cause, Needs
from analysis.device import Steps
from analysis.engine import Series
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.severity import WINDOW_NS, assess

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

FALLBACK = "launch.graph_fallback"

#: Steps with a graph make the usual ones when there are so many.
N_STEPS = 20
#: An eager step launches at least so many times what a step with a graph launches by itself.
MANY = 10
#: A second belongs to eager launches when at most this share of its steps has a graph.
FEW_GRAPHS = 0.05
#: Steps that such a second needs: fewer may be prompts only.
N_A_SECOND = 3
#: Tokens that came in an eager second against its prompt tokens, for the steps to be decodes.
DECODES = 1.0
#: Or so many tokens a step, as only a batch of decodes gives.
SEVERAL = 2.0
#: Rise of the length of a step (or of the time between tokens) that makes it a cost.
SLOWER = 1.2
#: Each launch is as fast as ever up to this rise of its median.
SLOW_LAUNCH = 3.0


@dataclass(frozen=True)
class _Seconds:
    """Steps of one process counted by second."""

    edges: Ints
    n_steps: Ints
    n_graph_steps: Ints

    @property
    def is_eager(self) -> Flags:
        enough = self.n_steps >= N_A_SECOND
        result: Flags = enough & (self.n_graph_steps <= FEW_GRAPHS * self.n_steps)
        return result


def find_fallback(facts: Facts) -> Finding:
    """Return whether steps that graphs had launched were launched kernel by kernel."""
    finding = Finding(FALLBACK, Status.NOT_FOUND, confidence=0.85)
    if not facts.processes:
        return Finding(
            FALLBACK, Status.NOT_APPLICABLE, undecided_because="no process launched anything"
        )
    pid = facts.processes[0]
    steps = facts.steps(pid)
    has_graph = steps.n_graphs > 0
    usual = quantiles.median(steps.n_launches[has_graph])
    if usual is None or int(has_graph.sum()) < N_STEPS:
        finding.excluded.append(
            Exclusion(FALLBACK, f"{int(has_graph.sum())} steps were launched as graphs")
        )
        return finding
    is_eager = ~has_graph & (steps.n_launches > MANY * max(usual, 1))
    seconds = _count(facts, steps, has_graph, is_eager)
    # The first graph tells from when on there were graphs to give way.
    first = int(steps.first_launch[int(np.argmax(has_graph))])
    eager = seconds.is_eager & (seconds.edges[:-1] >= first)
    spans = intervals.union(intervals.make(seconds.edges[:-1][eager], seconds.edges[1:][eager]))
    severity = assess(spans, facts.demand)
    n_eager = int((is_eager & _starts_in(steps, spans)).sum())
    finding.evidence = [
        Evidence("steps_with_graph", int(has_graph.sum()), "", len(steps), "cuda_call"),
        Evidence("seconds_without_graph", int(eager.sum()), "", len(eager), "cuda_call"),
    ]
    if not severity.is_material or n_eager < N_STEPS:
        finding.excluded.append(
            Exclusion(
                FALLBACK,
                f"graph launches stopped in {int(eager.sum())} of {len(eager)} seconds",
            )
        )
        return finding
    finding.start_ns, finding.end_ns = severity.start_ns, severity.end_ns
    launcher = facts.launchers[pid]
    finding.where = Where(pid, launcher.tid, facts.device_of[pid], process=facts.process_name(pid))
    return _decide(facts, finding, steps, has_graph, is_eager & _starts_in(steps, spans), spans)


def _count(facts: Facts, steps: Steps, has_graph: Flags, is_eager: Flags) -> _Seconds:
    edges = intervals.windows(facts.start_ns, facts.complete_ns, WINDOW_NS)

    def count(mask: Flags) -> Ints:
        return np.histogram(steps.first_launch[mask], edges)[0].astype(np.int64)

    return _Seconds(edges, count(has_graph | is_eager), count(has_graph))


def _starts_in(steps: Steps, spans: Ints) -> Flags:
    at = np.searchsorted(spans[:, 0], steps.first_launch, side="right") - 1
    if len(spans) == 0:
        return np.zeros(len(steps), dtype=bool)
    inside: Flags = (at >= 0) & (spans[np.maximum(at, 0), 1] > steps.first_launch)
    return inside


def _decide(
    facts: Facts,
    finding: Finding,
    steps: Steps,
    has_graph: Flags,
    is_eager: Flags,
    spans: Ints,
) -> Finding:
    length = np.maximum(steps.work_end - steps.first_launch, 1)
    before = quantiles.median(length[has_graph])
    after = quantiles.median(length[is_eager])
    launches = quantiles.median(steps.n_launches[is_eager])
    assert before is not None
    assert after is not None
    assert launches is not None
    n_before, n_after = int(has_graph.sum()), int(is_eager.sum())
    finding.evidence += [
        Evidence("graph_step_p50", int(before), "ns", n_before, "cuda_call"),
        Evidence("eager_step_p50", int(after), "ns", n_after, "cuda_call"),
        Evidence("launches_per_eager_step", int(launches), "", n_after, "cuda_call"),
    ]
    ratio = after / before
    slow = _slow_launch(facts, finding, spans)
    severity = assess(spans, facts.demand)
    decodes = _are_decodes(facts, finding, spans, n_after)
    if decodes is False:
        finding.excluded.append(
            Exclusion(FALLBACK, "the steps without a graph computed prompts, not decodes")
        )
        return finding
    if ratio < SLOWER:
        finding.excluded.append(
            Exclusion(FALLBACK, f"steps without a graph take {ratio:.2f} times as long as with one")
        )
        return finding
    finding.lost_share = severity.share * (1 - 1 / ratio)
    finding.lost_ns = int(severity.lost_ns * (1 - 1 / ratio))
    text = (
        f"graph launches stopped for {severity.lost_ns / 1e9:.1f} s, and each step was "
        f"{launches:.0f} launches instead: it takes {after / 1e6:.1f} ms against "
        f"{before / 1e6:.1f} ms"
    )
    if slow is not None or decodes is None:
        finding.status, finding.confidence = Status.UNDECIDED, 0.55
        finding.undecided_because = f"{text}, but " + (
            f"each launch took {slow:.1f} times as long as well"
            if slow is not None
            else "nothing tells whether these steps computed decodes or prompts"
        )
        finding.settled_by = (
            "the engine's metrics: tracer record --pid PID --engine URL"
            if decodes is None
            else "offcpu: what slows the launches"
        )
        return finding
    finding.status, finding.confidence = Status.FOUND, 0.9 * facts.trust("cuda", "engine")
    finding.spans = spans
    finding.summary = f"{text[0].upper()}{text[1:]}."
    finding.excluded.append(
        Exclusion("prefill.hogging", "the steps without a graph generated tokens")
    )
    return finding


def _slow_launch(facts: Facts, finding: Finding, spans: Ints) -> float | None:
    """How much longer a launch took meanwhile, None where it is as fast as ever."""
    calls = facts.calls
    assert calls is not None
    launcher = facts.launchers[finding.where.pid or 0]
    rows = launcher.rows[calls.is_kind("launch")[launcher.rows]]
    start = calls.start[rows]
    at = np.searchsorted(spans[:, 0], start, side="right") - 1
    inside = (at >= 0) & (spans[np.maximum(at, 0), 1] > start)
    usual = quantiles.median(calls.duration[rows[~inside]])
    now = quantiles.median(calls.duration[rows[inside]])
    if usual is None or now is None:
        return None
    finding.evidence += [
        Evidence("launch_p50", int(now), "ns", int(inside.sum()), "cuda_call"),
        Evidence("launch_p50_otherwise", int(usual), "ns", int((~inside).sum()), "cuda_call"),
    ]
    ratio = now / max(usual, 1.0)
    return ratio if ratio > SLOW_LAUNCH else None


def _gives_tokens(finding: Finding, generated: Series, spans: Ints, n_steps: int) -> bool | None:
    """Whether each step gave a token at least, as decodes do and chunks of prompts do not."""
    edges = intervals.clip(spans, int(generated.time[0]), int(generated.time[-1]))
    if len(edges) == 0:
        return None
    made = float(np.nansum(generated.between(edges.reshape(-1))[::2]))
    finding.evidence.append(
        Evidence("tokens_per_eager_step", round(made / n_steps, 2), "tokens", n_steps, "")
    )
    return True if made >= n_steps else None


def _are_decodes(facts: Facts, finding: Finding, spans: Ints, n_steps: int) -> bool | None:
    """Whether tokens were generated in these seconds, rather than prompts; None if not told."""
    engine = facts.engine
    if engine is None:
        return None
    generated = engine.counter(words.GENERATION_TOKENS)
    prompts = engine.counter(words.PROMPT_TOKENS)
    if generated is None or generated.is_lagging:
        return None
    if prompts is None:
        return _gives_tokens(finding, generated, spans, n_steps)
    begin = max(int(generated.time[0]), int(prompts.time[0]))
    edges = intervals.clip(spans, begin, min(int(generated.time[-1]), int(prompts.time[-1])))
    if len(edges) == 0:
        return None
    made = float(np.nansum(generated.between(edges.reshape(-1))[::2]))
    read = float(np.nansum(prompts.between(edges.reshape(-1))[::2]))
    finding.evidence += [
        Evidence("tokens_generated_meanwhile", round(made), "tokens", None, "engine_sample"),
        Evidence("prompt_tokens_meanwhile", round(read), "tokens", None, "engine_sample"),
    ]
    each = made / max(n_steps, 1)
    finding.evidence.append(
        Evidence("tokens_per_eager_step", round(each, 2), "tokens", n_steps, "engine_sample")
    )
    # A step that computes a prompt ends with one token of it at most.
    if made > DECODES * read or each >= SEVERAL:
        return True
    return False if each <= 1 else None


CAUSES = (
    Cause(
        FALLBACK,
        "CUDA graphs gave way to eager launches",
        "Steps that a graph used to launch are launched kernel by kernel.",
        "Graph launches stop for seconds, plain launches per step multiply, tokens are generated "
        "in these steps, each launch is as fast as ever and the steps take longer.",
        "Slow launches, prompts (they are never graphs).",
        "Record launches before and after, with --engine URL.",
        "Capture graphs for the batch sizes in use, or find what switched them off.",
        Needs(("cuda_call",), optional=("engine_sample", "offcpu")),
        find_fallback,
    ),
)
