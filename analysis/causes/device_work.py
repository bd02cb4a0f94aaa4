"""Busy devices, told from device times: useful work, or copies over the host's link."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis import intervals, quantiles
from analysis.back_pressure import back_pressure
from analysis.causes import engine_steps, live_link
from analysis.causes.declaration import Cause, Needs
from analysis.causes.live_link import find_live_link
from analysis.device_time import BUSY, SPAN_TEXT, Activities
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.idleness import Idleness
from analysis.severity import MATERIAL_SHARE

Ints = npt.NDArray[np.int64]

COMPUTE = "device.compute_bound"
LINK = live_link.LINK

#: The device is the limit when it idles for less than this ...
IDLE_SHARE = 0.15
#: ... and computes, rather than waits in collectives or for copies of the host, for at least this.
USEFUL_SHARE = 0.75
#: Submissions that were waiting at a typical one, so that the next was always there, ...
QUEUED = 3
#: ... and how many submissions that statement needs: one step says nothing about a service.
N_SUBMISSIONS = 100
#: Copies from this size are limited by the link, smaller ones by their latency of about 10 us
#: (1 MiB takes 40 us at 25 GB/s).
LARGE_BYTES = 1 << 20
#: Share of the exposed copy time that large copies must hold.
LARGE_SHARE = 0.8
#: The typical large copy is at the ceiling when it reaches this share of the fastest tenth.
CEILING_SHARE = 0.8
#: Large copies that a statement needs.
N_COPIES = 10


def find_compute_bound(facts: Facts) -> Finding:
    """Return whether the device was the limit and did useful work."""
    if not facts.timed:
        return Finding(COMPUTE, Status.NOT_APPLICABLE, undecided_because="no device ran anything")
    busiest = max(facts.timed, key=lambda item: item.usage.busy_ns)
    return _compute_bound(facts, busiest)


def find_host_link(facts: Facts) -> Finding:
    """Return whether the device waited for copies over the host's link."""
    if not facts.timed:
        live = find_live_link(facts)
        if live is not None:
            return live
        return Finding(LINK, Status.NOT_APPLICABLE, undecided_because="no device ran anything")
    worst = max(facts.timed, key=lambda item: intervals.total(exposed_copies(item.activities)))
    return _host_link(facts, worst)


def exposed_copies(activities: Activities) -> Ints:
    """Return the intervals in ns in which the device only copied to or from the host."""
    is_host = np.isin(activities.copy_kind, ("h2d", "d2h"))
    return intervals.subtract(activities.spans[is_host], activities.spans[~is_host])


def submissions_waiting(activities: Activities) -> Ints:
    """Return, for each call that submitted work, how many calls were waiting at its entry.

    A graph counts as one, whatever it holds; the call itself counts.
    """
    rows = activities.has_call
    submitted, index = np.unique(activities.call_start_ns[rows], return_inverse=True)
    started = np.full(len(submitted), np.iinfo(np.int64).max)
    np.minimum.at(started, index, activities.spans[rows, 0])
    before = np.searchsorted(np.sort(started), submitted, side="right")
    waiting: Ints = np.arange(1, len(submitted) + 1, dtype=np.int64) - before
    return waiting


def _where(facts: Facts, item: Idleness) -> Where:
    device = item.activities.device
    pids = facts.pids_on(device)
    pid = pids[0] if pids else None
    return Where(pid, None, device, item.activities.rank, facts.process_name(pid))


def _compute_bound(facts: Facts, item: Idleness) -> Finding:
    usage, span = item.usage, max(item.usage.span_ns, 1)
    waiting = submissions_waiting(item.activities)
    exposed = intervals.total(exposed_copies(item.activities))
    useful = (usage.busy_ns - usage.exposed_collective_ns - exposed) / span
    idle = usage.idle_ns / span
    typical = quantiles.median(waiting) or 0
    n = len(waiting)
    finding = Finding(
        COMPUTE,
        Status.NOT_FOUND,
        confidence=0.85,
        start_ns=item.activities.start_ns,
        end_ns=item.activities.end_ns,
        where=_where(facts, item),
        evidence=[
            Evidence(BUSY, round(100 * usage.busy_ns / span, 1), "%", None, "gpu_activity"),
            Evidence("useful_work_of_that_time", round(100 * useful, 1), "%", None, "gpu_activity"),
            Evidence("submissions_waiting_p50", float(typical), "", n, "cuda_call"),
        ],
    )
    reasons = []
    if idle > IDLE_SHARE:
        reasons.append(f"the device was idle for {100 * idle:.0f} % of {SPAN_TEXT}")
    elif useful < USEFUL_SHARE:
        reasons.append(f"only {100 * useful:.0f} % of {SPAN_TEXT} was useful work")
    outside = _asked_outside(facts, item.activities)
    if outside > IDLE_SHARE * (span + outside):
        reasons.append(f"it ran nothing for {outside / 1e9:.1f} s more in which work was asked for")
    if n < N_SUBMISSIONS:
        reasons.append(f"{n} submissions are too few to tell")
    elif typical < QUEUED:
        reasons.append(f"{typical:.0f} submissions waited at a typical launch: no queue")
    if engine_steps.hogging_share(facts) >= engine_steps.HOG_SHARE:
        reasons.append("its work was mostly prompts that decodes waited for (prefill.hogging)")
    if reasons:
        finding.excluded = [Exclusion(COMPUTE, reason) for reason in reasons]
        return finding
    finding.status = Status.FOUND
    finding.confidence = 0.85 * facts.trust("cuda", "cupti")
    held = back_pressure(facts.session, set(facts.pids_on(item.activities.device)) or None)
    long_calls = "long launch calls are back-pressure"
    if held.n:
        long_calls = (
            f"{held.n} launches waited {held.total_ns / 1e6:.0f} ms for room in its queue: "
            "back-pressure, not slow launching"
        )
        finding.evidence.append(
            Evidence("held_by_full_queue", held.total_ns, "ns", held.n, "annotation")
        )
    finding.summary = (
        f"Device {item.activities.device} was busy for {100 * usage.busy_ns / span:.0f} % of "
        f"{SPAN_TEXT}, with {typical:.0f} submissions waiting at a typical launch: the device is "
        f"the limit, and {long_calls}."
    )
    finding.excluded = [
        Exclusion("launch.host_bound", f"the device was idle for {100 * idle:.1f} % of {SPAN_TEXT}")
    ]
    return finding


