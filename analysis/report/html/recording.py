"""How a session was recorded: sources, losses, coverage of functions, targets, MPS, open calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import pyarrow.compute as pc

from analysis.facts import Facts
from analysis.report.html.panel import how_to_record
from analysis.report.words import duration_text, length_text, shown

#: A wall clock beyond this (the year 2200) is damage.
_LAST_NS = 7_258_118_400 * 1_000_000_000
#: Rows of a table of the page; the session has the rest.
MAX_ROWS = 60


@dataclass
class Sheet:
    """A table of text: heads, rows, which columns are numbers, and a sentence where it is empty."""

    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: tuple[int, ...] = ()
    otherwise: str = ""
    more: str = ""


def _cut(sheet: Sheet) -> Sheet:
    if len(sheet.rows) > MAX_ROWS:
        sheet.more = f"{len(sheet.rows) - MAX_ROWS:,} further rows are in the session."
        sheet.rows = sheet.rows[:MAX_ROWS]
    return sheet


def sources(facts: Facts) -> Sheet:
    """Return every source: state, rate, rows, losses, cost and note."""
    rows = [
        (
            shown(source.name, 60),
            shown(source.state, 20),
            "" if not source.period_ns else duration_text(source.period_ns),
            f"{source.n_rows:,}",
            f"{source.n_lost:,}",
            "" if source.cost_ns is None else duration_text(source.cost_ns),
            shown(source.note, 400),
        )
        for source in facts.manifest.sources
    ]
    heads = ("source", "state", "every", "rows", "lost", "CPU time", "note")
    return _cut(Sheet(heads, rows, (3, 4), "The session does not say what it was recorded with."))


def losses(facts: Facts) -> Sheet:
    """Return what was lost, by source and reason."""
    heads = ("source", "reason", "lost", "what it means")
    rows: list[tuple[str, ...]] = []
    if facts.session.has("loss"):
        table = facts.session.table(
            "loss", columns=["time_ns", "source", "reason", "n_lost", "detail"]
        )
        grouped = table.group_by(["source", "reason"]).aggregate(
            [("n_lost", "sum"), ("detail", "max")]
        )
        rows = [
            (
                shown(row["source"], 60),
                shown(row["reason"], 60),
                f"{row['n_lost_sum'] or 0:,}",
                shown(row["detail_max"] or "", 300),
            )
            for row in sorted(grouped.to_pylist(), key=lambda row: -(row["n_lost_sum"] or 0))
        ]
    told = {row[0] for row in rows}
    rows += [
        (shown(loss.source, 60), "", f"{loss.n_lost:,}", f"{100 * loss.share:.3g} % of its records")
        for loss in facts.losses
        if shown(loss.source, 60) not in told
    ]
    return _cut(Sheet(heads, rows, (2,), "Nothing was lost."))


def coverage(facts: Facts) -> Sheet:
    """Return how many functions of each library were probed, and how many of them were called."""
    libraries: dict[tuple[str, str], list[int | None]] = {}
    for function in facts.manifest.functions:
        libraries.setdefault((function.layer, function.library), []).append(function.n_hits)
    rows = []
    for (layer, library), hits in sorted(libraries.items()):
        known = [n for n in hits if n is not None]
        rows.append(
            (
                shown(library, 200),
                shown(layer, 20),
                f"{len(hits):,}",
                f"{sum(n > 0 for n in known):,}" if known else "not told",
                f"{sum(known):,}" if known else "not told",
            )
        )
    heads = ("library", "layer", "functions probed", "of them called", "calls")
    otherwise = "No function was probed: this session holds no calls of eBPF."
    return _cut(Sheet(heads, rows, (2, 3, 4), otherwise))


def coverage_notes(facts: Facts) -> list[str]:
    """Return what the recorder said about parts that it could not see."""
    if not facts.session.has("event"):
        return []
    table = facts.session.table("event", columns=["time_ns", "kind", "name", "detail"])
    told = table.filter(pc.is_in(table["kind"], pc.cast(["coverage", "source_lost"], "string")))
    texts = [
        f"{shown(row['name'], 80)}: {shown(row['detail'] or '', 300)}" for row in told.to_pylist()
    ]
    return list(dict.fromkeys(texts))[:MAX_ROWS]


def targets(facts: Facts) -> Sheet:
    """Return the recorded processes."""
    rows = [
        (
            str(target.pid),
            shown(target.name or "", 60),
            shown(target.command_line or "", 200),
            shown((target.container or "")[:12], 20),
        )
        for target in facts.manifest.targets
    ]
    heads = ("pid", "process", "command line (redacted)", "container")
    return _cut(Sheet(heads, rows, (0,), "The session names no target."))


def mps(facts: Facts) -> Sheet:
    """Return who was inside MPS at the last audit, who was not, why, and the mend."""
    heads = ("GPU", "pid", "process", "role", "why", "mend")
    otherwise = how_to_record(facts.session, "mps_client", "mps")
    if not facts.session.has("mps_client"):
        return Sheet(heads, [], (), otherwise)
    columns = ["time_ns", "device", "pid", "name", "role", "reason", "detail", "mend"]
    table = facts.session.table("mps_client", columns=columns)
    latest: dict[tuple[int, int], dict[str, Any]] = {}
    for row in table.to_pylist():
        latest[row["device"], row["pid"]] = row
    words = {"client": "in MPS", "outside": "outside MPS", "server": "MPS server"}
    rows = [
        (
            str(row["device"]),
            str(row["pid"]),
            shown(row["name"] or "", 60),
            words.get(row["role"], shown(row["role"], 20)),
            shown(row["detail"] or row["reason"] or "", 300),
            shown(row["mend"] or "", 300),
        )
        for _key, row in sorted(latest.items())
    ]
    return _cut(Sheet(heads, rows, (0, 1), otherwise))


def open_calls(facts: Facts) -> Sheet:
    """Return the calls that had not returned at the last look."""
    rows = [
        (
            f"{row['pid']}/{row['tid']}",
            shown(row["function"], 100),
            duration_text(max(row["time_ns"] - row["start_ns"], 0)),
            shown(row["thread_state"] or "", 4),
            "its return may have been missed" if row["is_doubtful"] else "",
        )
        for row in sorted(facts.open_calls, key=lambda row: row["start_ns"])
    ]
    heads = ("process/thread", "function", "open for", "state", "doubt")
    return _cut(Sheet(heads, rows, (), "No call was open at the end."))


def facts_line(facts: Facts) -> list[tuple[str, str]]:
    """Return what a reader asks first about a recording, as names and values."""
    manifest = facts.manifest
    gpus = [shown(gpu.name, 60) for gpu in manifest.gpus]
    kinds = dict.fromkeys(gpus)
    devices = ", ".join(f"{gpus.count(kind)} × {kind}" for kind in kinds) or "none listed"
    host = manifest.host.get("name") or manifest.host.get("hostname") or ""
    clocks = ""
    if facts.session.has("clock_anchor"):
        table = facts.session.table("clock_anchor", columns=["time_ns", "error_ns"])
        if table.num_rows:
            clocks = duration_text(pc.max(table["error_ns"]).as_py())
    began = ""
    if manifest.start_realtime_ns is not None and 0 <= manifest.start_realtime_ns < _LAST_NS:
        at = datetime.fromtimestamp(manifest.start_realtime_ns // 1_000_000_000, timezone.utc)
        began = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    pairs = [
        ("Began", began),
        ("Recorded", length_text(facts.end_ns - facts.start_ns)),
        ("GPUs", devices),
        ("Processes", f"{len(manifest.targets):,}"),
        ("Host", shown(host, 80)),
        (
            "Origin",
            "recorded live" if manifest.origin == "record" else f"import ({manifest.origin})",
        ),
        ("Ended by", shown(manifest.end_reason or "still running, or a crash", 60)),
        ("Clocks agree within", clocks),
        ("Written by", f"tracer {shown(manifest.tool_version, 20)}"),
    ]
    return [(name, value) for name, value in pairs if value]
