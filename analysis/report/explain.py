"""Everything that a session says about one cause: what would prove it, and what was found."""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import pyarrow.compute as pc

from analysis.absences import Absences, load_absences
from analysis.attribution import Attribution
from analysis.causes import Cause, Needs
from analysis.facts import Facts
from analysis.finding import Finding, Status
from analysis.report.terminal import WIDTH
from analysis.report.words import duration_text, evidence_text, place_text
from analysis.timeline import Session

#: Intervals and calls that are listed; the rest is counted.
_N_SPANS = 10
_N_CALLS = 5

_STATUS_TEXT = {
    Status.FOUND: "FOUND",
    Status.NOT_FOUND: "NOT FOUND: looked for and ruled out",
    Status.UNDECIDED: "UNDECIDED: neither proven nor ruled out",
    Status.NOT_APPLICABLE: "COULD NOT BE LOOKED FOR",
}


def explain(attribution: Attribution, session: Session, cause: Cause) -> str:
    """Return the whole chain of evidence of a cause as text.

    Args:
        attribution: The answer about the session.
        session: The session.
        cause: Declaration of the cause.
    """
    every = [*attribution.findings, *attribution.checked]
    own = [finding for finding in every if finding.cause == cause.slug]
    lines = [f"{cause.slug}: {cause.title}", ""]
    for word, text in (
        ("What it is", cause.meaning),
        ("What proves it", cause.proof),
        ("Told apart from", cause.confused_with),
        ("What settles a doubt", cause.settles),
    ):
        lines += _wrap(f"{word}: {text}") if text else []
    lines.append("")
    is_verdict = attribution.verdict.cause == cause.slug
    if is_verdict:
        sure = f"{100 * attribution.verdict.confidence:.0f} % sure"
        lines += [*_wrap(f"It is the verdict ({sure}). {attribution.verdict.text}"), ""]
    if cause.needs is not None:
        lines += _sources(cause.needs, session)
    elif not own and not is_verdict:
        lines += [*_wrap("No analyzer of one recording states it."), ""]
    for finding in own:
        lines += _finding(finding, attribution, session)
    if not own and cause.is_implemented:
        lines += [*_wrap("Its analyzer gave no answer; see LOSSES AND GAPS of the report."), ""]
    lines += _others(cause.slug, every)
    if is_verdict and not cause.is_implemented:
        lines += _answers(every)
    lines += _losses(session)
    return "\n".join(lines).rstrip()


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent)
    ) or [indent]


def _sources(needs: Needs, session: Session) -> list[str]:
    """The tables that the analyzer reads, and what this session has of them."""
    lines = ["READ FROM"]
    grouped = {name for group in needs.any_of for name in group}
    for name in needs.tables:
        role = "required" if name in needs.required else "one of a group"
        if name not in needs.required and name not in grouped:
            role = "optional"
        has = f"{session.n_rows(name):,} rows" if session.has(name) else "not recorded"
        lines += _wrap(f"{name} ({role}): {has}", "  - ")
    return [*lines, ""]


def _finding(finding: Finding, attribution: Attribution, session: Session) -> list[str]:
    sure = f", {100 * finding.confidence:.0f} % sure" if finding.confidence else ""
    lines = [f"{_STATUS_TEXT[finding.status]}{sure}"]
    if finding.summary:
        lines += _wrap(finding.summary, "  ")
    if finding.undecided_because:
        lines += _wrap(f"Because: {finding.undecided_because}", "  ")
    place = place_text(finding)
    if place:
        lines += _wrap(f"Where: {place}.", "  ")
    if finding.start_ns is not None and finding.end_ns is not None:
        origin = attribution.start_ns
        begin, end = (finding.start_ns - origin) / 1e9, (finding.end_ns - origin) / 1e9
        lines += _wrap(f"When: from {begin:.3f} s to {end:.3f} s of the recording.", "  ")
    if finding.lost_ns:
        lines += _wrap(
            f"Price: removing it returns at most {duration_text(finding.lost_ns)}, "
            f"{100 * finding.lost_share:.1f} % of the time with demand; a bound, no promise.",
            "  ",
        )
    if finding.evidence:
        lines += ["", "  EVIDENCE"]
        lines += [row for item in finding.evidence for row in _wrap(evidence_text(item), "  - ")]
    if finding.excluded:
        lines += ["", "  RULED OUT ON THE WAY"]
        for item in finding.excluded:
            number = f" ({evidence_text(item.evidence)})" if item.evidence is not None else ""
            lines += _wrap(f"{item.cause}: {item.reason}{number}", "  - ")
    if finding.symptoms:
        lines += ["", *_wrap(f"Its symptoms here: {', '.join(finding.symptoms)}.", "  ")]
    lines += _spans(finding, attribution, session)
    if finding.settled_by:
        lines += ["", *_wrap(f"What would settle it: {finding.settled_by}", "  ")]
    if finding.advice:
        lines += ["", *_wrap(f"Do: {finding.advice}", "  ")]
    return [*lines, ""]


