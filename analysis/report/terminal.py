"""The verdict as plain text for a tired reader: under 100 columns, the same in a pipe."""

from __future__ import annotations

import textwrap

import numpy as np

from analysis.attribution import Attribution
from analysis.budget import Budget
from analysis.causes import cause as declaration
from analysis.finding import Exclusion, Finding, Status
from analysis.report.words import (
    REASON_TEXT,
    STATE_TEXT,
    basis_text,
    evidence_text,
    length_text,
    place_text,
)

WIDTH = 96
_BAR = 60

#: One letter-like block per state, dark to light: readable without colour.
BLOCKS = {
    "hung": "X",
    "other_process": "▚",
    "compute": "█",
    "collective": "▓",
    "copy": "▒",
    "idle": "·",
    "unknown": "?",
}


def render(attribution: Attribution) -> str:
    """Return the report as text."""
    verdict = attribution.verdict
    lines: list[str] = []
    title = declaration(verdict.cause).title
    label = "  [simulated device]" if attribution.is_simulated else ""
    sure = f"{100 * verdict.confidence:.0f} % sure"
    lines += _wrap(f"{verdict.cause.upper()}: {title} ({sure}).{label}", "")
    lines += _wrap(verdict.text, "")
    lines.append("")
    for budget in attribution.budgets:
        lines += _bar(budget)
    shown = [item for item in attribution.findings if item.cause != "unknown"]
    if shown:
        lines += ["FINDINGS", ""]
    for number, finding in enumerate(shown, start=1):
        lines += _finding(number, finding, attribution.start_ns)
    lines += _excluded(attribution)
    lines += _open_questions(attribution)
    if attribution.notes:
        lines += ["LOSSES AND GAPS"]
        for note in attribution.notes:
            lines += _wrap(note, "  - ")
        lines.append("")
    if attribution.is_simulated:
        lines += _wrap("The device of this session was simulated: its times are not a GPU's.", "")
    return "\n".join(lines).rstrip()


def _wrap(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent)
    ) or [indent]


def _bar(budget: Budget) -> list[str]:
    """The recording from left to right, the leading state of each part, then the shares."""
    name = "device" if budget.device is None else f"device {budget.device}"
    length = length_text(float(budget.edges[-1] - budget.edges[0]))
    n = len(budget.edges) - 1
    by_state = {state: np.zeros(n, dtype=np.int64) for state in BLOCKS}
    for (state, _reason), values in budget.spent.items():
        by_state[state] = by_state[state] + values
    groups = np.array_split(np.arange(n), min(n, _BAR))
    names = list(BLOCKS)
    table = np.stack([by_state[state] for state in names])
    letters = [BLOCKS[names[int(table[:, group].sum(axis=1).argmax())]] for group in groups]
    lines = [f"{name}, {length}, {basis_text(budget.basis)}:", f"  |{''.join(letters)}|"]
    reasons: dict[str, list[tuple[float, str]]] = {}
    for (state, reason), share in budget.totals().items():
        reasons.setdefault(state, []).append((share, reason))
    for state, parts in sorted(reasons.items(), key=lambda item: -sum(s for s, _r in item[1])):
        total = sum(share for share, _reason in parts)
        if total < 0.005:
            continue
        detail = ", ".join(
            f"{100 * share:.0f} % {REASON_TEXT[reason]}"
            for share, reason in sorted(parts, reverse=True)
            if share >= 0.005 and reason not in ("work", state)
        )
        if detail:
            detail = f" (while: {detail})" if state == "unknown" else f": {detail}"
        lines += _wrap(f"{BLOCKS[state]} {100 * total:3.0f} % {STATE_TEXT[state]}{detail}", "  ")
    return [*lines, ""]


def _finding(number: int, finding: Finding, origin_ns: int) -> list[str]:
    sure = f"{100 * finding.confidence:.0f} % sure"
    proven = "" if finding.status is Status.FOUND else " - NOT PROVEN"
    lines = _wrap(f"{finding.cause}{proven} ({sure})", f"{number}. ")
    lines += _wrap(finding.summary or finding.undecided_because, "   ")
    if finding.start_ns is not None and finding.end_ns is not None and finding.end_ns:
        begin, end = finding.start_ns - origin_ns, finding.end_ns - origin_ns
        divisor, unit = (1e9, "s") if end >= 1e9 else (1e6, "ms")
        when = f"From {begin / divisor:.1f} {unit} to {end / divisor:.1f} {unit}"
        if finding.lost_ns:
            share = f"{100 * finding.lost_share:.0f} % of the time with demand"
            when += f"; mending it returns at most {length_text(finding.lost_ns, 2)} ({share})"
        lines += _wrap(when + ".", "   ")
    place = place_text(finding)
    if place:
        lines += _wrap(f"Where: {place}.", "   ")
    for item in finding.evidence:
        lines += _wrap(evidence_text(item), "   - ")
    for ruled_out in finding.excluded:
        lines += _wrap(f"not {ruled_out.cause}: {ruled_out.reason}", "   - ")
    if finding.symptoms:
        lines += _wrap(f"Its symptoms: {', '.join(finding.symptoms)}.", "   ")
    if finding.status is Status.UNDECIDED and finding.settled_by:
        lines += _wrap(f"What would settle it: {finding.settled_by}", "   ")
    if finding.advice:
        lines += _wrap(f"Do: {finding.advice}", "   ")
    return [*lines, ""]


def _excluded(attribution: Attribution) -> list[str]:
    """Causes that were looked for and ruled out, with the number where there is one."""
    items: list[Exclusion] = [
        ruled_out for finding in attribution.checked for ruled_out in finding.excluded
    ]
    if not items:
        return []
    lines = ["RULED OUT"]
    for item in items:
        lines += _wrap(f"{item.cause}: {item.reason}", "  - ")
    return [*lines, ""]


def _open_questions(attribution: Attribution) -> list[str]:
    """Causes that could not be looked for, by what would be needed."""
    by_reason: dict[str, list[str]] = {}
    for finding in attribution.checked:
        if finding.status is Status.NOT_APPLICABLE and finding.undecided_because:
            by_reason.setdefault(finding.undecided_because, []).append(finding.cause)
    lines: list[str] = []
    for reason, causes in by_reason.items():
        lines += _wrap(f"{', '.join(causes)}: {reason}", "  - ")
    for finding in attribution.findings:
        if finding.cause == "unknown" and finding.settled_by:
            lines += _wrap(f"To settle it: {finding.settled_by}", "  - ")
    return ["COULD NOT BE TOLD", *lines, ""] if lines else []
