"""Whether a verdict is the right one for a scenario."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tracer.simulated.scenarios.scenario import Expected

#: Verdicts that stand for the absence of a fault: no finding may come with them.
CALM = ("healthy", "no_demand")


@dataclass(frozen=True)
class Judgement:
    """How a verdict compares with what was staged.

    Attributes:
        is_right: Whether cause, status and culprit are as expected.
        cause: First cause of the verdict.
        status: Status of its finding; ``none`` where a verdict has no finding.
        confidence: Confidence of the verdict in [0, 1].
        text: One sentence for the reader.
    """

    is_right: bool
    cause: str
    status: str
    confidence: float
    text: str


def judge(
    expected: Expected, verdict: Mapping[str, Any], culprits: Mapping[str, int] | None = None
) -> Judgement:
    """Return how the JSON of an analysis compares with what is expected.

    Args:
        expected: The right verdict.
        verdict: What ``tracer analyze --json`` prints.
        culprits: Names and pids of staged culprits, one of which a finding may have to name.
    """
    findings = [item for item in verdict["findings"] if item["status"] in ("found", "undecided")]
    cause = str(verdict["verdict"]["cause"])
    first = next((item for item in findings if item["cause"] == cause), None)
    if cause == "unknown" and findings and findings[0]["status"] == "undecided":
        first = findings[0]
    named = str(first["cause"]) if first is not None else cause
    status = str(first["status"]) if first is not None else "none"
    confidence = float(verdict["verdict"].get("confidence") or 0.0)

    def result(is_right: bool, text: str) -> Judgement:
        return Judgement(is_right, named, status, confidence, text)

    if named not in (expected.cause, *expected.or_causes):
        return result(False, f"{named} was said, {expected.cause} was staged")
    if named in CALM:
        found = [
            item["cause"]
            for item in findings
            if item["status"] == "found" and item["cause"] not in CALM
        ]
        if found:
            return result(False, f"{named} was said, but with findings: {', '.join(found)}")
        return result(True, f"{named}, as staged")
    if status not in expected.statuses:
        return result(False, f"{named} is {status}; {' or '.join(expected.statuses)} is right")
    if expected.names_culprit and not _names_one(first or {}, culprits or {}):
        names = ", ".join(culprits or {})
        return result(False, f"{named} is right, but the culprit ({names}) is not named")
    return result(True, f"{named} ({status}), as staged")


def _names_one(finding: Mapping[str, Any], culprits: Mapping[str, int]) -> bool:
    text = json.dumps(finding)
    return any(name in text for name in culprits)
