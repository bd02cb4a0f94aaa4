"""Causes among several processes, ranks or devices that are named but not yet found."""

from __future__ import annotations

from analysis.causes.declaration import Cause

CAUSES = (
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