def _asked_outside(facts: Facts, activities: Activities) -> int:
    """Return how long work was asked for before the first and after the last call and activity,
    ns; 0 for traces, which tell nothing of what was asked.
    """
    if not facts.has_live_times:
        return 0
    begin, end = activities.start_ns, activities.end_ns
    if facts.calls is not None and len(facts.calls.start):
        begin = min(begin, int(facts.calls.start[0]))
        end = max(end, int(facts.calls.start[-1]))
    return intervals.total(intervals.subtract(facts.demand, intervals.make([begin], [end])))


def _host_link(facts: Facts, item: Idleness) -> Finding:
    activities, span = item.activities, max(item.usage.span_ns, 1)
    exposed = exposed_copies(activities)
    lost = intervals.total(exposed)
    is_host = np.isin(activities.copy_kind, ("h2d", "d2h"))
    is_large = is_host & (activities.size_bytes >= LARGE_BYTES)
    length = activities.spans[:, 1] - activities.spans[:, 0]
    rate = activities.size_bytes[is_large] / np.maximum(length[is_large], 1)
    n = int(is_large.sum())
    n_bytes = int(activities.size_bytes[is_host].sum())
    finding = Finding(
        LINK,
        Status.NOT_FOUND,
        confidence=0.85,
        where=_where(facts, item),
        lost_ns=lost,
        lost_share=lost / span,
        spans=exposed,
        evidence=[
            Evidence("exposed_host_copies", round(100 * lost / span, 1), "%", None, ""),
            Evidence("host_copy_bytes", n_bytes, "bytes", int(is_host.sum()), "gpu_activity"),
        ],
    )
    if lost / span < MATERIAL_SHARE:
        finding.excluded.append(
            Exclusion(
                LINK,
                f"copies of the host hold the device for {100 * lost / span:.1f} % of {SPAN_TEXT}",
            )
        )
        finding.lost_ns, finding.lost_share = 0, 0.0
        return finding
    finding.start_ns, finding.end_ns = int(exposed[0, 0]), int(exposed[-1, 1])
    spans = activities.spans[is_large]
    in_large = intervals.overlap(spans, exposed) / max(lost, 1)
    typical, top = quantiles.median(rate), quantiles.quantile(rate, 0.9)
    if n >= N_COPIES and typical is not None and top is not None:
        finding.evidence += [
            Evidence("large_copy_rate_p50", round(typical, 2), "GB/s", n, "gpu_activity"),
            Evidence("large_copy_rate_p90", round(top.value, 2), "GB/s", n, "gpu_activity"),
        ]
        is_ceiling = typical >= CEILING_SHARE * top.value and in_large >= LARGE_SHARE
    else:
        is_ceiling = False
    if not is_ceiling:
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.undecided_because = (
            f"the device only copied for {100 * lost / span:.0f} % of {SPAN_TEXT}, but in copies "
            "that do not reach one common rate: their number or the host may be the limit"
        )
        finding.settled_by = "link bytes and generation under load (gpu_sample)"
        return finding
    assert typical is not None
    pageable = float(activities.is_pageable[is_large].mean())
    finding.evidence.append(Evidence("pageable", round(100 * pageable, 1), "%", n, ""))
    finding.status = Status.FOUND
    finding.confidence = 0.9 * facts.trust("cuda", "cupti")
    finding.summary = (
        f"Device {activities.device} did nothing but copy from or to the host for "
        f"{100 * lost / span:.0f} % of {SPAN_TEXT}: {n_bytes / 1e9:.1f} GB, large copies all at "
        f"about {typical:.1f} GB/s, the ceiling of the link."
    )
    return finding


CAUSES = (
    Cause(
        COMPUTE,
        "the device is the limit and does useful work",
        "The device is busy and the host keeps it fed.",
        "High busy share of work that is neither a wait in a collective nor a copy of the host, "
        "and submissions always waiting.",
        "Launch latency: long launch calls are then back-pressure of a full queue.",
        "Bring device times: tracer record --cupti -- COMMAND, or tracer import TRACE.",
        "Nothing is wrong on the host: make the kernels cheaper or add devices.",
        Needs(("gpu_activity", "cuda_call"), optional=("annotation",)),
        find_compute_bound,
    ),
    Cause(
        LINK,
        "copies over the host link hold the work up",
        "Copies over PCIe or NVLink serialise with the work.",
        "For a material share of its time the device runs only copies from or to the host, most "
        "of it large ones at one common rate, the ceiling of the link; or large copies that take "
        "most of the time in which work waits and no kernel runs, at the link's rate.",
        "Copies that overlap with compute cost nothing.",
        "Bring device times: tracer record --cupti -- COMMAND, or tracer import TRACE.",
        "Use pinned memory and another stream, or keep the data on the device.",
        Needs(any_of=(("gpu_activity", "cuda_call"),), optional=("gpu_sample",)),
        find_host_link,
    ),
)
