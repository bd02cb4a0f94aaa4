"""Steps of an inference engine as its trace names them: prompts against decodes, by device time."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from analysis import intervals, quantiles
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where

Ints = npt.NDArray[np.int64]

HOGGING = "prefill.hogging"

#: Share of the device time of all steps that prompts must hold while decodes wait.
HOG_SHARE = 0.25
#: Prompt tokens per decode token in a step that prompts dominate.
PROMPT_HEAVY = 10
#: A step with prompts counts as long from this many times a step of decodes alone.
LONG_STEP = 3.0
#: Steps of each kind that a comparison needs.
N_STEPS = 3

_BATCH = re.compile(r"context_(\d+)\(([^)]*)\)_generation_(\d+)\(([^)]*)\)")
_TOKENS = re.compile(r"(?:sq)?(\d+)")
_MIXED = re.compile(r"\bmixed", re.IGNORECASE)
_PREFILL = re.compile(r"\b(extend|prefill)|forward_extend", re.IGNORECASE)
_DECODE = re.compile(r"\bdecode|forward_decode", re.IGNORECASE)


@dataclass(frozen=True)
class Batch:
    """What one step computes: requests and tokens of prompts and of decodes; tokens are None
    where the name does not tell.
    """

    n_prompts: int
    n_decodes: int
    prompt_tokens: int | None = None
    decode_tokens: int | None = None


def batch_of(name: str) -> Batch | None:
    """Return what the name of a step says of its batch, None if nothing."""
    told = _BATCH.search(name)
    if told:
        prompts, decodes = int(told[1]), int(told[3])
        return Batch(prompts, decodes, _tokens(told[2], prompts), _tokens(told[4], decodes))
    if _MIXED.search(name):
        return Batch(1, 1)
    if _PREFILL.search(name):
        return Batch(1, 0)
    if _DECODE.search(name):
        return Batch(0, 1)
    return None


def _tokens(text: str, n_requests: int) -> int | None:
    first = _TOKENS.match(text)
    if n_requests == 0:
        return 0
    return int(first[1]) if first else None


@dataclass(frozen=True)
class _Steps:
    """Steps with a told batch in time order, and the device time of each, ns."""

    spans: Ints
    device_ns: Ints
    has_prompts: npt.NDArray[np.bool_]
    is_heavy: npt.NDArray[np.bool_]
    n_waiting: Ints
    batches: list[Batch]

    @property
    def is_hog(self) -> npt.NDArray[np.bool_]:
        """Steps whose prompts keep two or more decodes waiting."""
        return self.is_heavy & (self.n_waiting >= 2)


def _steps(facts: Facts) -> _Steps | None:
    if not facts.session.has("annotation") or not facts.timed:
        return None
    columns = ["start_ns", "duration_ns", "category", "name", "rank"]
    rows = facts.session.table("annotation", columns=columns)
    rows = rows.filter(pc.equal(rows["category"], "step"))
    batches = [batch_of(name) for name in rows["name"].to_pylist()]
    known = [index for index, batch in enumerate(batches) if batch is not None]
    if not known:
        return None
    # One rank tells for all: they step together.
    first = min(rows["rank"].to_pylist()[index] or 0 for index in known)
    known = [index for index in known if (rows["rank"][index].as_py() or 0) == first]
    told = [batch for index in known if (batch := batches[index]) is not None]
    start = rows["start_ns"].to_numpy()[known]
    spans = intervals.make(start, start + rows["duration_ns"].to_numpy()[known])
    activities = next(
        (item.activities for item in facts.timed if (item.activities.rank or 0) == first),
        facts.timed[0].activities,
    )
    at = np.searchsorted(spans[:, 0], activities.call_start_ns, side="right") - 1
    is_in = (at >= 0) & (activities.call_start_ns < spans[np.maximum(at, 0), 1])
    length = np.zeros(len(spans), dtype=np.int64)
    rows = np.flatnonzero(is_in)
    rows = rows[np.argsort(at[rows], kind="stable")]
    found, first_row = np.unique(at[rows], return_index=True)
    for index, part in zip(found.tolist(), np.split(rows, first_row[1:]), strict=False):
        length[index] = intervals.total(activities.spans[part])
    has_prompts = np.array([batch.n_prompts > 0 for batch in told])
    heavy = np.array([_is_heavy(batch) for batch in told])
    decodes = np.array([batch.n_decodes for batch in told], dtype=np.int64)
    # Beside a step of prompts alone, the decodes of the nearest steps on both sides wait.
    before = np.concatenate((np.zeros(1, dtype=np.int64), decodes[:-1]))
    after = np.append(decodes[1:], 0)
    waiting = np.where(decodes > 0, decodes, np.minimum(before, after))
    return _Steps(spans, length, has_prompts, heavy, waiting, told)


def _is_heavy(batch: Batch) -> bool:
    if batch.n_prompts == 0:
        return False
    if batch.prompt_tokens is None or batch.decode_tokens is None:
        return True
    return batch.prompt_tokens >= PROMPT_HEAVY * max(batch.decode_tokens, 1)


def hogging_share(facts: Facts) -> float:
    """Return the share in [0, 1] of the device time of named steps in which prompts kept decodes
    waiting; 0 where no steps are named.
    """
    steps = _steps(facts)
    if steps is None or steps.device_ns.sum() == 0:
        return 0.0
    return float(steps.device_ns[steps.is_hog].sum() / steps.device_ns.sum())


def find_by_batches(facts: Facts) -> Finding | None:
    """Return whether steps of prompts kept decodes waiting; None where no step tells its batch."""
    steps = _steps(facts)
    if steps is None or steps.device_ns.sum() == 0:
        return None
    finding = Finding(HOGGING, Status.NOT_FOUND, confidence=0.85)
    share = hogging_share(facts)
    alone = steps.device_ns[~steps.has_prompts & (steps.device_ns > 0)]
    hog = steps.is_hog
    n_hog = int(hog.sum())
    decode, prefill = quantiles.median(alone), quantiles.median(steps.device_ns[hog])
    finding.evidence.append(
        Evidence("device_time_of_prompt_steps", round(100 * share, 1), "%", len(hog), "annotation")
    )
    if decode is not None:
        finding.evidence.append(
            Evidence("decode_step_p50", int(decode), "ns", len(alone), "gpu_activity")
        )
    if share < HOG_SHARE or prefill is None:
        finding.excluded.append(
            Exclusion(
                HOGGING,
                f"{n_hog} of {len(hog)} steps computed mostly prompts while decodes waited",
            )
        )
        return finding
    tokens = [batch for batch, is_in in zip(steps.batches, hog, strict=True) if is_in]
    prompts = sum(batch.prompt_tokens or 0 for batch in tokens)
    decodes = sum(batch.decode_tokens or 0 for batch in tokens)
    finding.evidence += [
        Evidence("prompt_step_p50", int(prefill), "ns", n_hog, "gpu_activity"),
        Evidence("prompt_tokens_in_them", prompts, "", n_hog, "annotation"),
        Evidence("decode_tokens_in_them", decodes, "", n_hog, "annotation"),
    ]
    spans = steps.spans[hog]
    finding.start_ns, finding.end_ns = int(spans[0, 0]), int(spans[-1, 1])
    pid = facts.processes[0] if facts.processes else None
    finding.where = Where(pid, None, facts.timed[0].activities.device)
    total = int(steps.device_ns[hog].sum())
    if decode is None or len(alone) < N_STEPS or n_hog < N_STEPS:
        finding.lost_ns, finding.lost_share = total, share
        finding.status, finding.confidence = Status.UNDECIDED, 0.6
        finding.undecided_because = (
            f"steps of {prefill / 1e6:.0f} ms (n = {n_hog}) computed {prompts} prompt tokens while "
            f"{decodes} decodes waited in them, but decodes alone to compare with are too few "
            f"(n = {len(alone)})"
        )
        finding.settled_by = "a longer trace with decode steps, or the engine's metrics (--engine)"
        return finding
    lost = max(total - n_hog * int(decode), 0)
    finding.lost_ns, finding.lost_share = lost, lost / max(int(steps.device_ns.sum()), 1)
    ratio = prefill / max(decode, 1)
    if ratio < LONG_STEP:
        finding.excluded.append(
            Exclusion(HOGGING, f"a step with prompts takes {ratio:.1f} times one of decodes alone")
        )
        finding.lost_ns, finding.lost_share = 0, 0.0
        return finding
    finding.status = Status.FOUND
    finding.confidence = 0.85 * facts.trust("cuda", "cupti")
    finding.spans = intervals.union(spans)
    finding.summary = (
        f"Steps with prompts take {prefill / 1e6:.0f} ms on the device against {decode / 1e6:.1f} "
        f"ms of decodes alone, and hold it for {100 * share:.0f} % of the steps' device time "
        "while decodes wait."
    )
    return finding
