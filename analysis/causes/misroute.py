"""Collectives that take a slow path: past the fast links of their devices, or never the first one.

That no byte goes over a link is a fact of its counters; what it costs is told by device times only,
because to the host a slow collective and a long kernel before it are one wait.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis import intervals
from analysis.causes.declaration import Cause, Needs
from analysis.collectives import match
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status
from analysis.severity import MATERIAL_SHARE
from analysis.stuck import collectives_by_process, ranks

MISROUTE = "collective.misroute"

#: Collectives of each rank, and samples of each counter, that a statement needs.
N_COLLECTIVES = 10
N_SAMPLES = 5
#: A link that carries less is unused, bytes/s: what is exchanged to look after it.
UNUSED_BYTES_PER_S = 1e6
#: Bytes a second in each direction from which data are exchanged by the other way.
EXCHANGE_BYTES_PER_S = 1e8
#: Share of the time in collectives that waiting for a late rank may explain.
LATE_SHARE = 0.5

_SETTLED = (
    "nvidia-smi topo -m, and the transport that NCCL tells with NCCL_DEBUG=INFO (P2P, SHM or NET); "
    "device times of all ranks tell the cost: tracer record --cupti"
)


@dataclass(frozen=True)
class _Traffic:
    """Mean bytes a second of the devices' links, both directions added up, and of PCIe each way."""

    devices: tuple[int, ...]
    nvlink: float
    pcie_out: float
    pcie_in: float
    n_samples: int


def find_misroute(facts: Facts) -> Finding:
    """Return whether ranks exchange their data beside the fast links that their devices have."""
    first = _first_never_ends(facts)
    if first is not None:
        return first
    devices = _devices(facts)
    if len(devices) < 2:
        return Finding(
            MISROUTE, Status.NOT_APPLICABLE, undecided_because="no two devices exchange data"
        )
    traffic = _traffic(facts, devices)
    if traffic is None:
        return Finding(
            MISROUTE,
            Status.NOT_APPLICABLE,
            undecided_because="the bytes over NVLink and PCIe are not told of every device",
        )
    finding = Finding(MISROUTE, Status.NOT_FOUND, confidence=0.85)
    n = traffic.n_samples
    finding.evidence = [
        Evidence("nvlink_bytes_per_s", int(traffic.nvlink), "bytes/s", n, "gpu_sample"),
        Evidence("pcie_sent_per_s", int(traffic.pcie_out), "bytes/s", n, "gpu_sample"),
        Evidence("pcie_received_per_s", int(traffic.pcie_in), "bytes/s", n, "gpu_sample"),
    ]
    n_links = _links(facts, devices)
    reason = _innocent(traffic, n_links)
    if reason:
        finding.excluded.append(Exclusion(MISROUTE, reason))
        return finding
    return _judge(facts, finding, traffic, n_links)


def _innocent(traffic: _Traffic, n_links: int | None) -> str:
    """Why the traffic is as it should be; empty where it is not."""
    if n_links == 0:
        return "the devices have no NVLink: PCIe is their way"
    if traffic.nvlink >= UNUSED_BYTES_PER_S:
        return f"NVLink carries {traffic.nvlink / 1e9:.2f} GB a second"
    least = min(traffic.pcie_out, traffic.pcie_in)
    if least < EXCHANGE_BYTES_PER_S:
        return f"hardly anything is exchanged: {least / 1e6:.0f} MB a second over PCIe, none beside"
    return ""


def _judge(facts: Facts, finding: Finding, traffic: _Traffic, n_links: int | None) -> Finding:
    """Tell what the detour costs: by device times, else no more than suspected."""
    finding.start_ns, finding.end_ns = facts.start_ns, facts.end_ns
    told = (
        f"no byte goes over NVLink while {len(traffic.devices)} devices exchange "
        f"{(traffic.pcie_out + traffic.pcie_in) / 2e9:.2f} GB a second each way over PCIe"
    )
    cost = _exposed(facts)
    share = cost[0] if cost is not None else _waiting(facts)
    if share < MATERIAL_SHARE:
        finding.excluded.append(
            Exclusion(MISROUTE, f"{told}, which takes {100 * share:.0f} % of the time at most")
        )
        return finding
    finding.lost_share = min(share, 1.0)
    finding.lost_ns = int(finding.lost_share * facts.demand_ns)
    doubts = []
    if n_links is None:
        doubts.append("whether the devices are linked at all is not recorded")
    if cost is None:
        doubts.append("how much of the waiting is the exchange is not told without device times")
    elif cost[1] > LATE_SHARE * share:
        doubts.append("most of the time in collectives is spent waiting for a late rank")
    if doubts:
        finding.status, finding.confidence = Status.UNDECIDED, 0.4
        finding.undecided_because = f"{told}, but {' and '.join(doubts)}"
        finding.settled_by = _SETTLED
        return finding
    finding.status, finding.confidence = Status.FOUND, 0.82 * facts.trust("cuda", "nvml", "cupti")
    finding.evidence.append(
        Evidence("exposed_collectives", round(100 * share, 1), "%", None, "gpu_activity")
    )
    finding.summary = (
        f"Collectives take {100 * share:.0f} % of the devices' time, and {told}: they have "
        f"{n_links} links each at least, which are not used."
    )
    return finding


def _devices(facts: Facts) -> tuple[int, ...]:
    """Devices whose processes launch collectives again and again, or whose times show them."""
    found: list[int | None] = [
        item.activities.device
        for item in facts.timed
        if int(item.activities.is_collective.sum()) >= N_COLLECTIVES
    ] or [
        facts.device_of.get(pid)
        for pid, times in collectives_by_process(facts).items()
        if len(times) >= N_COLLECTIVES
    ]
    return tuple(sorted({device for device in found if device is not None}))


