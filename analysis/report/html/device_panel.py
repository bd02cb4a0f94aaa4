"""The panel of the devices: utilisation, memory interface, power and clocks."""

from __future__ import annotations

import numpy as np

from analysis import intervals
from analysis.facts import Facts
from analysis.report.html.panel import MAX_LINES, N_BUCKETS, Chart, Panel, Scale, how_to_record

#: Title, unit, column, factor to the unit, upper end, and what is missing where no GPU tells it.
_QUANTITIES = (
    ("Utilisation", "%", "util_pct", 1.0, 100.0, ""),
    (
        "DRAM active",
        "%",
        "dram_active_pct",
        1.0,
        100.0,
        "DRAM activity needs GPM (Hopper and later, through NVML) or DCGM: see tracer doctor.",
    ),
    ("Power", "W", "power_mw", 1e-3, None, "No GPU told its power."),
    ("SM clock", "MHz", "sm_clock_mhz", 1.0, None, "No GPU told its clocks."),
    ("Temperature", "°C", "temperature_celsius", 1.0, None, ""),
)
#: The limit that is drawn beside a quantity.
_LIMITS = {"power_mw": ("power_limit_mw", "limit"), "sm_clock_mhz": ("sm_clock_max_mhz", "highest")}


def device_panel(facts: Facts, scale: Scale) -> Panel:
    """Return the panel of the sampled GPUs."""
    panel = Panel(
        "device",
        "Device",
        "Utilisation only says that some kernel ran: read it with power and DRAM activity.",
    )
    session = facts.session
    if facts.activity:
        panel.keep(_busy(facts, scale), "")
    if not session.has("gpu_sample"):
        panel.missing.append(how_to_record(session, "gpu_sample", "nvml"))
        return panel
    columns = {name for _t, _u, name, *_rest in _QUANTITIES} | {
        name for name, _w in _LIMITS.values()
    }
    rows = session.table(
        "gpu_sample", columns=["time_ns", "device", "is_repeated", *sorted(columns)]
    ).to_pandas()
    rows = rows[~rows["is_repeated"].fillna(False).astype(bool)]
    devices = sorted(int(device) for device in rows["device"].unique())
    if len(devices) > MAX_LINES:
        panel.missing.append(f"Only the first {MAX_LINES} of {len(devices)} GPUs are drawn.")
    groups = {device: rows[rows["device"] == device] for device in devices[:MAX_LINES]}
    for title, unit, column, factor, top, otherwise in _QUANTITIES:
        chart = Chart(title, unit, top=top)
        for device, own in groups.items():
            told = own[own[column].notna()]
            time = told["time_ns"].to_numpy(dtype=np.int64)
            value = factor * told[column].to_numpy(dtype=float)
            chart.add(scale, f"GPU {device}", time, value)
        limit, word = _LIMITS.get(column, ("", ""))
        if limit and chart.lines:
            _add_limits(chart, scale, groups, limit, word, factor)
        panel.keep(chart, otherwise)
    return panel


def _busy(facts: Facts, scale: Scale) -> Chart:
    """Share of each window in which a device ran something, by its own times."""
    chart = Chart("Busy, by device times", "%", style="step", top=100.0)
    edges = scale.edges(N_BUCKETS, 1_000_000)
    for device in sorted(facts.activity)[:MAX_LINES]:
        share = 100 * intervals.coverage(facts.busy(device), edges) / np.diff(edges)
        chart.add_windows(scale, f"GPU {device}", edges, share)
    return chart


def _add_limits(
    chart: Chart, scale: Scale, groups: dict[int, object], column: str, word: str, factor: float
) -> None:
    """Add the limit of the GPUs, once where it is the same for all of them."""
    seen: set[tuple[float, ...]] = set()
    for device, own in groups.items():
        told = own[own[column].notna()]  # type: ignore[index]
        value = factor * told[column].to_numpy(dtype=float)
        key = (float(value.min()), float(value.max())) if len(value) else ()
        if not key or key in seen:
            continue
        seen.add(key)
        name = word if len(groups) == 1 or not len(seen) > 1 else f"{word} of GPU {device}"
        chart.add(scale, name, told["time_ns"].to_numpy(dtype=np.int64), value, is_limit=True)
