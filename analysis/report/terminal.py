"""The verdict as plain text for a tired reader: under 100 columns, the same in a pipe."""

from __future__ import annotations

import textwrap

import numpy as np

from analysis.attribution import Attribution
from analysis.budget import Budget
from analysis.causes import cause as declaration
from analysis.finding import Evidence, Exclusion, Finding, Status

WIDTH = 96
_BAR = 60

#: One letter-like block per state, dark to light: readable without colour.
_BLOCKS = {
    "hung": "X",
    "other_process": "▚",
    "compute": "█",
    "collective": "▓",
    "copy": "▒",
    "idle": "·",
    "unknown": "?",
}
_STATE_TEXT = {
    "hung": "hung",
    "other_process": "another process",
    "compute": "compute",
    "collective": "collective",
    "copy": "copy",
    "idle": "idle",
    "unknown": "idle or busy, not known",
}
_REASON_TEXT = {
    "hung": "a kernel that does not end",
    "other_process": "another process had the device",
    "no_demand": "no demand",
    "throttled": "CPU quota",
    "cpu_delay": "launching thread waited for a CPU",
    "first_use": "first use of kernels",
    "prefill": "prefill",
    "other_rank": "another rank was late",
    "work": "work",
    "sync": "host had waited for the device",
    "input": "loading of input",
    "late_launch": "launches came too late",
    "asleep": "launching thread asleep",
    "launching": "inside launches",
    "calling": "inside other CUDA calls",
    "host": "host computing between calls",
    "unknown": "for a reason not known",
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
    seconds = (budget.edges[-1] - budget.edges[0]) / 1e9
    n = len(budget.edges) - 1
    by_state = {state: np.zeros(n, dtype=np.int64) for state in _BLOCKS}
    for (state, _reason), values in budget.spent.items():
        by_state[state] = by_state[state] + values
    groups = np.array_split(np.arange(n), min(n, _BAR))
    names = list(_BLOCKS)
    table = np.stack([by_state[state] for state in names])
    letters = [_BLOCKS[names[int(table[:, group].sum(axis=1).argmax())]] for group in groups]
    certainty = "device times" if budget.is_timed else "host's calls and utilisation"
    lines = [f"{name}, {seconds:.1f} s, from {certainty}:", f"  |{''.join(letters)}|"]
    reasons: dict[str, list[tuple[float, str]]] = {}
    for (state, reason), share in budget.totals().items():
        reasons.setdefault(state, []).append((share, reason))
    for state, parts in sorted(reasons.items(), key=lambda item: -sum(s for s, _r in item[1])):
        total = sum(share for share, _reason in parts)
        if total < 0.005:
            continue
        detail = ", ".join(
            f"{100 * share:.0f} % {_REASON_TEXT[reason]}"
            for share, reason in sorted(parts, reverse=True)
            if share >= 0.005 and reason not in ("work", state)
        )
        if detail:
            detail = f" (while: {detail})" if state == "unknown" else f": {detail}"
        lines += _wrap(f"{_BLOCKS[state]} {100 * total:3.0f} % {_STATE_TEXT[state]}{detail}", "  ")
    return [*lines, ""]


def _finding(number: int, finding: Finding, origin_ns: int) -> list[str]:
    sure = f"{100 * finding.confidence:.0f} % sure"
    proven = "" if finding.status is Status.FOUND else " - NOT PROVEN"
    lines = _wrap(f"{finding.cause}{proven} ({sure})", f"{number}. ")
    lines += _wrap(finding.summary or finding.undecided_because, "   ")
    if finding.start_ns is not None and finding.end_ns is not None and finding.end_ns:
        begin, end = (finding.start_ns - origin_ns) / 1e9, (finding.end_ns - origin_ns) / 1e9
        when = f"From {begin:.1f} s to {end:.1f} s"
        if finding.lost_ns:
            share = f"{100 * finding.lost_share:.0f} % of the time with demand"
            when += f"; mending it returns at most {finding.lost_ns / 1e9:.2f} s ({share})"
        lines += _wrap(when + ".", "   ")
    place = _place(finding)
    if place:
        lines += _wrap(f"Where: {place}.", "   ")
    for item in finding.evidence:
        lines += _wrap(_evidence(item), "   - ")
    for ruled_out in finding.excluded:
        lines += _wrap(f"not {ruled_out.cause}: {ruled_out.reason}", "   - ")
    if finding.symptoms:
        lines += _wrap(f"Its symptoms: {', '.join(finding.symptoms)}.", "   ")
    if finding.status is Status.UNDECIDED and finding.settled_by:
        lines += _wrap(f"What would settle it: {finding.settled_by}", "   ")
    if finding.advice:
        lines += _wrap(f"Do: {finding.advice}", "   ")
    return [*lines, ""]


def _place(finding: Finding) -> str:
    where = finding.where
    parts = []
    if where.pid is not None:
        name = f" ({where.process})" if where.process else ""
        parts.append(f"process {where.pid}{name}")
    if where.tid is not None:
        parts.append(f"thread {where.tid}")
    if where.device is not None:
        parts.append(f"device {where.device}")
    if where.rank is not None:
        parts.append(f"rank {where.rank}")
    if where.stage is not None:
        parts.append(f"pipeline stage {where.stage}")
    return ", ".join(parts)


def _evidence(item: Evidence) -> str:
    value = item.value
    if isinstance(value, str):
        text = value
    elif item.unit == "ns":
        text = duration_text(float(value))
    else:
        text = f"{value:g} {item.unit}".rstrip()
    n = f" (n = {item.n})" if item.n is not None else ""
    source = f" [{item.source}]" if item.source else ""
    return f"{item.name.replace('_', ' ')}: {text}{n}{source}"


def duration_text(ns: float) -> str:
    """Return a length in ns in a unit that a person reads."""
    for limit, divisor, unit in ((1e4, 1.0, "ns"), (1e6, 1e3, "us"), (1e9, 1e6, "ms")):
        if abs(ns) < limit:
            return f"{ns / divisor:.4g} {unit}"
    return f"{ns / 1e9:.4g} s"


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
