"""Compares verdicts with what is right, and sums up.

One :class:`Result` is one verdict about one session. What it counts as:

======== =========================================================================================
right     the right cause (or the right calm or ``unknown``) is first, with a right status
overstated the right cause is first, as found where the report cannot prove it
unknown   nothing was stated, or only with doubt: honest, and no help
unsure    another cause is first, with less than :data:`CONFIDENT`
missed    called healthy or without demand, though something is wrong
wrong     another cause is stated with at least :data:`CONFIDENT`, or one that must not be
======== =========================================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.scenarios.case import CALM

#: From here on a statement is one that people act on.
CONFIDENT = 0.7
SURE = 0.9
#: A session of at most this is one of minutes, s.
SHORT_S = 600
OUTCOMES = ("right", "overstated", "unknown", "unsure", "missed", "wrong")


@dataclass(frozen=True)
class Truth:
    """What is right about one session; the words of :class:`tests.scenarios.case.Case`."""

    cause: str
    status: tuple[str, ...] = ("found",)
    or_causes: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    must_not: tuple[str, ...] = ()

    @property
    def right(self) -> tuple[str, ...]:
        """Slugs that are right in the first place."""
        return (self.cause, *self.or_causes)


@dataclass(frozen=True)
class Result:
    """What was said about one session, and what it counts as.

    Attributes:
        kind: built, live or recorded.
        name: Case, scenario or recording.
        seed: What it was drawn with.
        ablation: Which source was taken away; empty for none.
        cause: What is right.
        said: Cause at rank 1.
        status: Status of that.
        confidence: Confidence of the verdict.
        outcome: One of :data:`OUTCOMES`.
        is_in_three: Whether a right cause is among the first three.
        stated: Findings stated as found, and calm verdicts: (slug, confidence, whether right).
        seconds: Length of the recording.
        why: One sentence where it is not right.
        failed: What the analysis says of analyzers that failed.
    """

    kind: str
    name: str
    seed: int
    ablation: str
    cause: str
    said: str
    status: str
    confidence: float
    outcome: str
    is_in_three: bool
    stated: tuple[tuple[str, float, bool], ...]
    seconds: float
    why: str = ""
    failed: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The result as JSON-able values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        """The result that :meth:`to_json` gave."""
        stated = tuple((str(slug), float(sure), bool(ok)) for slug, sure, ok in data["stated"])
        return cls(**{**data, "stated": stated, "failed": tuple(data["failed"])})


def grade(
    truth: Truth,
    answer: Mapping[str, Any],
    *,
    kind: str,
    name: str,
    seed: int = 0,
    ablation: str = "",
) -> Result:
    """Return what the JSON of an analysis counts as."""
    findings = [item for item in answer["findings"] if item["status"] in ("found", "undecided")]
    found = {
        item["cause"]: float(item["confidence"]) for item in findings if item["status"] == "found"
    }
    said, status = _first(answer, findings)
    confidence = float(answer["verdict"].get("confidence") or 0.0)
    outcome, why = _outcome(truth, said, status, confidence, found)
    ranked = list(dict.fromkeys([said, *(item["cause"] for item in findings)]))
    allowed = {*truth.right, *truth.also} - {*truth.must_not}
    stated = [(cause, sure, cause in allowed) for cause, sure in found.items() if cause not in CALM]
    if said in CALM:
        stated.append((said, confidence, said in truth.right))
    return Result(
        kind=kind,
        name=name,
        seed=seed,
        ablation=ablation,
        cause=truth.cause,
        said=said,
        status=status,
        confidence=round(confidence, 3),
        outcome=outcome,
        is_in_three=any(cause in truth.right for cause in ranked[:3]),
        stated=tuple((slug, round(sure, 3), is_right) for slug, sure, is_right in stated),
        seconds=(answer["end_ns"] - answer["start_ns"]) / 1e9,
        why=why,
        failed=tuple(note for note in answer["notes"] if "failed on this session" in note),
    )


def _first(answer: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Cause and status at rank 1; the first candidate where the verdict is undecided."""
    cause = str(answer["verdict"]["cause"])
    if cause == "unknown" and findings and findings[0]["status"] == "undecided":
        return str(findings[0]["cause"]), "undecided"
    first = next((item for item in findings if item["cause"] == cause), None)
    return cause, str(first["status"]) if first else "none"


