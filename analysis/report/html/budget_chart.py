"""The budget of each device as a stacked timeline, with the findings marked above it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from analysis import intervals
from analysis.attribution import Attribution
from analysis.budget import Budget
from analysis.facts import Facts
from analysis.finding import Finding, Status
from analysis.report.html.panel import Ints, Scale
from analysis.report.words import REASON_TEXT, STATE_TEXT, basis_text, duration_text, shown

#: Layers below this share of the recording are drawn together.
_LITTLE = 0.003
#: A budget over less of the recording than this is said to be over a part of it.
_MOST = 0.97
#: Marks of ``tracer mark`` that are drawn.
MAX_NOTED = 40
#: Findings that are marked above the timeline.
MAX_MARKS = 8
#: Marks closer than this part of the recording are drawn as one.
_JOINED = 1 / 600


@dataclass(frozen=True)
class Layer:
    """One layer of the stack: a state, or a reason of idleness.

    Attributes:
        key: Its colour in the style sheet, ``--k-KEY``.
        name: What it is called.
        pattern: Its pattern, so that it can be told without colour; one of Plotly's.
    """

    key: str
    name: str
    pattern: str

    @property
    def weave(self) -> str:
        """Name of the pattern in the style sheet."""
        return _WEAVES[self.pattern]


_WEAVES = {
    "": "plain",
    "/": "slash",
    "\\": "backslash",
    "x": "cross",
    "-": "level",
    "|": "upright",
    "+": "grid",
    ".": "dots",
}
#: Patterns by layer; the order is that of the stack, from the bottom.
_PATTERNS = {
    "compute": "",
    "prefill": "/",
    "collective": ".",
    "copy": "-",
    "other_process": "x",
    "hung": "+",
    "cpu_delay": "\\",
    "throttled": "x",
    "first_use": "+",
    "sync": "-",
    "input": ".",
    "late_launch": "|",
    "launching": "/",
    "calling": "|",
    "host": "-",
    "other_rank": ".",
    "interpreter": "x",
    "collector": ".",
    "asleep": "\\",
    "rest": "-",
    "idle_unknown": ".",
    "no_demand": "",
    "unknown": "/",
}
_NAMES = {
    "prefill": "compute: prefill",
    "rest": "idle: other reasons",
    "idle_unknown": "idle: for a reason not known",
    "no_demand": "idle: no demand",
    "unknown": STATE_TEXT["unknown"],
}


def _key(state: str, reason: str) -> str:
    """The layer that a state and its reason belong to."""
    if state == "idle":
        if reason == "unknown":
            return "idle_unknown"
        return reason if reason in _PATTERNS else "rest"
    if state == "compute" and reason == "prefill":
        return "prefill"
    return state


def _layer(key: str) -> Layer:
    if key in _NAMES:
        name = _NAMES[key]
    elif key in STATE_TEXT:
        name = STATE_TEXT[key]
    else:
        name = f"idle: {REASON_TEXT[key]}"
    return Layer(key, name, _PATTERNS[key])


@dataclass
class DeviceBudget:
    """The stacked timeline of one device, as data for the page.

    Attributes:
        title: Name of the device.
        basis: What it rests on.
        chart: Edges in s, layers with their share in % per window, marks of findings in s.
        totals: Layer, share of the recording in [0, 1] and length in ns, largest first.
    """

    title: str
    basis: str
    chart: dict[str, Any]
    totals: list[tuple[Layer, float, int]]


def device_budgets(attribution: Attribution, scale: Scale) -> list[DeviceBudget]:
    """Return the timelines of all devices of an attribution."""
    return [_device(budget, attribution.findings, scale) for budget in attribution.budgets]


def _device(budget: Budget, findings: list[Finding], scale: Scale) -> DeviceBudget:
    edges = budget.edges
    length = np.diff(edges)
    spent: dict[str, Ints] = {}
    for (state, reason), values in budget.spent.items():
        key = _key(state, reason)
        spent[key] = spent[key] + values if key in spent else values
    whole = max(int(edges[-1] - edges[0]), 1)
    for key in [name for name in spent if name not in STATE_TEXT]:
        if int(spent[key].sum()) < _LITTLE * whole:
            rest = spent.pop(key)
            spent["rest"] = spent.get("rest", 0) + rest
    order = [key for key in _PATTERNS if key in spent and spent[key].any()]
    layers = []
    for key in order:
        share = np.round(100 * spent[key] / np.maximum(length, 1), 2)
        layer = _layer(key)
        layers.append(
            {
                "key": key,
                "name": layer.name,
                "pattern": layer.pattern,
                "y": np.append(share, share[-1:]).tolist(),
            }
        )
    totals = [(_layer(key), int(spent[key].sum()) / whole, int(spent[key].sum())) for key in order]
    totals.sort(key=lambda item: -item[1])
    title = "Device" if budget.device is None else f"GPU {budget.device}"
    basis = basis_text(budget.basis)
    if whole < _MOST * (scale.end_ns - scale.start_ns):
        basis += f", for the {duration_text(whole)} that hold full detail"
    chart = {
        "x": scale.x(edges),
        "layers": layers,
        "marks": _marks(findings, budget.device, scale),
    }
    return DeviceBudget(title, basis, chart, totals)


def _marks(findings: list[Finding], device: int | None, scale: Scale) -> list[dict[str, Any]]:
    """Where each finding applies, numbered as the findings are listed."""
    marks: list[dict[str, Any]] = []
    for number, finding in enumerate(listed(findings), start=1):
        if finding.where.device not in (None, device) or len(marks) == MAX_MARKS:
            continue
        spans = finding.spans
        if len(spans) == 0 and finding.start_ns is not None and finding.end_ns is not None:
            spans = intervals.make([finding.start_ns], [finding.end_ns])
        spans = intervals.clip(intervals.union(spans), scale.start_ns, scale.end_ns)
        if len(spans) == 0:
            continue
        rows = _joined(spans, int((scale.end_ns - scale.start_ns) * _JOINED))
        marks.append(
            {
                "number": number,
                "name": finding.cause,
                "is_proven": finding.status is Status.FOUND,
                "spans": [scale.x(row) for row in rows],
            }
        )
    return marks


def marks_of(facts: Facts, scale: Scale) -> list[dict[str, Any]]:
    """Return what ``tracer mark`` noted during the recording: time in s and text."""
    if not facts.session.has("event"):
        return []
    rows = facts.session.table("event", columns=["time_ns", "kind", "name"])
    rows = rows.filter(pc.equal(rows["kind"], "mark")).slice(0, MAX_NOTED)
    times = scale.x(rows["time_ns"].to_numpy())
    names = [shown(name, 40) for name in rows["name"].to_pylist()]
    return [{"x": x, "name": name} for x, name in zip(times, names, strict=True)]


def _joined(spans: Ints, gap_ns: int) -> Ints:
    """Disjoint spans, those closer than a gap as one."""
    is_far = spans[1:, 0] - spans[:-1, 1] > gap_ns
    first = np.flatnonzero(np.append(True, is_far))
    last = np.append(first[1:] - 1, len(spans) - 1)
    return intervals.make(spans[first, 0], spans[last, 1])


def listed(findings: list[Finding]) -> list[Finding]:
    """Return the findings that are listed and numbered: all but the outcome ``unknown``."""
    return [item for item in findings if item.cause != "unknown"]
