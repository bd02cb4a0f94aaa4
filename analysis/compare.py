"""What differs between two recordings, or two ranges of one, beyond what noise explains.

``compare(before, after)`` is the ground of the cause ``regression``: the same load, served slower.
Every difference has an interval from how each recording varies within itself
(:mod:`analysis.resampling`). A difference counts as a change only if it holds at 5 % over *all*
figures together, and is large enough to matter; else the answer is "no change beyond noise".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from analysis.attribution import Attribution, attribute
from analysis.causes import cause
from analysis.compared_figures import Figures, Measure, budget_figures, figures
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status
from analysis.kept import Kept
from analysis.long_recording import DETAIL
from analysis.resampling import LEAST_BLOCKS, SHORTEST_BLOCK_NS, block_edges, difference, value_of
from analysis.timeline import Session, TimelineError

#: Version of the JSON of a comparison; raised when a reader of the old one would misread it.
SCHEMA_VERSION = 1
#: Confidence of the interval by which loads are called alike.
CONFIDENCE = 0.95
#: Probability of calling any figure changed where nothing changed, over all figures together.
FALSE_ALARM = 0.05
#: A smaller change is never told: relative to the larger value, and in points of a percentage.
LEAST_SHARE = 0.02
LEAST_POINTS = 1.0
#: Two loads are alike where the whole interval lies within this of no difference.
LOAD_TOLERANCE = 0.2
#: Shares of the budget below this on both sides are not compared, in [0, 1].
_LEAST_BUDGET = 0.01

_ARRIVALS = ("requests received", "requests in the system")
_MAKE_UP = ("prompt tokens per request", "tokens generated per request")


@dataclass(frozen=True)
class Change:
    """How one figure differs.

    Attributes:
        measure: What it is.
        before: Its value in the first recording, in the measure's unit.
        after: The same in the second.
        n_before: Samples behind it in the first.
        n_after: Samples in the second.
        difference: After less before: as a share of before where the measure is relative
            (0.1 is 10 % more), else in its unit.
        low: Lower end of the 95 % interval of that difference.
        high: Upper end.
        deciding_low: Lower end of the interval that decides, of the comparison's
            ``deciding_level``: no change beyond noise where it holds 0.
        deciding_high: Upper end of it.
        is_beyond_noise: Whether it is a change at all.
    """

    measure: Measure
    before: float
    after: float
    n_before: int
    n_after: int
    difference: float
    low: float
    high: float
    deciding_low: float
    deciding_high: float
    is_beyond_noise: bool

    @property
    def is_worse(self) -> bool | None:
        """Whether it is a change for the worse; None where neither direction is."""
        if not self.measure.better:
            return None
        is_more = self.difference > 0
        return self.is_beyond_noise and is_more == (self.measure.better == "lower")

    @property
    def is_too_small(self) -> bool:
        """Whether its interval leaves 0 out, but so little is never told as a change."""
        return not self.is_beyond_noise and (self.deciding_low > 0 or self.deciding_high < 0)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values."""
        measure = self.measure
        return {
            "group": measure.group,
            "name": measure.name,
            "unit": measure.unit,
            "device": measure.device,
            "better": measure.better or None,
            "before": self.before,
            "after": self.after,
            "n_before": self.n_before,
            "n_after": self.n_after,
            "is_relative": measure.is_relative,
            "difference": self.difference,
            "low": self.low,
            "high": self.high,
            "deciding_low": self.deciding_low,
            "deciding_high": self.deciding_high,
            "is_beyond_noise": self.is_beyond_noise,
            "is_worse": self.is_worse,
        }


@dataclass(frozen=True)
class Side:
    """One of the two recordings."""

    name: str
    start_ns: int
    end_ns: int
    n_blocks: int
    attribution: Attribution
    trust: float

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values."""
        verdict = self.attribution.verdict
        return {
            "session": self.name,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "n_blocks": self.n_blocks,
            "is_simulated": self.attribution.is_simulated,
            "cause": verdict.cause,
            "confidence": verdict.confidence,
        }


@dataclass(frozen=True)
class Comparison:
    """What differs between two recordings.

    Attributes:
        before: The first recording.
        after: The second.
        regression: Whether the same load is served slower, as a finding.
        changes: Every figure that both have, in the order of their groups.
        not_compared: Names of figures that only one has, or that have too few samples.
        notes: Sentences about losses and gaps of either recording.
        deciding_level: Confidence of the interval that decides on each figure, such that all of
            them together are wrong in 5 % of cases.
    """

    before: Side
    after: Side
    regression: Finding
    changes: list[Change]
    not_compared: list[str]
    notes: list[str]
    deciding_level: float

    @property
    def changed(self) -> list[Change]:
        """The figures that differ beyond noise."""
        return [change for change in self.changes if change.is_beyond_noise]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON-able values, described in the documentation."""
        return {
            "schema_version": SCHEMA_VERSION,
            "deciding_level": self.deciding_level,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "regression": self.regression.to_dict(),
            "changes": [change.to_dict() for change in self.changes],
            "not_compared": self.not_compared,
            "notes": self.notes,
        }


