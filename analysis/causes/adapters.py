"""Adapters are swapped in and out of too few places."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis import engine as words
from analysis import intervals, quantiles
from analysis.causes.declaration import Cause, Needs
from analysis.engine import gauge_at
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status
from analysis.severity import assess

ADAPTERS = "adapter.thrash"

#: Scrapes with adapters waited for that make it persistent.
N_SCRAPES = 5
#: Bytes copied to the device in a second with adapters waited for, against one without, and least.
MANY = 10.0
LEAST_BYTES = 50_000_000


def find_adapter_thrash(facts: Facts) -> Finding:
    """Return whether requests waited for adapters while their weights were copied again."""
    engine = facts.engine
    waited = engine.gauge(words.ADAPTERS_WAITING) if engine is not None else None
    if engine is None or waited is None or len(waited.time) < N_SCRAPES:
        return Finding(
            ADAPTERS,
            Status.NOT_APPLICABLE,
            undecided_because="the engine does not expose the adapters that requests wait for",
        )
    finding = Finding(ADAPTERS, Status.NOT_FOUND, confidence=0.85)
    both = (waited.value[1:] > 0) & (waited.value[:-1] > 0)
    spans = intervals.union(intervals.make(waited.time[:-1][both], waited.time[1:][both]))
    severity = assess(spans, facts.demand)
    n = int((waited.value > 0).sum())
    if n < N_SCRAPES or not severity.is_material:
        finding.excluded.append(
            Exclusion(ADAPTERS, f"adapters were waited for in {n} of {len(waited.value)} scrapes")
        )
        return finding
    running = engine.gauge(words.ADAPTERS_RUNNING)
    finding.start_ns, finding.end_ns = severity.start_ns, severity.end_ns
    mean = float(waited.value[waited.value > 0].mean())
    finding.evidence = [
        Evidence("adapters_waited_for", round(mean, 1), "adapters", n, "engine_sample")
    ]
    if running is not None:
        level = float(gauge_at(running, waited.time).mean())
        finding.evidence.append(
            Evidence("adapters_running", round(level, 1), "adapters", n, "engine_sample")
        )
    finding.lost_share, finding.lost_ns = severity.share / 2, severity.lost_ns // 2
    text = f"requests waited for {mean:.0f} adapters in {100 * severity.share:.0f} % of the time"
    copied = _copied(facts)
    if copied is None:
        finding.status, finding.confidence = Status.UNDECIDED, 0.6
        finding.undecided_because = f"{text}, but copies to the device are not in the recording"
        finding.settled_by = "cuda_call: tracer record --pid PID as root"
        return finding
    edges, n_bytes = copied
    middle = (edges[1:] + edges[:-1]) // 2
    at = np.searchsorted(spans[:, 0], middle, side="right") - 1
    inside = (at >= 0) & (spans[np.maximum(at, 0), 1] > middle)
    now, usual = quantiles.median(n_bytes[inside]), quantiles.median(n_bytes[~inside])
    if now is None:
        now = 0.0
    if int((~inside).sum()) < N_SCRAPES:
        usual = None
    finding.evidence.append(
        Evidence("copied_to_device", round(now), "bytes/s", int(inside.sum()), "cuda_call")
    )
    if now < max(LEAST_BYTES, MANY * (usual or 0.0)):
        finding.lost_ns, finding.lost_share = 0, 0.0
        finding.excluded.append(
            Exclusion(ADAPTERS, f"{text}, but hardly a byte was copied to the device for them")
        )
        return finding
    finding.status, finding.confidence = Status.FOUND, 0.88 * facts.trust("engine", "cuda")
    finding.summary = (
        f"{text[0].upper()}{text[1:]}, and {now / 1e6:.0f} MB a second were copied to the device: "
        "more adapters are in use than fit."
    )
    return finding


def _copied(facts: Facts) -> tuple[np.ndarray, np.ndarray] | None:
    """Bytes copied from host to device in each second; None where no copy tells its size."""
    if facts.calls is None:
        return None
    edges = intervals.windows(facts.start_ns, facts.end_ns, 1_000_000_000)
    total = np.zeros(len(edges) - 1)
    is_told = False

    def add(part: pa.Table) -> None:
        nonlocal is_told
        is_in = pc.is_in(part["copy_kind"], pa.array(["h2d", "h2d_pageable"]))
        own = part.filter(pc.and_(pc.fill_null(is_in, False), pc.is_valid(part["size_bytes"])))
        is_told = is_told or own.num_rows > 0
        at = np.searchsorted(edges, own["start_ns"].to_numpy(), side="right") - 1
        np.add.at(total, np.clip(at, 0, len(total) - 1), own["size_bytes"].to_numpy())

    facts.session.collect("cuda_call", ("start_ns", "copy_kind", "size_bytes"), add)
    return (edges, total) if is_told else None


CAUSES = (
    Cause(
        ADAPTERS,
        "adapters are swapped at every batch",
        "More adapters are in use than fit.",
        "Requests wait for adapters, and many times the usual bytes are copied to the device "
        "meanwhile.",
        "Weight offloading.",
        "Record with --engine URL, as root.",
        "Raise the number of adapter slots or route by adapter.",
        Needs(("engine_sample",), optional=("cuda_call",)),
        find_adapter_thrash,
    ),
)
