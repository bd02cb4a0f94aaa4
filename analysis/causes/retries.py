"""Clients give up and send again: work that nobody waits for any more."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis import engine as words
from analysis.causes.declaration import Cause, Needs
from analysis.causes.engine_load import Load, load_windows
from analysis.engine import EngineSeries
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status
from analysis.severity import assess

Floats = npt.NDArray[np.float64]

RETRY = "queue.retry_storm"

#: Requests given up, and their share of all that ended, that make a storm.
N_ABORTED = 10
ABORTED_SHARE = 0.4
#: Given-up requests are sent again when as many come as end, within this.
REPLACED = (0.7, 1.4)
#: Windows that the analysis needs.
N_WINDOWS = 3
#: Time-outs end requests at one age: most of the ends lie within so many buckets of a histogram.
ONE_AGE = 0.5
#: Few requests get older than a time-out lets them, and time-outs come where requests wait: in this
#: share of the windows at least.
OLDER = 0.1
WAITED = 0.5
#: Where nobody waits and so many of the requests that end have had their first token, no time-out
#: ends them.
SELDOM = 0.1
BEGUN = 0.8
#: Prompt tokens against before, and successes, when work is done again.
MORE_PROMPTS = 1.5
FEWER = 0.8
_ABORTED = ("abort", "cancel", "timeout")


def find_retry_storm(facts: Facts) -> Finding:
    """Return whether most requests were given up by their clients and sent again."""
    engine = facts.engine
    load = load_windows(engine, N_WINDOWS) if engine is not None else None
    ended = engine.labelled(words.FINISHED, "counter") if engine is not None else []
    failed = engine.counter(words.FAILED) if engine is not None else None
    if engine is None or load is None or not ended:
        return Finding(
            RETRY,
            Status.NOT_APPLICABLE,
            undecided_because="the engine's finished requests with their reasons are not in the "
            "recording for long enough; record with --engine URL",
        )
    finding = Finding(RETRY, Status.NOT_FOUND, confidence=0.85)
    is_given_up = [any(word in labels.lower() for word in _ABORTED) for labels, _series in ended]
    aborted = np.zeros(len(load.edges) - 1)
    done = np.zeros(len(load.edges) - 1)
    for given_up, (_labels, series) in zip(is_given_up, ended, strict=True):
        grown = np.nan_to_num(series.between(load.edges))
        done += grown
        aborted += grown if given_up else 0.0
    if failed is not None and not any(is_given_up):
        grown = np.nan_to_num(failed.between(load.edges))
        done += grown
        aborted += grown
    n_aborted, n_done = float(aborted.sum()), float(done.sum())
    share = n_aborted / max(n_done, 1.0)
    finding.evidence = [
        Evidence("given_up", round(n_aborted), "requests", round(n_done), "engine_sample"),
        Evidence("given_up_share", round(100 * share, 1), "%", round(n_done), "engine_sample"),
    ]
    if n_aborted < N_ABORTED or share < ABORTED_SHARE:
        finding.excluded.append(
            Exclusion(RETRY, f"{n_aborted:.0f} of {n_done:.0f} requests that ended were given up")
        )
        return finding
    is_hit = aborted > 0
    first, last = int(np.argmax(is_hit)), len(is_hit) - int(np.argmax(is_hit[::-1]))
    during = np.zeros(len(is_hit), dtype=bool)
    during[first:last] = True
    severity = assess(load.spans(during), facts.demand)
    if not severity.is_material:
        finding.excluded.append(Exclusion(RETRY, "it took less than a tenth of the time"))
        return finding
    finding.start_ns, finding.end_ns = severity.start_ns, severity.end_ns
    return _decide(facts, engine, load, finding, aborted, done, severity.share)


def _decide(
    facts: Facts,
    engine: EngineSeries,
    load: Load,
    finding: Finding,
    aborted: Floats,
    done: Floats,
    part: float,
) -> Finding:
    n_aborted = float(aborted.sum())
    share = n_aborted / max(float(done.sum()), 1.0)
    finding.lost_share = share * part
    finding.lost_ns = int(finding.lost_share * facts.demand_ns)
    text = f"{n_aborted:.0f} requests were given up by their clients, {100 * share:.0f} % of all"
    came = None if load.arrived is None else float(np.nansum(load.arrived))
    went = float(done.sum())
    age = _one_age(engine)
    if age is not None:
        finding.evidence.append(
            Evidence("ends_at_one_age", round(100 * age[0]), "%", age[1], "engine_sample")
        )
    if came is not None and went:
        finding.evidence.append(Evidence("arrivals_per_end", round(came / went, 2), "ratio"))
    is_replaced = came is not None and went and REPLACED[0] <= came / went <= REPLACED[1]
    is_one_age = age is not None and age[0] >= ONE_AGE
    waited = float((load.waiting[aborted > 0] > 0).mean())
    is_again = _is_again(load, finding, aborted, done)
    first = engine.series(words.TTFT, "count")
    begun = 0.0 if first is None or not went else float(first.increase().sum()) / went
    if not is_again and waited <= SELDOM and begun >= BEGUN:
        finding.excluded.append(
            Exclusion(
                RETRY,
                f"hardly a request waited, and {100 * min(begun, 1.0):.0f} % had their first token "
                "before they ended: their clients cancelled them",
            )
        )
        finding.lost_ns, finding.lost_share = 0, 0.0
        return finding
    if not is_replaced or not (is_again or (is_one_age and waited >= WAITED)):
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.undecided_because = (
            f"{text}, but whether they were sent again or only cancelled cannot be told"
            + (
                ": hardly a request waited meanwhile, and an editor's next key ends one as well"
                if is_replaced and is_one_age
                else ""
            )
        )
        finding.settled_by = "the access log of what stands before the engine, or canary requests"
        return finding
    finding.status, finding.confidence = Status.FOUND, 0.85 * facts.trust("engine")
    finding.summary = f"{text}: " + (
        f"{100 * age[0]:.0f} % of the ends came at one age, as a time-out makes them, and "
        if age is not None and is_one_age
        else "fewer succeed than before though more prompts are computed, and "
    )
    finding.summary += "each was followed by a new arrival. The work on them is lost."
    finding.excluded.append(
        Exclusion("queue.overload", "most of the arrivals are requests that were given up before")
    )
    return finding


def _is_again(load: Load, finding: Finding, aborted: Floats, done: Floats) -> bool:
    """Whether more prompts were computed than before the first was given up, and fewer succeeded:
    the same work is done again.
    """
    first = int(np.argmax(aborted > 0))
    before, after = slice(0, max(first - 1, 0)), slice(first, None)
    seconds = load.length_ns / 1e9
    if first - 1 < N_WINDOWS:
        return False
    rates = []
    for part in (before, after):
        length = float(seconds[part].sum())
        prompts = float(np.nansum(load.prompts[part])) / length
        rates.append((prompts, float((done - aborted)[part].sum()) / length))
    (prompts, successes), (more, fewer) = rates
    if prompts <= 0 or successes <= 0:
        return False
    finding.evidence += [
        Evidence("prompt_tokens_rise", round(more / prompts, 2), "ratio", len(aborted) - first),
        Evidence("successes_rise", round(fewer / successes, 2), "ratio", len(aborted) - first),
    ]
    return more >= MORE_PROMPTS * prompts and fewer <= FEWER * successes


def _one_age(engine: EngineSeries) -> tuple[float, int] | None:
    """Share of the ends that lie in two neighbouring buckets of their age, and how many ended; 0
    where many got older.
    """
    edges = np.array([engine.time[0], engine.time[-1]], dtype=np.int64)
    told = engine.buckets(words.E2E, edges)
    if told is None:
        return None
    counts = told.counts.sum(axis=0)
    if counts.sum() < N_ABORTED:
        return None
    total = float(counts.sum())
    neighbours = np.append(counts[:-1] + counts[1:], counts[-1])
    at = int(np.argmax(neighbours))
    is_oldest = counts[at + 2 :].sum() <= OLDER * total
    return (float(neighbours[at]) / total if is_oldest else 0.0), round(total)


CAUSES = (
    Cause(
        RETRY,
        "time-outs send the work again",
        "Clients give up and repeat.",
        "Most requests end by their client, at one age that few outlive while others wait, or with "
        "more prompts and fewer successes than before; and each is followed by a new arrival.",
        "Real growth; users and editors who cancel (at any age, or with nobody waiting).",
        "Record the engine's metrics: tracer record --pid PID --engine URL.",
        "Mend the cause of the time-outs; back off.",
        Needs(("engine_sample",)),
        find_retry_storm,
    ),
)
