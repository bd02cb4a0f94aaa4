"""The whole answer about a session: one verdict, ranked findings, a budget that adds up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from analysis.budget import Budget, compute_budgets
from analysis.calls import latencies
from analysis.causes import CAUSES
from analysis.causes.declaration import Cause
from analysis.conclusion import Verdict, conclude, rank
from analysis.facts import Facts
from analysis.finding import Finding, Status
from analysis.incomplete import MOST_MISSING, SHORTEST_NS, doubt_moment, withdraw_exclusions
from analysis.kept import Kept
from analysis.timeline import Session

#: Version of the JSON of an attribution; raised when a reader of the old one would misread it.
SCHEMA_VERSION = 1
#: Confidence at most that nothing is wrong where an analyzer failed.
MOST_WITHOUT_ANALYZER = 0.6


@dataclass(frozen=True)
class Attribution:
    """What the device was waiting for, and why.

    Attributes:
        verdict: The answer.
        findings: Found and undecided causes, the most important first; empty when healthy.
        checked: The other analyzers' answers: ruled out, or not applicable and why.
        budgets: One budget per device.
        latency: Latencies of launches and syncs by function and block of time.
        notes: Sentences about losses, missing sources and skipped analyzers.
        start_ns: Begin of the recording, ns.
        end_ns: End of it, ns.
        is_simulated: It came from the simulated device.
        name: Name of the session's directory.
    """

    verdict: Verdict
    findings: list[Finding]
    checked: list[Finding]
    budgets: list[Budget]
    latency: list[dict[str, Any]]
    notes: list[str]
    start_ns: int
    end_ns: int
    is_simulated: bool
    name: str

    def to_json(self) -> dict[str, Any]:
        """Return the attribution as JSON-able values, described in the documentation."""
        verdict = self.verdict
        return {
            "schema_version": SCHEMA_VERSION,
            "session": self.name,
            "is_simulated": self.is_simulated,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "verdict": {
                "cause": verdict.cause,
                "confidence": verdict.confidence,
                "status": verdict.status.value,
                "candidates": list(verdict.candidates),
                "text": verdict.text,
            },
            "findings": [finding.to_dict() for finding in self.findings],
            "checked": [finding.to_dict() for finding in self.checked],
            "budget": [window for budget in self.budgets for window in budget.windows()],
            "budget_totals": [
                {"device": budget.device, "is_timed": budget.is_timed, **budget.by_state()}
                for budget in self.budgets
            ],
            "latency": self.latency,
            "notes": self.notes,
        }


def attribute(
    session: Session, window_ns: int = 1_000_000_000, causes: Iterable[Cause] = CAUSES
) -> Attribution:
    """Return what the devices of a session were waiting for, and why.

    Args:
        session: An opened session.
        window_ns: Length of a window of the budget, ns.
        causes: Causes to look for; all by default.

    Raises:
        ValueError: the window is not positive.
    """
    if not session.is_range:
        kept = Kept.read(session.path)
        if not kept.is_whole:
            from analysis.long_recording import attribute_long

            return attribute_long(session, kept, window_ns, causes)
    facts = Facts(session)
    notes: list[str] = []
    asked = [cause for cause in causes if cause.is_implemented]
    answers = [_ask(facts, cause, notes) for cause in asked]
    failed = [cause.slug for cause, answer in zip(asked, answers, strict=True) if answer is None]
    if facts.sliced_share > MOST_MISSING:
        resting = {
            cause.slug for cause in causes if cause.needs and "cuda_call" in cause.needs.tables
        }
        told = [answer for answer in answers if answer is not None and answer.cause in resting]
        withdraw_exclusions(told, facts.sliced_share)
        whole_ns = max(facts.complete_ns - facts.start_ns, 0)
        if whole_ns < SHORTEST_NS:
            doubt_moment(told, whole_ns, "with every call")
    ranked = rank([answer for answer in answers if answer is not None])
    verdict, findings = conclude(facts, ranked)
    verdict = _without(verdict, failed)
    checked = [
        answer
        for answer in answers
        if answer is not None and answer.status in (Status.NOT_FOUND, Status.NOT_APPLICABLE)
    ]
    calls = facts.calls
    latency = [] if calls is None else latencies(calls, facts.start_ns, facts.end_ns)
    return Attribution(
        verdict=verdict,
        findings=findings,
        checked=checked,
        budgets=compute_budgets(facts, findings, window_ns),
        latency=[item.to_dict() for item in latency],
        notes=[*_notes(facts), *notes, *session.problems],
        start_ns=facts.start_ns,
        end_ns=facts.end_ns,
        is_simulated=session.manifest.is_simulated,
        name=session.path.name,
    )


def _ask(facts: Facts, cause: Cause, notes: list[str]) -> Finding | None:
    """One analyzer's answer; one that fails on odd input is skipped and said."""
    try:
        return cause.check(facts)
    except Exception as error:  # noqa: BLE001 - whatever fails here, the rest must stand
        notes.append(
            f"The analyzer of {cause.slug} failed on this session and was skipped "
            f"({type(error).__name__}: {error}); the rest stands. Please report it."
        )
        return None


def _without(verdict: Verdict, failed: list[str]) -> Verdict:
    """The verdict where analyzers failed: that nothing is wrong is less sure without them."""
    if not failed or verdict.cause not in ("healthy", "no_demand"):
        return verdict
    return replace(
        verdict,
        confidence=min(verdict.confidence, MOST_WITHOUT_ANALYZER),
        text=f"{verdict.text} Not looked for, because its analyzer failed: {', '.join(failed)}.",
    )


def _notes(facts: Facts) -> list[str]:
    """What was lost or missing, one sentence each."""
    notes = [
        f"{loss.source} lost {loss.n_lost} records ({100 * loss.share:.3g} % of its own): "
        "confidence is lowered by that."
        for loss in facts.losses
    ]
    notes.extend(
        f"{source.name}: {source.note.rstrip('.')}."
        for source in facts.manifest.sources
        if source.state in ("unavailable", "lost", "degraded") and source.note
    )
    if facts.calls is None and not facts.activity:
        notes.append("No CUDA call was recorded: causes on the launching side cannot be told.")
    return notes
