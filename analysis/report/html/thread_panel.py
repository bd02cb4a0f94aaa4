"""The panel of the threads: on a CPU, waiting for one, asleep."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.facts import Facts
from analysis.report.html.panel import Chart, Panel, Scale, how_to_record
from analysis.report.words import shown

#: Threads that get a chart of their own.
MAX_THREADS = 4
_STATES = (
    ("running_ns", "running"),
    ("waiting_ns", "waiting for a CPU"),
    ("sleeping_ns", "asleep"),
)


def thread_panel(facts: Facts, scale: Scale) -> Panel:
    """Return the panel of the threads that launch, and of the rest of their processes."""
    panel = Panel(
        "threads",
        "Threads",
        "Where the time of the launching threads went, as the kernel accounts it.",
    )
    session = facts.session
    if not session.has("thread_second"):
        panel.missing.append(how_to_record(session, "thread_second", "thread"))
        return panel
    names = ["start_ns", "duration_ns", "pid", "tid", "name", "is_launcher"]
    rows = session.table(
        "thread_second", columns=[*names, *(name for name, _word in _STATES)]
    ).to_pandas()
    rows = rows[rows["duration_ns"] > 0]
    if rows.empty:
        panel.missing.append(how_to_record(session, "thread_second", "thread"))
        return panel
    launching = {(pid, tid) for pid, tid in (facts.calls.threads if facts.calls else [])}
    told = rows["is_launcher"].fillna(False).astype(bool)
    launching |= set(zip(rows.loc[told, "pid"], rows.loc[told, "tid"], strict=True))
    grouped = rows.groupby(["pid", "tid"])
    spent = grouped[["running_ns", "waiting_ns"]].sum().sum(axis=1).sort_values(ascending=False)
    order = [key for key in spent.index if key in launching] or list(spent.index)
    for pid, tid in order[:MAX_THREADS]:
        own = grouped.get_group((pid, tid)).sort_values("start_ns")
        known = own["name"].dropna()
        word = shown(known.iloc[-1], 40) if len(known) else "thread"
        panel.charts.append(_chart(scale, f"{word} {tid} of process {pid}", own))
    if len(order) > MAX_THREADS:
        panel.missing.append(
            f"The {MAX_THREADS} busiest of {len(order)} launching threads are drawn; the rest is "
            "in table thread_second."
        )
    others = rows[[key not in launching for key in zip(rows["pid"], rows["tid"], strict=True)]]
    if launching and len(others):
        chart = Chart("All other threads of the targets", "CPUs", style="step")
        edges = scale.edges(400, 1_000_000_000)
        length = np.diff(edges)
        for column, word in _STATES[:2]:
            begin = others["start_ns"].to_numpy(dtype=np.int64)
            at = np.clip(np.searchsorted(edges, begin, side="right") - 1, 0, len(length) - 1)
            total = np.bincount(at, weights=others[column].to_numpy(float), minlength=len(length))
            chart.add_windows(scale, word, edges, total / length)
        panel.keep(chart, "")
    return panel


def _chart(scale: Scale, title: str, rows: pd.DataFrame) -> Chart:
    """Stacked shares of one thread's seconds, at most a few hundred of them."""
    chart = Chart(title, "% of time", style="stack", top=100.0)
    start = rows["start_ns"].to_numpy(dtype=np.int64)
    end = start + rows["duration_ns"].to_numpy(dtype=np.int64)
    step = max(len(rows) // 400, 1)
    first = np.arange(0, len(rows), step)
    length = np.add.reduceat((end - start).astype(float), first)
    edges = np.append(start[first], end[-1])
    for column, word in _STATES:
        total = np.add.reduceat(rows[column].to_numpy(dtype=float), first)
        chart.add_windows(scale, word, edges, 100 * total / length)
    return chart
