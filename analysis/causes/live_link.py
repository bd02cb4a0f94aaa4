"""Copies over the host link without device times: bytes against its ceiling, and idle waits.

Idle waits are time in which work was outstanding and no kernel ran.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis import intervals, quantiles
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.severity import MATERIAL_SHARE
from analysis.threads import Launcher

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LINK = "transfer.host_link"

#: What one lane carries each way, bytes/s, by generation; and what copies reach of it.
LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
REACHED = 0.8
#: Copies from this size are limited by the link, smaller ones by their latency.
LARGE_BYTES = 1 << 20
N_COPIES = 10
#: Share of the unexplained waiting that the link must explain.
EXPLAINED = 0.5
#: A link at its lowest generations while so many bytes a second go over it is not asleep.
SLOW_GENERATION = 2
SLOW_EXPLAINED = 0.3
AWAKE_BYTES_PER_S = 0.2e9


def find_live_link(facts: Facts) -> Finding | None:
    """Return whether work waited for large copies; None without calls, utilisation and link."""
    best: Finding | None = None
    for device in facts.devices:
        finding = _of_device(facts, device)
        if finding is not None and (best is None or finding.lost_ns > best.lost_ns):
            best = finding
    return best


def _ceiling(facts: Facts, device: int | None) -> tuple[float, int, int] | None:
    """Bytes/s that the link carries each way under load, its generation and width."""
    if facts.gpu is None or not facts.gpu.devices:
        return None
    index = device if device is not None else facts.gpu.devices[0]
    generation = facts.gpu.quantity(index, "pcie_link_gen")
    width = facts.gpu.quantity(index, "pcie_link_width")
    if generation is None:
        return None
    gen = int(quantiles.median(generation.value) or 0)
    lanes = 16 if width is None else int(quantiles.median(width.value) or 0)
    lane = LANE_BYTES_PER_S.get(gen)
    return (lane * lanes * REACHED, gen, lanes) if lane and lanes else None


def _of_device(facts: Facts, device: int | None) -> Finding | None:
    pids = facts.pids_on(device)
    samples, ceiling = facts.utilisation(device), _ceiling(facts, device)
    if not pids or samples is None or ceiling is None:
        return None
    pid = pids[0]
    launcher = facts.launchers[pid]
    mean = samples.mean(facts.demand)
    # Work is outstanding in a wait for it, and inside a copy that keeps its caller.
    blocking = launcher.spans(launcher.calls.is_kind("copy"))
    outstanding = np.concatenate((facts.steps(pid).outstanding, blocking))
    wanted = intervals.total(intervals.intersect(intervals.union(outstanding), facts.demand))
    unexplained = 0.0 if mean is None else wanted / facts.demand_ns - mean[0] / 100
    large = intervals.EMPTY
    if unexplained >= MATERIAL_SHARE:
        # Their sizes are in the session only: a second reading of all calls.
        copies = facts.copies(pid, ("h2d", "h2d_pageable", "d2h", "d2h_pageable"))
        large = copies[copies[:, 1] >= LARGE_BYTES]
    finding = Finding(
        LINK,
        Status.NOT_FOUND,
        confidence=0.85,
        where=Where(pid, launcher.tid, device, process=facts.process_name(pid)),
    )
    if mean is None or len(large) < N_COPIES:
        finding.excluded.append(
            Exclusion(
                LINK,
                f"work waits without a kernel for {100 * max(unexplained, 0):.0f} % of the time"
                if unexplained < MATERIAL_SHARE
                else f"{len(large)} large copies were made",
            )
        )
        return finding
    rate, generation, lanes = ceiling
    seconds = facts.demand_ns / 1e9
    on_link = float(large[:, 1].sum()) / rate / seconds
    n = len(large)
    finding.evidence = [
        Evidence("large_copies", int(large[:, 1].sum()), "bytes", n, "cuda_call"),
        Evidence("link", f"generation {generation} x{lanes}", "", None, "gpu_sample"),
        Evidence("time_on_link_at_least", round(100 * on_link, 1), "%", n, ""),
        Evidence("utilisation", round(mean[0], 1), "%", mean[1], "gpu_sample"),
        Evidence("waiting_without_a_kernel", round(100 * unexplained, 1), "%", None, ""),
    ]
    if on_link < MATERIAL_SHARE:
        finding.excluded.append(
            Exclusion(
                LINK,
                f"large copies take {100 * on_link:.1f} % of the time on the link, and work waits "
                f"without a kernel for {100 * max(unexplained, 0):.0f} %",
            )
        )
        return finding
    finding.start_ns, finding.end_ns = int(large[0, 0]), int(large[-1, 0])
    finding.lost_share = min(unexplained, 1.0)
    finding.lost_ns = int(finding.lost_share * facts.demand_ns)
    text = (
        f"{float(large[:, 1].sum()) / seconds / 1e9:.1f} GB a second are copied over a link of "
        f"generation {generation} x{lanes}, and for {100 * unexplained:.0f} % of the time work "
        "waited while no kernel ran"
    )
    is_slow = (
        generation <= SLOW_GENERATION and float(large[:, 1].sum()) / seconds >= AWAKE_BYTES_PER_S
    )
    least = SLOW_EXPLAINED if is_slow else EXPLAINED
    held = 0.0 if on_link >= least * unexplained else _held(facts, launcher, device, unexplained)
    if held >= EXPLAINED * unexplained:
        finding.evidence.append(
            Evidence("idle_inside_pageable_copies", round(100 * held, 1), "%", n, "cuda_call")
        )
        finding.status, finding.confidence = Status.FOUND, 0.75 * facts.trust("cuda", "nvml")
        finding.summary = (
            f"{text[0].upper()}{text[1:]}: the launching thread was inside copies from pageable "
            f"memory for at least {100 * held:.0f} % meanwhile, which pinned memory and a stream "
            "for copies would hide."
        )
        return finding
    if on_link < least * unexplained:
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.undecided_because = (
            f"{text}, of which the copies explain {100 * on_link / unexplained:.0f} % at the "
            "link's rate"
        )
        finding.settled_by = "device times: tracer import TRACE (PyTorch profiler, Nsight Systems)"
        return finding
    finding.status, finding.confidence = Status.FOUND, 0.82 * facts.trust("cuda", "nvml")
    finding.summary = f"{text[0].upper()}{text[1:]}: the copies hold the work up." + (
        " The link runs at a low generation under load." if is_slow else ""
    )
    return finding


def _held(facts: Facts, launcher: Launcher, device: int | None, unexplained: float) -> float:
    """Least share of the demand in which no kernel ran while the launching thread was inside large
    copies from pageable memory, which keep it: what the rest of the waiting cannot hold.
    """
    copies = facts.copies(launcher.pid, ("h2d_pageable",))
    starts = copies[copies[:, 1] >= LARGE_BYTES][:, 0]
    calls = launcher.calls
    inside = intervals.union(launcher.spans(calls.is_kind("copy") & np.isin(calls.start, starts)))
    outstanding = intervals.union(facts.steps(launcher.pid).outstanding)
    elsewhere = intervals.subtract(intervals.subtract(outstanding, inside), facts.busy(device))
    rest = intervals.total(intervals.intersect(elsewhere, facts.demand)) / facts.demand_ns
    within = intervals.total(intervals.intersect(inside, facts.demand)) / facts.demand_ns
    return max(min(unexplained - rest, within), 0.0)