def _spans(finding: Finding, attribution: Attribution, session: Session) -> list[str]:
    """The intervals that it took, the longest first, and the longest calls in them."""
    spans = finding.spans
    if len(spans) == 0:
        return []
    length = spans[:, 1] - spans[:, 0]
    order = np.argsort(-length, kind="stable")[:_N_SPANS]
    total = duration_text(int(length.sum()))
    lines = ["", f"  INTERVALS ({len(spans):,}, {total} in all; the longest)"]
    for index in order.tolist():
        begin = (int(spans[index, 0]) - attribution.start_ns) / 1e9
        lines.append(f"  - at {begin:.6f} s for {duration_text(int(length[index]))}")
    if not session.has("cuda_call"):
        return lines
    columns = ["start_ns", "duration_ns", "tid", "function", "depth"]
    calls = []
    for index in order.tolist():
        rows = session.table("cuda_call", int(spans[index, 0]), int(spans[index, 1]), columns)
        rows = rows.filter(pc.and_(pc.equal(rows["depth"], 0), pc.is_valid(rows["duration_ns"])))
        if rows.num_rows:
            rows = rows.take(pc.select_k_unstable(rows, _N_CALLS, [("duration_ns", "descending")]))
            calls += rows.to_pylist()
    longest = {(call["tid"], call["start_ns"]): call for call in calls}
    shown = sorted(longest.values(), key=lambda call: -call["duration_ns"])[:_N_CALLS]
    if shown:
        lines += ["", "  LONGEST CALLS IN THEM"]
    absences = load_absences(session)
    for call in shown:
        begin = (call["start_ns"] - attribution.start_ns) / 1e9
        took = duration_text(call["duration_ns"])
        text = f"{call['function']} of thread {call['tid']} at {begin:.6f} s: {took}"
        if absences is not None:
            text += f" ({_split(absences, call)})"
        lines += _wrap(text, "  - ")
    return lines


def _split(absences: Absences, call: dict[str, Any]) -> str:
    """Where the time of one call went, by what the scheduler saw of its thread."""
    begin, end = call["start_ns"], call["start_ns"] + call["duration_ns"]
    is_own = (absences.tid == call["tid"]) & (absences.start < end) & (absences.end > begin)
    own = absences.pick(is_own)
    away = int((np.minimum(own.end, end) - np.maximum(own.start, begin)).sum())
    waited = np.maximum(np.minimum(own.end, end) - np.maximum(own.ready, begin), 0)
    ready = int(waited.sum())
    parts = []
    if ready:
        worst = int(np.argmax(waited))
        pid, _tid, name = absences.culprits[int(own.culprit[worst])]
        whom = f", mostly for {name or '?'}" + ("" if pid is None else f" (pid {pid})")
        parts.append(f"{duration_text(ready)} ready but waiting for a CPU{whom}")
    if away - ready > 0:
        parts.append(f"{duration_text(away - ready)} asleep")
    running = call["duration_ns"] - away
    parts.append(f"{duration_text(max(running, 0))} on a CPU inside the call")
    return "; ".join(parts)


def _others(slug: str, findings: list[Finding]) -> list[str]:
    """What the analyzers of other causes said about this one."""
    lines = []
    for finding in findings:
        for item in finding.excluded:
            if item.cause == slug and finding.cause != slug:
                lines += _wrap(f"{finding.cause} rules it out: {item.reason}", "  - ")
        if slug in finding.symptoms:
            lines += _wrap(f"it is a symptom of {finding.cause}, which comes first", "  - ")
    return ["WHAT OTHER FINDINGS SAY OF IT", *lines, ""] if lines else []


def _answers(findings: list[Finding]) -> list[str]:
    """Every analyzer's answer, for a verdict that is none of the causes."""
    lines = ["WHAT EVERY ANALYZER ANSWERED"]
    for finding in sorted(findings, key=lambda item: item.cause):
        reasons = [item.reason for item in finding.excluded]
        text = finding.summary or finding.undecided_because or "; ".join(reasons)
        word = _STATUS_TEXT[finding.status].split(":")[0].lower()
        lines += _wrap(f"{finding.cause}: {word}{'; ' if text else ''}{text}", "  - ")
    return [*lines, ""]


def _losses(session: Session) -> list[str]:
    """What lowers the certainty of every statement about this session."""
    facts = Facts(session)
    texts = [
        f"{loss.source} lost {loss.n_lost:,} records, {100 * loss.share:.3g} % of its own"
        for loss in facts.losses
    ]
    texts += [
        f"{source.name} was {source.state}: {source.note}"
        for source in session.manifest.sources
        if source.state != "ok" and source.note
    ]
    lines = [row for text in [*texts, *session.problems] for row in _wrap(text, "  - ")]
    return ["WHAT LOWERS THE CERTAINTY", *lines] if lines else []