def compare(before: Session, after: Session) -> Comparison:
    """Return what differs between two recordings beyond noise.

    Args:
        before: The recording to compare with; a range of it by :meth:`Session.between`.
        after: The recording in question.

    Raises:
        TimelineError: one of them is too short to tell noise from change.
    """
    first, old = _side(before, "BEFORE")
    second, new = _side(after, "AFTER")
    keys = _budget_keys(first.attribution, second.attribution)
    old.update(budget_figures(first.attribution.budgets, keys))
    new.update(budget_figures(second.attribution.budgets, keys))
    shared = [measure for measure in old if measure in new]
    level = 1 - FALSE_ALARM / max(len(shared), 1)
    changes, not_compared = [], []
    for measure in shared:
        change = _change(measure, old, new, first.n_blocks, second.n_blocks, level)
        if change is None:
            not_compared.append(f"{_title(measure)}: too few samples, or none that differ from 0")
        else:
            changes.append(change)
    for figures_, other, word in ((old, new, "BEFORE"), (new, old, "AFTER")):
        not_compared.extend(
            f"{_title(measure)}: only in {word}" for measure in figures_ if measure not in other
        )
    notes = [f"BEFORE: {note}" for note in first.attribution.notes]
    notes += [f"AFTER: {note}" for note in second.attribution.notes]
    return Comparison(
        first, second, _regression(first, second, changes), changes, not_compared, notes, level
    )


def _title(measure: Measure) -> str:
    device = "" if measure.device is None else f" (device {measure.device})"
    return f"{measure.group}, {measure.name}{device}"


def _side(session: Session, word: str) -> tuple[Side, Figures]:
    """One recording and its figures.

    Raises:
        TimelineError: it is too short.
    """
    edges = block_edges(session.start_ns, session.end_ns)
    if edges is None:
        least_s = LEAST_BLOCKS * SHORTEST_BLOCK_NS / 1e9
        raise TimelineError(
            f"{word} is {session.duration_ns / 1e9:.1f} s long, too short to tell noise from "
            f"change; give at least {least_s:.0f} s, better a minute"
        )
    session, note = _with_whole_tables(session)
    facts = Facts(session)
    attribution = attribute(session, window_ns=int(edges[1] - edges[0]))
    if note:
        attribution.notes.insert(0, note)
    side = Side(
        session.path.name,
        session.start_ns,
        session.end_ns,
        len(edges) - 1,
        attribution,
        facts.trust("cuda", "engine", "nvml"),
    )
    return side, figures(facts, edges)


def _with_whole_tables(session: Session) -> tuple[Session, str]:
    """The session without tables of which it holds only a part, and what is left out."""
    part = session.between(session.start_ns, session.end_ns)
    spans = Kept.read(session.path).detailed(part.start_ns, part.end_ns)
    if spans != [(part.start_ns, part.end_ns)]:
        note = "full detail was not kept of all of it: calls and scheduling are not compared"
    elif Facts(part).complete_ns < part.end_ns:
        note = "it holds outliers only: calls and scheduling are not compared"
    else:
        return part, ""
    return part.without(DETAIL), note


def _budget_keys(*attributions: Attribution) -> dict[int | None, set[tuple[str, str]]]:
    """By device, the (state, reason) whose share is worth a line in any of the recordings."""
    keys: dict[int | None, set[tuple[str, str]]] = {}
    for attribution in attributions:
        for budget in attribution.budgets:
            shares = budget.totals().items()
            large = {key for key, share in shares if share >= _LEAST_BUDGET}
            keys.setdefault(budget.device, set()).update(large)
    return keys


