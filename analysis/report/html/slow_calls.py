"""The slowest calls of a session, each with what the session can tell about why."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis import intervals
from analysis.absences import Absences
from analysis.facts import Facts
from analysis.finding import Finding, Status
from analysis.quantiles import median
from analysis.report.words import duration_text, shown

#: Groups of calls and their kinds; each group has its own table.
GROUPS = (
    ("Launches", ("launch", "graph_launch")),
    ("Syncs", ("sync",)),
    ("Copies and sets", ("copy", "set")),
    ("Other calls", ("graph", "wait", "memory", "module", "stream", "event", "device", "other")),
    ("Collectives", ("collective",)),
)
#: Calls of each table.
N_SLOWEST = 10
#: A part of a call below this share does not explain it.
_LITTLE = 0.2
#: A call that is shorter than so many medians of its function is not unusual.
_USUAL = 10
_COLUMNS = (
    *("start_ns", "duration_ns", "pid", "tid", "function", "kind", "call_id", "depth"),
    *("kernel", "size_bytes", "return_code", "is_first_use"),
)


@dataclass
class SlowCall:
    """One slow call as shown: begin in s since the recording's, length in ns."""

    begin_s: float
    duration_ns: int
    function: str
    thread: str
    kernel: str
    reasons: list[str] = field(default_factory=list)


@dataclass
class SlowGroup:
    """The slowest calls of one group."""

    title: str
    calls: list[SlowCall]


def slowest_calls(facts: Facts, findings: list[Finding]) -> list[SlowGroup]:
    """Return the slowest outermost calls of each group; empty groups are left out."""
    session = facts.session
    if not session.has("cuda_call"):
        return []
    parts = session.collect("cuda_call", _COLUMNS, _longest)
    if not parts:
        return []
    rows = _longest(pa.concat_tables(parts)).to_pylist()
    inner = _inner_calls(facts, [row["call_id"] for row in rows])
    names = _kernel_names(facts, rows)
    groups = []
    for title, kinds in GROUPS:
        own = [row for row in rows if row["kind"] in kinds]
        own.sort(key=lambda row: -row["duration_ns"])
        calls = [
            SlowCall(
                (row["start_ns"] - facts.start_ns) / 1e9,
                row["duration_ns"],
                shown(row["function"], 120),
                f"{row['pid']}/{row['tid']}",
                names.get((row["pid"], row["kernel"]), ""),
                _reasons(facts, findings, row, inner.get(row["call_id"], {})),
            )
            for row in own[:N_SLOWEST]
        ]
        if calls:
            groups.append(SlowGroup(title, calls))
    return groups


def _longest(rows: pa.Table) -> pa.Table:
    """The longest outermost calls of each group."""
    rows = rows.filter(pc.and_(pc.equal(rows["depth"], 0), pc.is_valid(rows["duration_ns"])))
    kept = []
    for _title, kinds in GROUPS:
        own = rows.filter(pc.is_in(rows["kind"], pa.array(kinds)))
        if own.num_rows > N_SLOWEST:
            best = pc.select_k_unstable(own, N_SLOWEST, [("duration_ns", "descending")])
            own = own.take(best)
        kept.append(own)
    return pa.concat_tables(kept)


def _inner_calls(facts: Facts, call_ids: list[int]) -> dict[int, dict[tuple[str, str], int]]:
    """Functions that ran inside each of the calls, by kind and name, and their length in ns."""
    wanted = pa.array(call_ids, pa.int64())
    found: dict[int, dict[tuple[str, str], int]] = {}

    def convert(part: pa.Table) -> None:
        own = part.filter(pc.is_in(part["parent_call_id"], wanted))
        for row in own.to_pylist():
            inside = found.setdefault(row["parent_call_id"], {})
            key = (row["kind"], row["function"])
            inside[key] = inside.get(key, 0) + (row["duration_ns"] or 0)

    columns = ("parent_call_id", "function", "kind", "duration_ns")
    facts.session.collect("cuda_call", columns, convert)
    return found


