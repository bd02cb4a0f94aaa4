"""The panel of the neighbours: who else used the GPUs and the CPUs."""

from __future__ import annotations

import numpy as np

from analysis import intervals
from analysis.facts import Facts
from analysis.report.html.panel import N_BUCKETS, Chart, Panel, Scale, how_to_record
from analysis.report.words import shown

#: Neighbours that get a line of their own; the rest is one line.
MAX_NEIGHBOURS = 5
_SECOND = 1_000_000_000


def neighbour_panel(facts: Facts, scale: Scale) -> Panel:
    """Return the panel of other processes on the GPUs, of those that held the CPU, and the host."""
    panel = Panel(
        "neighbours",
        "Neighbours",
        "Other processes on the same GPUs, and those that ran while a launching thread was ready.",
    )
    _add_processes(panel, facts, scale)
    _add_culprits(panel, facts, scale)
    _add_host(panel, facts, scale)
    return panel


def _add_processes(panel: Panel, facts: Facts, scale: Scale) -> None:
    session = facts.session
    if not session.has("gpu_process"):
        panel.missing.append(how_to_record(session, "gpu_process", "nvml"))
        return
    columns = ["time_ns", "device", "pid", "name", "sm_util_pct", "is_target"]
    rows = session.table("gpu_process", columns=columns).to_pandas()
    others = rows[~rows["is_target"].fillna(False).astype(bool)]
    if others.empty:
        panel.missing.append("No other process had a context on these GPUs.")
        return
    told = others[others["sm_util_pct"].notna()]
    if told.empty:
        names = sorted({f"{shown(name, 40)} ({pid})" for pid, name in _named(others)})
        panel.missing.append(
            "The driver did not say how much of the GPU each process used; with contexts there: "
            + ", ".join(names[:10])
        )
        return
    chart = Chart("SM share of other processes", "%", top=100.0)
    means = told.groupby("pid")["sm_util_pct"].mean().sort_values(ascending=False)
    names_of = dict(_named(told))
    for pid in means.index[:MAX_NEIGHBOURS]:
        own = told[told["pid"] == pid]
        time = own["time_ns"].to_numpy(dtype=np.int64)
        name = f"{shown(names_of.get(pid, 'process'), 40)} ({pid})"
        chart.add(scale, name, time, own["sm_util_pct"].to_numpy(dtype=float))
    panel.keep(chart, "")


def _named(rows: object) -> list[tuple[int, str]]:
    """Process ids and their last known names."""
    last = rows.dropna(subset=["name"]).groupby("pid")["name"].last()  # type: ignore[attr-defined]
    return [(int(pid), str(name)) for pid, name in last.items()]


def _add_culprits(panel: Panel, facts: Facts, scale: Scale) -> None:
    absences = facts.absences
    if absences is None:
        panel.missing.append(how_to_record(facts.session, "offcpu", "offcpu"))
        return
    spans = absences.ready_spans
    length = spans[:, 1] - spans[:, 0]
    totals: dict[str, list[int]] = {}
    by_culprit = np.bincount(
        absences.culprit, weights=np.maximum(length, 0), minlength=len(absences.culprits)
    )
    groups: dict[str, int] = {}
    for index, (pid, tid, name) in enumerate(absences.culprits):
        word = "an idle CPU" if tid == 0 else f"{shown(name, 40)} ({pid})"
        totals.setdefault(word, []).append(index)
        groups[word] = groups.get(word, 0) + int(by_culprit[index])
    order = sorted((word for word in groups if groups[word]), key=lambda word: -groups[word])
    edges = scale.edges(N_BUCKETS // 2, 250_000_000)
    chart = Chart("Launching threads ready to run, by who had the CPU", "ms/s", style="step")
    for word in order[:MAX_NEIGHBOURS]:
        own = spans[np.isin(absences.culprit, totals[word])]
        waited = intervals.weight(own, edges)
        chart.add_windows(scale, word, edges, 1e3 * waited / np.diff(edges))
    panel.keep(chart, "No launching thread waited for a CPU.")


def _add_host(panel: Panel, facts: Facts, scale: Scale) -> None:
    session = facts.session
    if not session.has("host_sample"):
        panel.missing.append(how_to_record(session, "host_sample", "host"))
        return
    columns = [
        *("time_ns", "scope", "n_cpus", "cpu_busy_ns", "cpu_steal_ns"),
        *("cpu_some_ns", "memory_some_ns", "cpu_throttled_ns"),
    ]
    rows = session.table("host_sample", columns=columns).to_pandas()
    chart = Chart("Host", "% of time", top=100.0)
    host = rows[rows["scope"] == "host"]
    n_cpus = host["n_cpus"].dropna()
    n = float(n_cpus.iloc[-1]) if len(n_cpus) else 1.0
    quantities = (
        ("cpu_busy_ns", "CPUs busy", n),
        ("cpu_steal_ns", "stolen by the hypervisor", n),
        ("cpu_some_ns", "some task waited for a CPU", 1.0),
        ("memory_some_ns", "some task waited for memory", 1.0),
    )
    for column, name, divisor in quantities:
        time, share = _rate(host, column)
        if len(share) and (share.any() or column == "cpu_busy_ns"):
            chart.add(scale, name, time, 100 * share / divisor)
    panel.keep(chart, "")
    quota = Chart("Time parked by a CPU quota", "ms/s")
    for scope, own in rows[rows["scope"] != "host"].groupby("scope"):
        time, share = _rate(own, "cpu_throttled_ns")
        if share.any() and len(quota.lines) < MAX_NEIGHBOURS:
            quota.add(scale, str(scope), time, 1e3 * share)
    panel.keep(quota, "")


def _rate(rows: object, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Growth of a cumulative time in ns per ns between samples, at their later times."""
    told = rows[rows[column].notna()].sort_values("time_ns")  # type: ignore[index]
    time = told["time_ns"].to_numpy(dtype=np.int64)
    if len(time) < 2:
        return time[:0], np.empty(0)
    grown = np.diff(told[column].to_numpy(dtype=float))
    return time[1:], np.maximum(grown, 0) / np.maximum(np.diff(time), 1)