def _change(
    measure: Measure, old: Figures, new: Figures, n_old: int, n_new: int, level: float
) -> Change | None:
    """The change of one figure; None where it cannot be told, or is not worth a line."""
    before, after = value_of(old[measure].figure, n_old), value_of(new[measure].figure, n_new)
    found = difference(
        old[measure].figure, new[measure].figure, n_old, n_new, is_relative=measure.is_relative
    )
    if found is None:
        return None
    value = found.value
    limits: tuple[float, ...] = (*found.limits(CONFIDENCE), *found.limits(level))
    if measure.is_relative:
        value, limits = math.expm1(value), tuple(_expm1(limit) for limit in limits)
    low, high, deciding_low, deciding_high = limits
    is_beyond = deciding_low > 0 or deciding_high < 0
    is_large = abs(after - before) >= LEAST_SHARE * max(abs(after), abs(before))
    if measure.unit == "%":
        is_large = abs(after - before) >= LEAST_POINTS
    return Change(
        measure,
        before,
        after,
        old[measure].n,
        new[measure].n,
        value,
        low,
        high,
        deciding_low,
        deciding_high,
        is_beyond and is_large,
    )


def _expm1(value: float) -> float:
    """The share that a difference of logarithms is, where it fits a float."""
    return math.expm1(min(value, 700.0))


def _regression(before: Side, after: Side, changes: list[Change]) -> Finding:
    """Whether the same load is served slower."""
    service = [item for item in changes if item.measure.group == "service"]
    worse = [item for item in service if item.is_worse]
    # A launch costs what it costs whatever the load; that alone is no slower service.
    evidence = [_evidence(item) for item in worse]
    if not service:
        return Finding(
            "regression",
            Status.NOT_APPLICABLE,
            undecided_because="no figure of the service (tokens, requests, latencies) is in both; "
            "record both with: tracer record --pid PID --engine URL",
        )
    if not worse:
        return Finding(
            "regression",
            Status.NOT_FOUND,
            excluded=[
                Exclusion(
                    "regression",
                    f"none of {len(service)} figures of the service is worse beyond noise",
                )
            ],
        )
    names = ", ".join(_words(item) for item in worse[:3])
    differs = _load_differs(changes)
    if differs:
        return Finding(
            "regression",
            Status.UNDECIDED,
            confidence=0.4,
            summary=f"Worse than before: {names}. But the load is not the same.",
            evidence=evidence,
            undecided_because=differs,
            settled_by="Record both under the same load, e.g. the same replayed requests.",
        )
    trust = min(before.trust, after.trust)
    return Finding(
        "regression",
        Status.FOUND,
        confidence=round((0.95 if len(worse) > 1 else 0.85) * trust, 2),
        summary=f"The same load is served worse than before: {names}.",
        start_ns=after.start_ns,
        end_ns=after.end_ns,
        evidence=evidence,
        excluded=[Exclusion("queue.overload", "the load is alike in both recordings")],
        advice=cause("regression").advice,
    )


def _load_differs(changes: list[Change]) -> str:
    """Why the loads cannot be called alike; empty where they can."""
    by_name = {item.measure.name: item for item in changes}
    for name in _MAKE_UP:
        item = by_name.get(name)
        if item is not None and not _is_alike(item):
            return f"{name}: {_words(item)}"
    known = [by_name[name] for name in _ARRIVALS if name in by_name]
    if not known:
        return "how much was asked is not known: neither requests received nor in the system"
    # Where clients wait for their answers, arrivals fall as the service slows and the number in
    # the system stays; where they do not, arrivals stay and the number grows.
    if any(_is_alike(item) for item in known):
        return ""
    return "; ".join(_words(item) for item in known)


def _is_alike(item: Change) -> bool:
    return item.low >= -LOAD_TOLERANCE / (1 + LOAD_TOLERANCE) and item.high <= LOAD_TOLERANCE


def _words(item: Change) -> str:
    """One change in words."""
    if item.measure.is_relative:
        return f"{item.measure.name} {100 * item.difference:+.0f} %"
    unit = " points" if item.measure.unit == "%" else f" {item.measure.unit}".rstrip()
    return f"{item.measure.name} {item.difference:+.3g}{unit}"


def _evidence(item: Change) -> Evidence:
    if item.measure.is_relative:
        value, unit = round(100 * item.difference, 2), "%"
    else:
        value, unit = item.difference, item.measure.unit
    n = min(item.n_before, item.n_after)
    return Evidence(f"change of {item.measure.name}", value, unit, n, item.measure.group)