def _kernel_names(facts: Facts, rows: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    """Names of the kernels of these calls by process and handle."""
    if not facts.session.has("kernel_function"):
        return {}
    handles = pa.array({row["kernel"] for row in rows if row["kernel"] is not None}, pa.uint64())
    table = facts.session.table("kernel_function", columns=["time_ns", "pid", "kernel", "name"])
    known = table.filter(pc.and_(pc.is_in(table["kernel"], handles), pc.is_valid(table["name"])))
    return {(row["pid"], row["kernel"]): shown(row["name"], 400) for row in known.to_pylist()}


def _reasons(
    facts: Facts,
    findings: list[Finding],
    row: dict[str, Any],
    inner: dict[tuple[str, str], int],
) -> list[str]:
    """Sentences on what a call's time went into; one that says so where nothing is known."""
    start, length = row["start_ns"], row["duration_ns"]
    span = intervals.make([start], [start + length])
    reasons: list[str] = []
    if row["return_code"] not in (None, 0):
        reasons.append(f"It returned error {row['return_code']}.")
    if row["is_first_use"]:
        reasons.append("First use of this kernel: loading or compiling is part of it.")
    # A launch inside a launch is the same call one layer down, and explains nothing.
    others = {function: ns for (kind, function), ns in inner.items() if kind != row["kind"]}
    longest = max(others, key=lambda function: others[function], default="")
    if longest and others[longest] >= _LITTLE * length:
        reasons.append(f"{_part(others[longest], length)} inside {shown(longest, 80)}.")
    if facts.absences is not None:
        reasons += _off_cpu(facts.absences, row["tid"], start, length)
    for activity in facts.activity.values():
        busy = sum(intervals.overlap(span, spans) for spans in activity.values())
        if row["kind"] in ("sync", "copy") and busy >= _LITTLE * length:
            reasons.append(f"A device was busy for {_part(min(busy, length), length)}.")
            break
    if not reasons and row["kind"] == "sync":
        reasons.append("It waited for work that the device had; no device times tell which.")
    if not reasons:
        reasons.append(_comparison(facts, row["function"], length))
    for finding in findings:
        if finding.status is Status.FOUND and len(finding.spans):
            shared = intervals.overlap(span, finding.spans)
            if shared >= max(_LITTLE * length, 1):
                reasons.append(f"It lies in {finding.cause} for {_part(shared, length)}.")
    return reasons


def _comparison(facts: Facts, function: str, length: int) -> str:
    """How a call that nothing explains compares with the others of its function."""
    calls = facts.calls
    if calls is None or function not in calls.functions:
        return "Nothing that was recorded explains it."
    own = calls.duration[(calls.function == calls.functions.index(function)) & calls.has_return]
    middle = median(own)
    if not middle:
        return "Nothing that was recorded explains it."
    times = f"{length / middle:.3g} times the median of {len(own):,} calls"
    if length < _USUAL * middle:
        return f"Not unusual: {times}."
    return f"Nothing that was recorded explains it ({times})."


def _off_cpu(absences: Absences, tid: int, start: int, length: int) -> list[str]:
    """What the scheduler saw of a thread during a call."""
    is_in = (absences.tid == tid) & (absences.start < start + length) & (absences.end > start)
    if not is_in.any():
        return []
    own = absences.pick(is_in)
    ready = intervals.clip(own.ready_spans, start, start + length)
    waited = intervals.total(ready)
    asleep = intervals.total(intervals.clip(own.spans, start, start + length)) - waited
    reasons = []
    if waited >= _LITTLE * length:
        lengths = np.maximum(np.minimum(own.end, start + length) - np.maximum(own.ready, start), 0)
        held = np.bincount(own.culprit, weights=lengths, minlength=len(own.culprits))
        pid, task, name = own.culprits[int(held.argmax())]
        who = "" if not task else f"; {shown(name, 60)} ({pid}) had the CPU"
        reasons.append(f"Ready to run but waiting for a CPU for {_part(waited, length)}{who}.")
    if asleep >= _LITTLE * length:
        reasons.append(f"The thread slept inside it for {_part(asleep, length)}.")
    return reasons


def _part(ns: int, whole: int) -> str:
    return f"{duration_text(ns)} ({100 * min(ns / max(whole, 1), 1.0):.0f} %)"
