"""Causes among several processes, ranks or devices that are named but not yet found."""

from __future__ import annotations

from analysis.causes.declaration import Cause

CAUSES = (
    Cause(
        "hang.collective",
        "ranks wait for each other for ever",
        "A collective was entered by some ranks and not by others.",
        "The last launch of every rank is a collective, ranks differ in step or count, no bytes "
        "flow between them.",
        "A straggler (it ends), a single hung kernel.",
        "Record every rank: tracer record --pid of the launcher, or one per rank.",
        "Find the rank that took another path, and restart all ranks.",
    ),
    Cause(
        "hang.hardware",
        "a hardware fault under it",
        "Xid, ECC or NVLink errors stopped the device.",
        "The kernel's log, remapped rows, link state.",
        "A software hang.",
        "Record events: tracer record --pid PID.",
        "Drain the node and run the vendor's diagnostics.",
    ),
    Cause(
        "collective.misroute",
        "collectives take a slow path",
        "Peer-to-peer traffic goes through the IOMMU, or sockets instead of RDMA.",
        "Topology, time of the first collective, bytes on the links.",
        "Stragglers.",
        "Record GPU samples with link bytes.",
        "Check ACS, IOMMU and the NCCL transport.",
    ),
)
