"""The pool of keys and values is too small for the requests that are allowed to run at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis import engine as words
from analysis import quantiles
from analysis.causes.declaration import Cause, Needs
from analysis.causes.preemption import find_preemption
from analysis.engine import EngineSeries
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status

UNDERSIZED = "kv.undersized"

#: The limit must allow this many times the requests that fit: a mean length is good to a third.
BEYOND = 1.5
#: Finished requests whose mean length counts.
N_REQUESTS = 5


@dataclass(frozen=True)
class _Fit:
    """How many requests of the usual length the pool holds, against how many may run."""

    pool_tokens: float
    tokens: float
    limit: float
    n_requests: int
    is_answer_seen: bool

    @property
    def n_fit(self) -> float:
        """Requests of that length that the pool holds."""
        return self.pool_tokens / self.tokens


def find_undersized(facts: Facts) -> Finding:
    """Return whether requests are evicted because more may run than the pool can hold.

    A full pool alone costs nothing, and a limit above what fits is usual where requests are short:
    so both are needed, evictions that cost something and the sizes of the requests that ran.
    """
    evictions = find_preemption(facts)
    if evictions.status is Status.NOT_APPLICABLE or facts.engine is None:
        return Finding(
            UNDERSIZED, Status.NOT_APPLICABLE, undecided_because=evictions.undecided_because
        )
    fit = _fit(facts.engine)
    if fit is None:
        return Finding(
            UNDERSIZED,
            Status.NOT_APPLICABLE,
            undecided_because="the size of the pool, the most requests that may run, or the "
            "lengths of requests are not exposed; see tracer kv-budget",
        )
    finding = Finding(UNDERSIZED, Status.NOT_FOUND, confidence=0.85)
    finding.evidence = [
        Evidence("pool", int(fit.pool_tokens), "tokens", None, "engine_sample"),
        Evidence("tokens_of_a_request", int(fit.tokens), "tokens", fit.n_requests, "engine_sample"),
        Evidence("requests_that_fit", round(fit.n_fit, 1), "requests", fit.n_requests, ""),
        Evidence("requests_allowed", int(fit.limit), "requests", None, "engine_sample"),
    ]
    told = (
        f"the pool of {fit.pool_tokens:,.0f} tokens holds {fit.n_fit:.1f} requests of "
        f"{fit.tokens:,.0f} tokens, and {fit.limit:.0f} may run"
    )
    if evictions.status is Status.NOT_FOUND:
        reason = f"{told}; no eviction cost anything"
    elif fit.limit < BEYOND * fit.n_fit:
        reason = f"{told}: they fit, so something else fills it"
    else:
        return _judge(facts, finding, evictions, fit, told)
    finding.excluded.append(Exclusion(UNDERSIZED, reason))
    return finding


def _judge(facts: Facts, finding: Finding, evictions: Finding, fit: _Fit, told: str) -> Finding:
    """Take over what the evictions cost, and decide."""
    finding.start_ns, finding.end_ns = evictions.start_ns, evictions.end_ns
    finding.lost_ns, finding.lost_share = evictions.lost_ns, evictions.lost_share
    finding.evidence += [item for item in evictions.evidence if item.name == "preemptions"]
    if evictions.status is Status.UNDECIDED:
        finding.status, finding.confidence = Status.UNDECIDED, 0.35
        finding.undecided_because = f"{told}, but {evictions.undecided_because}"
        finding.settled_by = evictions.settled_by
        return finding
    finding.status = Status.FOUND
    # The length that was asked for is the most that an answer can have.
    certainty = 1.0 if fit.is_answer_seen else 0.9
    finding.confidence = certainty * min(evictions.confidence, 0.9 * facts.trust("engine"))
    finding.spans = evictions.spans
    finding.summary = f"{told[0].upper()}{told[1:]}: those beyond are evicted and computed again."
    finding.excluded.append(
        Exclusion("queue.overload", "what is computed again is no work that arrived")
    )
    return finding


def _fit(engine: EngineSeries) -> _Fit | None:
    """How many requests fit; None where the pool, the limit or the lengths are not known."""
    pool, limit = engine.gauge(words.KV_POOL), engine.gauge(words.LIMIT)
    prompt = _mean(engine, words.REQUEST_PROMPT)
    seen = _mean(engine, words.REQUEST_ANSWER)
    answer = seen or _mean(engine, words.REQUEST_MOST)
    if pool is None or limit is None or prompt is None or answer is None:
        return None
    tokens = prompt[0] + answer[0]
    pool_tokens, most = quantiles.median(pool.value) or 0.0, quantiles.median(limit.value) or 0.0
    if tokens <= 0 or pool_tokens <= 0 or most <= 0:
        return None
    return _Fit(pool_tokens, tokens, most, min(prompt[1], answer[1]), seen is not None)


def _mean(engine: EngineSeries, metric: str) -> tuple[float, int] | None:
    """Mean of a length over the requests that finished, and their number; None of too few."""
    total, count = engine.series(metric, "sum"), engine.series(metric, "count")
    if total is None or count is None:
        return None
    n = float(np.sum(count.increase()))
    return (float(np.sum(total.increase())) / n, int(n)) if n >= N_REQUESTS else None


CAUSES = (
    Cause(
        UNDERSIZED,
        "the KV pool is too small for what may run",
        "The pool holds fewer requests than are allowed to run, and those beyond are evicted.",
        "Tokens of the pool over the tokens of the requests that ran, against the most requests "
        "that may run; and evictions from the full pool that cost something.",
        "A full pool that evicts nothing, fragmentation, and too many requests: these wait at the "
        "door and are not evicted.",
        "Record the engine's metrics with pool, limit and request lengths: tracer record --pid PID "
        "--engine URL; or compute it: tracer kv-budget.",
        "Lower the most requests that run at once to what fits, shorten contexts, or enlarge the "
        "pool (more memory, a smaller KV type); tracer kv-budget tells what each would change.",
        Needs(("engine_sample",)),
        find_undersized,
    ),
)
