"""What a panel of the report is: rows of charts over the recording's time, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis import schema
from analysis.report.thinning import break_gaps, thin
from analysis.report.words import shown
from analysis.timeline import Session

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Buckets of a line: about the points of a wide screen, each with its minimum and maximum.
N_BUCKETS = 600
#: Lines of one chart that still can be told apart.
MAX_LINES = 8
#: What a probe needs of the machine, where its failure does not say it all.
_NEEDS = {"nvml": "an NVIDIA driver and the Python package nvidia-ml-py"}


@dataclass(frozen=True)
class Scale:
    """The common time axis: from ``start_ns`` to ``end_ns``, shown in seconds since its begin."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """Length of the recording in s."""
        return (self.end_ns - self.start_ns) / 1e9

    def edges(self, n_most: int, shortest_ns: int) -> Ints:
        """Return the edges in ns of at most ``n_most`` equal windows, none shorter than that."""
        length = max(self.end_ns - self.start_ns, 1)
        n = max(min(n_most, length // shortest_ns), 1)
        return np.linspace(self.start_ns, self.start_ns + length, n + 1).astype(np.int64)

    def x(self, time_ns: Ints) -> list[float]:
        """Return times in ns as seconds since the begin, to the millisecond or finer."""
        digits = 3 if self.seconds > 30 else 5
        result: list[float] = np.round((time_ns - self.start_ns) / 1e9, digits).tolist()
        return result


@dataclass
class Chart:
    """One chart: its title, unit, how it is drawn (line, step or stack), and its lines.

    Attributes:
        note: One sentence under the title; empty for none.
        top: Upper end of the axis where it is fixed, e.g. 100 for %.
    """

    title: str
    unit: str
    style: str = "line"
    note: str = ""
    top: float | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, scale: Scale, name: str, time_ns: Ints, value: Floats, *, is_limit: bool = False
    ) -> None:
        """Add a line of samples; thinned to a screen with its extremes, broken at gaps."""
        spacing = int(np.median(np.diff(time_ns))) if len(time_ns) > 1 else 0
        time_ns, value = thin(time_ns, value, scale.start_ns, scale.end_ns, N_BUCKETS)
        if len(time_ns) == 0:
            return
        bucket = (scale.end_ns - scale.start_ns) // N_BUCKETS
        time_ns, value = break_gaps(time_ns, value, max(spacing, bucket))
        self._append(name, scale.x(time_ns), value, is_limit)

    def add_windows(self, scale: Scale, name: str, edges: Ints, value: Floats) -> None:
        """Add one value per window, drawn as steps or as one layer of a stack; NaN is a gap."""
        told = np.append(value, value[-1:])
        # A step reaches to the next point: before a gap it needs one of its own.
        at = np.flatnonzero(np.isfinite(told[:-1]) & ~np.isfinite(told[1:])) + 1
        x = scale.x(np.insert(edges, at, edges[at]))
        self._append(name, x, np.insert(told, at, told[at - 1]), False)

    def _append(self, name: str, x: list[float], value: Floats, is_limit: bool) -> None:
        y = [float(f"{item:.4g}") if np.isfinite(item) else None for item in value.tolist()]
        self.lines.append({"name": shown(name, 60), "x": x, "y": y, "is_limit": is_limit})


@dataclass
class Panel:
    """Charts that belong together.

    Attributes:
        key: Anchor in the page.
        title: Heading.
        lead: One sentence on how to read it.
        charts: Those that have data.
        missing: One sentence per source that is not there, and how to record it.
    """

    key: str
    title: str
    lead: str
    charts: list[Chart] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def keep(self, chart: Chart, otherwise: str) -> None:
        """Add a chart, or the sentence where it has no line."""
        if chart.lines:
            self.charts.append(chart)
        elif otherwise and otherwise not in self.missing:
            self.missing.append(otherwise)


def how_to_record(session: Session, table: str, source: str) -> str:
    """Return what to know about a table that the session lacks: why, and what to do to record it.

    Args:
        session: The session.
        table: The table.
        source: The probe that records it.
    """
    told = session.manifest.source(source)
    if told is not None and told.state == "ok" and session.manifest.origin == "record":
        return f"No row of {table} came in all that time ({source} was recording)."
    note = f": {shown(told.note).rstrip('.')}" if told is not None and told.note else ""
    if told is not None and session.manifest.origin == "record":
        # It was asked for: the command alone would fail again.
        missing = f"{table} was not recorded{note}."
        needs = f" It needs {_NEEDS[source]}." if source in _NEEDS else ""
        return f"{missing}{needs} What is missing here is told by: tracer doctor"
    command = schema.table(table).command
    return f"{table} was not recorded{note}. Record it with: {command}"