def _outcome(
    truth: Truth, said: str, status: str, confidence: float, found: Mapping[str, float]
) -> tuple[str, str]:
    """What it counts as, and why."""
    forbidden = [slug for slug in truth.must_not if slug in found]
    if forbidden:
        return "wrong", f"{forbidden[0]} was stated, which must not be said"
    extra = {
        slug: sure
        for slug, sure in found.items()
        if slug not in (*truth.right, *truth.also, *CALM) and sure >= CONFIDENT
    }
    is_calm = truth.cause in CALM or truth.cause == "unknown"
    if extra and (is_calm or said in extra):
        slug = said if said in extra else next(iter(extra))
        return "wrong", f"{slug} was stated ({extra[slug]:.0%}), {truth.cause} is right"
    if said in truth.right:
        if said in CALM or said == "unknown" or status in truth.status:
            return "right", ""
        if status == "found":
            return "overstated", f"{said} was stated as found; it cannot be proven here"
        return "unknown", f"{said} is only {status}; {' or '.join(truth.status)} is right"
    if truth.cause == "unknown" and status == "undecided":
        return "right", ""
    if said in CALM:
        return "missed", f"called {said} ({confidence:.0%}), {truth.cause} is right"
    if said == "unknown":
        return "unknown", f"unknown, {truth.cause} is right"
    if status == "found" and confidence >= CONFIDENT:
        return "wrong", f"{said} was stated ({confidence:.0%}), {truth.cause} is right"
    return "unsure", f"{said} comes first ({status}, {confidence:.0%}), {truth.cause} is right"


@dataclass(frozen=True)
class Summary:
    """The figures of a set of results.

    Attributes:
        n: Results.
        outcomes: Of each outcome, how many.
        n_first: Right cause at rank 1, whatever its status.
        n_three: Right cause among the first three.
        n_confident_wrong: Wrong causes stated with confidence: the worst outcome.
        n_confident_missed: Called calm with confidence, though something is wrong.
        healthy_hours: Length of the sessions in which nothing is wrong.
        healthy_short_hours: The part of it in sessions of minutes.
        n_false_alarms: Causes stated as found in those.
        calibration: (from, to, statements, right ones) by confidence.
        by_cause: Per cause: cases, right at rank 1, stated, stated and right.
        confusion: (right, said) to count.
    """

    n: int
    outcomes: dict[str, int]
    n_first: int
    n_three: int
    n_confident_wrong: int
    n_confident_missed: int
    healthy_hours: float
    healthy_short_hours: float
    n_false_alarms: int
    calibration: list[tuple[float, float, int, int]]
    by_cause: dict[str, dict[str, int]]
    confusion: dict[tuple[str, str], int]

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON-able values."""
        data = asdict(self)
        data["confusion"] = [
            {"right": right, "said": said, "n": n} for (right, said), n in self.confusion.items()
        ]
        return data


def summarise(results: Iterable[Result]) -> Summary:
    """Return the figures of some results."""
    rows = list(results)
    healthy = [row for row in rows if row.cause in CALM]
    by_cause: dict[str, Counter[str]] = {}
    confusion: Counter[tuple[str, str]] = Counter()
    for row in rows:
        said = row.said if row.status != "undecided" else "unknown"
        is_first = is_right_first(row)
        confusion[row.cause, row.cause if is_first and said != "unknown" else said] += 1
        counts = by_cause.setdefault(row.cause, Counter())
        counts["cases"] += 1
        counts["first"] += is_first
        if said != "unknown":
            # Another slug that is right as well counts for the cause of the case.
            stated = by_cause.setdefault(row.cause if is_first else said, Counter())
            stated["stated"] += 1
            stated["stated_right"] += is_first
    return Summary(
        n=len(rows),
        outcomes={name: sum(row.outcome == name for row in rows) for name in OUTCOMES},
        n_first=sum(is_right_first(row) for row in rows),
        n_three=sum(row.is_in_three or row.outcome == "right" for row in rows),
        n_confident_wrong=sum(row.outcome == "wrong" for row in rows),
        n_confident_missed=sum(
            row.outcome == "missed" and row.confidence >= CONFIDENT for row in rows
        ),
        healthy_hours=sum(row.seconds for row in healthy) / 3600,
        healthy_short_hours=sum(row.seconds for row in healthy if row.seconds <= SHORT_S) / 3600,
        n_false_alarms=sum(row.outcome == "wrong" for row in healthy),
        calibration=_calibration(rows),
        by_cause={
            cause: {
                key: by_cause[cause][key] for key in ("cases", "first", "stated", "stated_right")
            }
            for cause in sorted(by_cause)
        },
        confusion=dict(sorted(confusion.items())),
    )


def is_right_first(row: Result) -> bool:
    """Whether the right cause is at rank 1, be it found or undecided."""
    return row.outcome in ("right", "overstated")


def _calibration(rows: Iterable[Result]) -> list[tuple[float, float, int, int]]:
    stated = [item for row in rows for item in row.stated]
    bins = []
    for low, high in ((0.0, 0.5), (0.5, CONFIDENT), (CONFIDENT, SURE), (SURE, 1.01)):
        inside = [is_right for _slug, sure, is_right in stated if low <= sure < high]
        bins.append((low, min(high, 1.0), len(inside), sum(inside)))
    return bins
