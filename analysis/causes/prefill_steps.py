"""Long steps of prompts among short steps of decodes, told by the calls alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis import intervals, quantiles
from analysis.causes import engine_steps
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.severity import assess

Ints = npt.NDArray[np.int64]

HOGGING = engine_steps.HOGGING

#: running request by that many tokens.
LONG_STEP = 3.0
#: Where the device has work for less of the time than this, prompts do not hold it.
LEAST_DEMAND = 0.5
#: Steps that a reference level needs.
N_STEPS = 10
#: Percentile of the steps of decodes that counts as the quickest.
QUICKEST = 0.25


def where(facts: Facts) -> Where:
    """Return the process, thread and device that feed the device, as far as they were seen."""
    if not facts.processes:
        return Where()
    pid = facts.processes[0]
    return Where(
        pid, facts.launchers[pid].tid, facts.device_of[pid], process=facts.process_name(pid)
    )


def decodes_slower(facts: Facts, spans: Ints) -> tuple[float, int] | None:
    """Return how many times as long the quickest steps of decodes took within some intervals as
    outside of them, and how many were within: a device that is slower makes all of them longer,
    prompts only those that wait behind one. None where too few were recorded on either side.
    """
    if facts.calls is None or not facts.processes:
        return None
    steps = facts.steps(facts.processes[0])
    is_graph = (steps.n_graphs > 0) & (steps.n_launches <= 10 * steps.n_graphs)
    length = np.maximum(steps.work_end - steps.first_launch, 0)
    is_inside = intervals.assign(steps.first_launch, spans) >= 0
    inside, outside = length[is_graph & is_inside], length[is_graph & ~is_inside]
    if min(len(inside), len(outside)) < N_STEPS:
        return None
    quick, usual = (quantiles.quantile(part, QUICKEST) for part in (inside, outside))
    assert quick is not None
    assert usual is not None
    return quick.value / max(usual.value, 1.0), len(inside)


def by_steps(facts: Facts) -> Finding | None:
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
        where=where(facts),
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
    asked = intervals.total(facts.demand) / max(facts.complete_ns - facts.start_ns, 1)
    if asked < LEAST_DEMAND:
        finding.excluded.append(
            Exclusion(
                HOGGING,
                f"there was work for {100 * asked:.0f} % of the time only: prompts did "
                "not keep the device from decodes",
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
