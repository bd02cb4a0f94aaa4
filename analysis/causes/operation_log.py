"""Operation logs of training jobs: a slow worker, a slow stage and uneven sequences told apart.

All compare compute only, because communication waits for the slowest. A *worker* is slow against
the others of its pipeline stage in (nearly) every step; a *stage* against the mean of all stages,
on all its workers; *uneven sequences* make another data-parallel rank the slow one in each step,
and the same one in all stages of that step.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import quantiles
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.severity import MATERIAL_SHARE

Floats = npt.NDArray[np.float64]

STRAGGLER = "collective.straggler"

#: Steps that a statement needs.
N_STEPS = 3
#: Share of the steps in which one worker must be the slowest of its stage to be the slow one.
STEADY_SHARE = 0.5
#: Correlation over steps of the same rank's slowness between stages that sequences make.
CORRELATION = 0.5


@dataclass(frozen=True)
class _Work:
    """Compute of every worker in every step.

    Attributes:
        compute: ``(n, s, d)`` ns by step, stage and data-parallel rank; NaN where not logged.
        length: ``(n,)`` length of each step, ns.
        ranks: ``(s, d)`` global rank.
        stages: ``(s,)`` numbers of the stages.
    """

    compute: Floats
    length: Floats
    ranks: npt.NDArray[np.int64]
    stages: npt.NDArray[np.int64]
    start_ns: int
    end_ns: int

    def share(self, excess: Floats) -> float:
        """Median over steps of an excess, ``(n,)`` ns, as a share of the step."""
        values = (excess / self.length)[np.isfinite(excess)]
        return float(quantiles.median(values) or 0.0)


def _work(facts: Facts) -> _Work | None:
    columns = [
        "start_ns",
        "duration_ns",
        "rank",
        "dp_rank",
        "stage",
        "step",
        "is_compute",
        "microbatch",
    ]
    rows = facts.session.table("operation", columns=columns).to_pandas()
    if rows.empty:
        return None
    rows["dp_rank"] = rows["dp_rank"].fillna(rows["rank"]).astype(np.int64)
    rows["stage"] = rows["stage"].fillna(0).astype(np.int64)
    rows["end_ns"] = rows["start_ns"] + rows["duration_ns"]
    steps = rows.groupby("step").agg(start=("start_ns", "min"), end=("end_ns", "max"))
    order = [
        np.unique(rows[name].to_numpy(), return_inverse=True)
        for name in ("step", "stage", "dp_rank")
    ]
    shape = tuple(len(values) for values, _index in order)
    flat = np.ravel_multi_index(tuple(index for _values, index in order), shape)
    is_compute = rows["is_compute"].to_numpy(dtype=bool)
    of_microbatch = is_compute & rows["microbatch"].notna().to_numpy()
    if of_microbatch.any():
        # The optimizer's time goes by parameters, not by the work of a step.
        is_compute = of_microbatch
    size = int(np.prod(shape))
    duration = rows["duration_ns"].to_numpy(dtype=np.float64)
    total = np.bincount(flat[is_compute], weights=duration[is_compute], minlength=size)
    seen = np.bincount(flat[is_compute], minlength=size) > 0
    ranks = np.full(shape[1:], -1, dtype=np.int64)
    ranks[order[1][1], order[2][1]] = rows["rank"].to_numpy()
    return _Work(
        np.where(seen, total, np.nan).reshape(shape),
        (steps["end"] - steps["start"]).to_numpy(dtype=np.float64),
        ranks,
        order[1][0],
        int(rows["start_ns"].min()),
        int(rows["end_ns"].max()),
    )


def find_slow_worker(facts: Facts) -> Finding:
    """Return which worker or stage of a job is slower than its peers, or that none is."""
    work = _work(facts)
    n = 0 if work is None else len(work.length)
    if work is None or n < N_STEPS or work.compute[0].size < 2:
        return Finding(
            STRAGGLER,
            Status.NOT_APPLICABLE,
            undecided_because=f"{n} steps of too few workers cannot be compared",
        )
    with warnings.catch_warnings():
        # Workers may be missing from steps, and their means with them.
        warnings.simplefilter("ignore", RuntimeWarning)
        answers = (_worker(work), _stage(work), _sequences(work))
    candidates = [item for item in answers if item is not None]
    material = [item for item in candidates if item.lost_share >= MATERIAL_SHARE]
    if not material:
        return Finding(
            STRAGGLER,
            Status.NOT_FOUND,
            confidence=0.85,
            evidence=[evidence for item in candidates for evidence in item.evidence[1:]],
            excluded=[Exclusion(STRAGGLER, "workers and stages compute for equally long")],
        )
    first = max(material, key=lambda item: (item.status is Status.FOUND, item.lost_share))
    for item in candidates:
        if item is not first:
            first.evidence.extend(item.evidence[1:])
            first.excluded.append(
                Exclusion(
                    STRAGGLER,
                    f"{item.evidence[0].value} explains {100 * item.lost_share:.1f} % of a step",
                )
            )
    first.start_ns, first.end_ns = work.start_ns, work.end_ns
    first.lost_ns = int(first.lost_share * float(work.length.sum()))
    return first


def _finding(kind: str, share: float, evidence: list[Evidence]) -> Finding:
    """A found finding of one kind; the kind is the first number of its evidence."""
    return Finding(
        STRAGGLER,
        Status.FOUND,
        confidence=0.9,
        lost_share=max(share, 0.0),
        evidence=[Evidence("kind", kind, "", None, "operation"), *evidence],
    )


def _worker(work: _Work) -> Finding | None:
    """The worker that is slowest against the others of its stage."""
    n, n_stages, n_ranks = work.compute.shape
    if n_ranks < 2:
        return None
    best: tuple[float, int, int, Floats] | None = None
    for d in range(n_ranks):
        peers = np.nanmedian(np.delete(work.compute, d, axis=2), axis=2)
        for s in range(n_stages):
            share = work.share(work.compute[:, s, d] - peers[:, s])
            if best is None or share > best[0]:
                best = (share, s, d, peers[:, s])
    assert best is not None
    share, s, d, peers_ns = best
    own = work.compute[:, s, d]
    ratio = float(quantiles.median((own / peers_ns)[np.isfinite(own)]) or 1.0)
    slowest = np.nanargmax(np.nan_to_num(work.compute[:, s, :], nan=-1.0), axis=1)
    steady = float((slowest == d).mean())
    if steady < STEADY_SHARE:
        share = 0.0
    rank = int(work.ranks[s, d])
    finding = _finding(
        "straggler_worker",
        share,
        [
            Evidence("worker_compute_vs_peers", round(ratio, 3), "ratio", n, "operation"),
            Evidence("slowest_in_step_share", round(steady, 3), "ratio", n, "operation"),
        ],
    )
    finding.where = Where(rank=rank, stage=int(work.stages[s]))
    finding.summary = (
        f"Rank {rank} (stage {work.stages[s]}) computes {ratio:.2f} times as long as the other "
        f"ranks of its stage, the slowest of them in {100 * steady:.0f} % of {n} steps; all wait "
        f"for it: {100 * share:.0f} % of a step."
    )
    return finding


def _stage(work: _Work) -> Finding | None:
    """The stage that is slowest on the typical rank."""
    n, n_stages, _n_ranks = work.compute.shape
    if n_stages < 2:
        return None
    typical = np.nanmedian(work.compute, axis=2)
    mean = np.nanmean(typical, axis=1)
    shares = [work.share(typical[:, s] - mean) for s in range(n_stages)]
    s = int(np.argmax(shares))
    others = np.nanmedian(np.delete(typical, s, axis=1), axis=1)
    ratio = float(quantiles.median(typical[:, s] / others) or 1.0)
    finding = _finding(
        "stage_imbalance",
        shares[s],
        [
            Evidence("slowest_stage", int(work.stages[s]), "", n, "operation"),
            Evidence("stage_compute_vs_others", round(ratio, 3), "ratio", n, "operation"),
        ],
    )
    finding.where = Where(stage=int(work.stages[s]))
    finding.summary = (
        f"Stage {work.stages[s]} computes {ratio:.2f} times as long as the other stages on all its "
        f"ranks: balanced stages would save up to {100 * shares[s]:.0f} % of a step."
    )
    finding.advice = "Move layers from that stage to the others."
    return finding


def _sequences(work: _Work) -> Finding | None:
    """Data-parallel ranks that are slow in turn."""
    n, n_stages, n_ranks = work.compute.shape
    if n_ranks < 2:
        return None
    own = np.nanmean(work.compute, axis=1)
    # What a rank steadily has more than others is a slow worker, not its sequences.
    own = own - np.nanmedian(own, axis=0, keepdims=True)
    share = work.share(np.nanmax(own, axis=1) - np.nanmean(own, axis=1))
    correlation = _correlation(work.compute) if n_stages > 1 else float("nan")
    finding = _finding(
        "sequence_imbalance",
        share,
        [
            Evidence("spread_over_ranks", round(100 * share, 2), "%", n, "operation"),
            Evidence(
                "correlation_over_stages",
                round(correlation, 2) if np.isfinite(correlation) else "one stage",
                "",
                n,
                "operation",
            ),
        ],
    )
    finding.summary = (
        f"Another rank is the slow one in each step, by {100 * share:.0f} % of a step, and the "
        "same one in all stages: sequences of uneven length."
    )
    finding.advice = "Balance the sum of squared sequence lengths over data-parallel ranks."
    if not correlation >= CORRELATION:
        finding.status, finding.confidence = Status.UNDECIDED, 0.4
        finding.undecided_because = (
            "another rank is the slow one in each step, but not the same one in all stages"
        )
        finding.settled_by = "sequence lengths of the batches, or garbage collections in the log"
    return finding


def _correlation(compute: Floats) -> float:
    """Mean correlation, over pairs of stages, of how slow each rank was in each step."""
    slow = compute - np.nanmean(compute, axis=2, keepdims=True)
    slow = slow - np.nanmedian(slow, axis=0, keepdims=True)
    table = np.nan_to_num(slow.transpose(1, 0, 2).reshape(compute.shape[1], -1))
    deviation = table.std(axis=1)
    table = table[deviation > 0]
    if len(table) < 2:
        return float("nan")
    matrix = np.corrcoef(table)
    return float(matrix[np.triu_indices(len(matrix), 1)].mean())