def _traffic(facts: Facts, devices: tuple[int, ...]) -> _Traffic | None:
    """Mean traffic of the devices; None where a counter of one is not told."""
    if facts.gpu is None:
        return None
    names = [f"{link}_{way}_bytes_per_s" for link in ("nvlink", "pcie") for way in ("tx", "rx")]
    means, least = [], []
    for device in devices:
        if device not in facts.gpu.devices:
            return None
        samples = [facts.gpu.quantity(device, name) for name in names]
        told = [item.mean(facts.demand) for item in samples if item is not None]
        known = [item for item in told if item is not None and item[1] >= N_SAMPLES]
        if len(known) < len(names):
            return None
        means.append([item[0] for item in known])
        least.append(min(item[1] for item in known))
    sent, received, out, into = np.array(means).T
    # Of a ring every device takes part: the busiest link and the idlest way are what counts.
    return _Traffic(
        devices, float((sent + received).max()), float(out.min()), float(into.min()), min(least)
    )


def _links(facts: Facts, devices: tuple[int, ...]) -> int | None:
    """Fewest NVLinks of a device; None where it is not recorded."""
    source = facts.manifest.source("nvml")
    topology = source.details.get("topology") if source is not None else None
    counts = topology.get("n_nvlinks") if isinstance(topology, dict) else None
    if not isinstance(counts, dict):
        return None
    told = [counts.get(str(device)) for device in devices]
    known = [count for count in told if isinstance(count, int)]
    return min(known) if len(known) == len(told) else None


def _exposed(facts: Facts) -> tuple[float, float] | None:
    """Shares of the devices' time in collectives that nothing hides, and in waits for the last
    rank in them; None without device times of two devices.
    """
    if len(facts.timed) < 2:
        return None
    spans = np.array([max(item.usage.span_ns, 1) for item in facts.timed], dtype=float)
    exposed = np.array([item.usage.exposed_collective_ns for item in facts.timed], dtype=float)
    entries = match([item.activities for item in facts.timed])
    late = entries.wait_ns.mean(axis=1).sum() if len(entries) else 0.0
    return float((exposed / spans).mean()), float(late / spans.mean())


def _waiting(facts: Facts) -> float:
    """Share of the demand in which the launching threads wait for their devices: the most that
    collectives can take.
    """
    waits = [
        intervals.overlap(launcher.states["waiting"], facts.demand)
        for launcher in facts.launchers.values()
    ]
    return float(np.mean(waits)) / facts.demand_ns if waits else 0.0


def _first_never_ends(facts: Facts) -> Finding | None:
    """Ranks that stand still in the first collective of all while nothing goes over PCIe: as where
    peer traffic is redirected. Never more than suspected; None otherwise.
    """
    waiting = [rank for rank in ranks(facts) if rank.opened is not None]
    devices = tuple(sorted({rank.device for rank in waiting if rank.device is not None}))
    is_first = all(rank.is_collective and len(rank.launched) == 1 for rank in waiting)
    if len(devices) < 2 or not is_first or facts.gpu is None:
        return None
    begin = max(int(rank.opened["start_ns"]) for rank in waiting if rank.opened is not None)
    since = intervals.make([begin], [facts.end_ns])
    rates = []
    for device in devices:
        for name in ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"):
            samples = facts.gpu.quantity(device, name) if device in facts.gpu.devices else None
            mean = None if samples is None else samples.mean(since)
            if mean is None or mean[1] < N_SAMPLES:
                return None
            rates.append(mean[0])
    if max(rates) >= UNUSED_BYTES_PER_S:
        return None
    return Finding(
        MISROUTE,
        Status.UNDECIDED,
        confidence=0.35,
        start_ns=begin,
        end_ns=facts.end_ns,
        lost_ns=facts.end_ns - begin,
        lost_share=min((facts.end_ns - begin) / facts.demand_ns, 1.0),
        evidence=[
            Evidence("ranks_in_their_first_collective", len(waiting), "ranks", None, "open_call"),
            Evidence("pcie_bytes_per_s", int(max(rates)), "bytes/s", len(rates), "gpu_sample"),
        ],
        undecided_because="the first collective of every rank never ended and no byte went over "
        "PCIe, as where an IOMMU or ACS redirects peer traffic, but whether one does is not "
        "recorded",
        settled_by="ACSCtl in 'lspci -vvv', the IOMMU in the kernel's command line, and whether it "
        "works with NCCL_P2P_DISABLE=1",
    )


CAUSES = (
    Cause(
        MISROUTE,
        "collectives take a slow path",
        "Data of collectives go over PCIe, the IOMMU or sockets instead of the devices' links.",
        "No byte over the NVLinks that the devices have while data are exchanged over PCIe, and "
        "device times in which exposed collectives, entered together, take a tenth of the time; a "
        "first collective that never ends without a byte on PCIe makes it no more than suspected.",
        "Stragglers, which enter late; large models, whose links are in use; devices without "
        "NVLink, and exchanges that cost little.",
        "Record GPU samples with link bytes, and device times: tracer record --cupti.",
        "Check nvidia-smi topo -m, ACS and IOMMU, and the transport that NCCL chose "
        "(NCCL_DEBUG=INFO).",
        Needs(
            ("gpu_sample",),
            any_of=(("cuda_call", "gpu_activity"),),
            optional=("kernel_function", "open_call"),
        ),
        find_misroute,
    ),
)
