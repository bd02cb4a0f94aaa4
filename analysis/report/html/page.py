"""Puts the report together: one file with text first, then the charts and what draws them.

The text is made by a template that escapes everything. The charts' data and the plotting library
are compressed inside the file; a page without a script still holds the verdict, the findings, the
budget's totals and all tables.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from analysis.attribution import Attribution, attribute
from analysis.causes import cause as declaration
from analysis.facts import Facts
from analysis.finding import Finding, Status
from analysis.kept import Kept
from analysis.report.files import LibraryError, replaced
from analysis.report.html import recording
from analysis.report.html.budget_chart import DeviceBudget, device_budgets, listed, marks_of
from analysis.report.html.call_panel import call_panel
from analysis.report.html.device_panel import device_panel
from analysis.report.html.neighbour_panel import neighbour_panel
from analysis.report.html.panel import Panel, Scale
from analysis.report.html.service_panel import service_panel
from analysis.report.html.slow_calls import slowest_calls
from analysis.report.html.thread_panel import thread_panel
from analysis.report.words import duration_text, evidence_text, place_text, shown
from analysis.timeline import Session

#: Windows of the stacked timeline, and the shortest of them.
N_WINDOWS = 800
SHORTEST_WINDOW_NS = 100_000_000
#: The panels in the order of the page.
PANELS: tuple[Callable[[Facts, Scale], Panel], ...] = (
    device_panel,
    call_panel,
    thread_panel,
    service_panel,
    neighbour_panel,
)


def window_ns(session: Session) -> int:
    """Return the length in ns of the windows that the report's budget is computed for: of a long
    recording, fit for its last stretch with full detail, which the budget is about.
    """
    stretches = Kept.read(session.path).detailed(session.start_ns, session.end_ns)
    begin, end = stretches[-1] if stretches else (session.start_ns, session.end_ns)
    return max((end - begin) // N_WINDOWS, SHORTEST_WINDOW_NS)


def write_report(session: Session, path: Path, *, force: bool = False) -> int:
    """Write the report of a session as one HTML file and return its size in bytes.

    Args:
        session: An opened session.
        path: The file to write.
        force: Replace a file of that name.

    Raises:
        OutputError: the file is there already, or cannot be written.
        LibraryError: the plotting library is not installed.
    """
    with replaced(path, force=force) as part:
        content = render(session, attribute(session, window_ns(session))).encode()
        part.write_bytes(content)
    return len(content)


def render(session: Session, attribution: Attribution) -> str:
    """Return the page of a session.

    Args:
        session: An opened session.
        attribution: Its attribution, with windows of :func:`window_ns`.

    Raises:
        LibraryError: the plotting library is not installed.
    """
    facts = Facts(session)
    scale = Scale(attribution.start_ns, attribution.end_ns)
    notes: list[str] = []
    budgets = device_budgets(attribution, scale)
    panels = [_panel(make, facts, scale, notes) for make in PANELS]
    verdict = attribution.verdict
    sheets = {
        "sources": _part(recording.sources, facts, notes),
        "losses": _part(recording.losses, facts, notes),
        "coverage": _part(recording.coverage, facts, notes),
        "targets": _part(recording.targets, facts, notes),
        "mps": _part(recording.mps, facts, notes),
        "open_calls": _part(recording.open_calls, facts, notes),
    }
    noted = _part(lambda facts: marks_of(facts, scale), facts, notes) or []
    slow = _part(lambda facts: slowest_calls(facts, attribution.findings), facts, notes) or []
    text: str = _template().render(
        name=shown(attribution.name, 120),
        is_simulated=attribution.is_simulated,
        title=declaration(verdict.cause).title,
        cause=verdict.cause,
        confidence=round(100 * verdict.confidence),
        is_proven=verdict.status is Status.FOUND,
        tone=_tone(verdict.cause, verdict.status),
        text=shown(verdict.text, 1200),
        advice=_advice(attribution),
        findings=[_finding(item, scale) for item in listed(attribution.findings)],
        excluded=_excluded(attribution),
        not_told=_not_told(attribution),
        notes=[shown(note, 500) for note in [*attribution.notes, *notes]],
        budgets=budgets,
        panels=panels,
        slow=slow,
        sheets=sheets,
        coverage_notes=_part(recording.coverage_notes, facts, notes) or [],
        facts=recording.facts_line(facts),
        duration_text=duration_text,
        n_calls=f"{len(facts.calls):,}" if facts.calls is not None else "",
        style=_asset("report.css"),
        script=_asset("report.js"),
        data=_packed(
            json.dumps(_data(scale, budgets, panels, noted), separators=(",", ":")).encode()
        ),
        plotly=_plotly(),
    )
    return text


def _panel(
    make: Callable[[Facts, Scale], Panel], facts: Facts, scale: Scale, notes: list[str]
) -> Panel:
    """One panel; odd input that breaks it costs that panel and is said."""
    panel = _part(lambda facts: make(facts, scale), facts, notes)
    if isinstance(panel, Panel):
        return panel
    key = make.__name__.removesuffix("_panel")
    title = {"call": "Calls", "thread": "Threads", "neighbour": "Neighbours"}.get(key, key.title())
    return Panel(key, title, "", missing=["It could not be drawn; see what was lost."])


def _part(make: Callable[[Facts], Any], facts: Facts, notes: list[str]) -> Any:
    """A part of the page, None where odd input breaks it; the rest must stand."""
    try:
        return make(facts)
    except Exception as error:  # noqa: BLE001 - whatever fails here, the verdict must be shown
        notes.append(
            f"A part of this report failed on this session and was left out "
            f"({type(error).__name__}: {error}). Please report it."
        )
        return None


def _tone(cause: str, status: Status) -> str:
    """How the verdict is coloured: good, doubtful or bad."""
    if cause in ("healthy", "no_demand"):
        return "good"
    return "bad" if status is Status.FOUND else "doubtful"


def _advice(attribution: Attribution) -> str:
    """What to do, from the first finding that says so, or from the declaration of the cause."""
    for item in attribution.findings:
        if item.cause == attribution.verdict.cause:
            return shown(item.advice or item.settled_by, 600)
    return declaration(attribution.verdict.cause).advice


def _finding(finding: Finding, scale: Scale) -> dict[str, Any]:
    """A finding as the template shows it; its interval in s since the begin of the recording."""
    begin, end = finding.start_ns, finding.end_ns
    has_time = begin is not None and end is not None and end > 0
    return {
        "cause": finding.cause,
        "title": declaration(finding.cause).title,
        "is_proven": finding.status is Status.FOUND,
        "confidence": round(100 * finding.confidence),
        "summary": shown(finding.summary or finding.undecided_because, 1200),
        "begin_s": (begin - scale.start_ns) / 1e9 if has_time and begin is not None else None,
        "end_s": (end - scale.start_ns) / 1e9 if has_time and end is not None else None,
        "lost": duration_text(finding.lost_ns) if finding.lost_ns else "",
        "lost_share": round(100 * finding.lost_share),
        "place": shown(place_text(finding), 200),
        "evidence": [shown(evidence_text(item), 400) for item in finding.evidence],
        "excluded": [(item.cause, shown(item.reason, 400)) for item in finding.excluded],
        "symptoms": finding.symptoms,
        "settled_by": shown(finding.settled_by, 400) if finding.status is Status.UNDECIDED else "",
        "advice": shown(finding.advice, 600),
    }


def _excluded(attribution: Attribution) -> list[tuple[str, str]]:
    """Causes that were looked for and ruled out, with the sentence that did it."""
    return [
        (ruled_out.cause, shown(ruled_out.reason, 400))
        for finding in attribution.checked
        for ruled_out in finding.excluded
    ]


def _not_told(attribution: Attribution) -> list[tuple[str, str]]:
    """Why causes could not be looked for, and which they are."""
    by_reason: dict[str, list[str]] = {}
    for finding in attribution.checked:
        if finding.status is Status.NOT_APPLICABLE and finding.undecided_because:
            by_reason.setdefault(finding.undecided_because, []).append(finding.cause)
    return [(shown(reason, 400), ", ".join(causes)) for reason, causes in by_reason.items()]


def _data(
    scale: Scale, budgets: list[DeviceBudget], panels: list[Panel], noted: list[dict[str, Any]]
) -> dict[str, Any]:
    """What the charts are drawn from."""
    return {
        "seconds": scale.seconds,
        "noted": noted,
        "budgets": [budget.chart for budget in budgets],
        "panels": {panel.key: [asdict(chart) for chart in panel.charts] for panel in panels},
    }


def _packed(content: bytes) -> str:
    """Content compressed and as letters, so that nothing in it can end its element."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


@cache
def _plotly() -> str:
    """The plotting library, packed.

    Raises:
        LibraryError: it is not installed.
    """
    try:
        source = resources.files("plotly").joinpath("package_data/plotly.min.js").read_bytes()
    except (ImportError, OSError):
        raise LibraryError(
            "the charts of a report need plotly, which is not installed; install it with: "
            "pip install plotly"
        ) from None
    return _packed(source)


def _asset(name: str) -> str:
    return resources.files("analysis.report.html").joinpath("assets", name).read_text("utf-8")


@cache
def _template() -> Any:
    """The page's template; everything put into it is made fit to be shown, and escaped."""
    import jinja2
    from markupsafe import Markup

    def fit(value: Any) -> Any:
        """Text as it may be shown; what the template itself made stays."""
        return (
            shown(value, 2000)
            if isinstance(value, str) and not isinstance(value, Markup)
            else value
        )

    environment = jinja2.Environment(
        autoescape=True,
        finalize=fit,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.from_string(_asset("report.html.j2"))
