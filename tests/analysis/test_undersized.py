"""A pool too small for what may run, beside pools that are large enough, full or unknown."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.attribution import Attribution
from analysis.finding import Finding, Status
from tests.analysis.test_load_causes import Engine, evicting


class Sized(Engine):
    """An engine of a pool of 6,000 tokens and at most 8 requests, that tells their lengths."""

    def __init__(self, prompt: float, answer: float, answers: str, hidden: str = "") -> None:
        self.lengths = {"request_prompt_tokens": prompt, answers: answer}
        super().__init__((hidden,))

    def _scrape(self) -> None:
        super()._scrape()
        n = self.total["requests_finished"]
        self.rows += [
            {**self.rows[-1], "metric": name, "raw_name": name, "kind": kind, "value": value}
            for name, length in self.lengths.items()
            for kind, value in (("sum", n * length), ("count", n))
        ]


SEEN, ASKED = "request_generation_tokens", "request_max_tokens"


def of(attribution: Attribution) -> Finding:
    answers = (*attribution.findings, *attribution.checked)
    return next(item for item in answers if item.cause == "kv.undersized")


@pytest.mark.parametrize("answers", [SEEN, ASKED])
def test_two_fit_and_eight_may_run(tmp_path: Path, answers: str) -> None:
    attribution = evicting(Sized(2500, 500, answers), 40).attribution(tmp_path)
    finding = of(attribution)
    assert finding.status is Status.FOUND
    assert attribution.verdict.cause == "kv.undersized"
    numbers = {item.name: float(item.value) for item in finding.evidence}
    assert numbers["requests_that_fit"] == 2.0
    assert numbers["requests_allowed"] == 8
    assert numbers["preemptions"] == 40
    assert "kv.preemption" in finding.symptoms
    assert finding.lost_share == pytest.approx(2 / 9, rel=0.1)
    assert (finding.confidence > 0.85) == (answers == SEEN)


def test_requests_that_fit_are_evicted_by_something_else(tmp_path: Path) -> None:
    attribution = evicting(Sized(600, 150, SEEN), 40).attribution(tmp_path)
    finding = of(attribution)
    assert finding.status is Status.NOT_FOUND
    assert "they fit" in finding.excluded[0].reason
    assert attribution.verdict.cause == "kv.preemption"


def test_a_small_pool_that_evicts_nothing_is_no_cause(tmp_path: Path) -> None:
    attribution = Sized(2500, 500, SEEN).play(60, 2, 0, 0.97).attribution(tmp_path)
    finding = of(attribution)
    assert finding.status is Status.NOT_FOUND
    assert "no eviction cost anything" in finding.excluded[0].reason
    assert attribution.verdict.cause == "healthy"


@pytest.mark.parametrize("hidden", ["requests_max", "kv_pool_tokens"])
def test_what_is_not_exposed_is_not_guessed(tmp_path: Path, hidden: str) -> None:
    attribution = evicting(Sized(2500, 500, SEEN, hidden), 40).attribution(tmp_path)
    finding = of(attribution)
    assert finding.status is Status.NOT_APPLICABLE
    assert "not exposed" in finding.undecided_because
    assert attribution.verdict.cause == "kv.preemption"


def test_evictions_that_are_in_doubt_leave_it_in_doubt(tmp_path: Path) -> None:
    engine = Sized(2500, 500, SEEN, "kv_usage")
    finding = of(evicting(engine, 40).attribution(tmp_path))
    assert finding.status is Status.UNDECIDED
    assert "holds 2.0 requests" in finding.undecided_because
