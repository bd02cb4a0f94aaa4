"""One look at MPS on this host, outside of a recording."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from probes.gpu.contexts import ContextBoard, DeviceContexts
from probes.gpu.inventory import Inventory
from probes.gpu.nvml import NvmlProbe
from probes.host import proc
from probes.mps.audit import MpsClient, audit
from probes.mps.control import known_clients
from probes.mps.daemon import Daemon, DaemonFinder
from probes.probe import ProbeError

SECOND_NS = 1_000_000_000
_STEP_S = 0.05


@dataclass(frozen=True)
class MpsLook:
    """What one look found.

    Attributes:
        inventory: The GPUs.
        daemons: The MPS daemons visible here.
        clients: Processes with a context, by GPU and pid.
        n_unseen: Pids that the driver lists and no process here has.
        is_told: Whether the driver lists MPS clients.
        was_daemon_asked: Whether the daemon's control program answered.
    """

    inventory: Inventory
    daemons: list[Daemon]
    clients: list[MpsClient]
    n_unseen: int
    is_told: bool
    was_daemon_asked: bool


def look(
    library_dir: Path | None = None,
    env: Mapping[str, str] | None = None,
    root: Path = proc.PROC,
    timeout_ns: int = 10 * SECOND_NS,
) -> MpsLook:
    """Return who is in MPS on this host, and why the others are not.

    Args:
        library_dir: Folder to look for ``libnvidia-ml.so.1`` in first.
        env: Further variables of the environment of NVML's child process.
        root: Where /proc is.
        timeout_ns: Most time to wait for the driver.

    Raises:
        ProbeError: there is no NVML here, or it does not answer.
    """
    inventory, lists = _read_lists(library_dir, env, timeout_ns)
    daemons = DaemonFinder(root).find()
    known = known_clients(daemons, root)
    clients = audit(lists, daemons, root, known)
    listed = {(item.device, pid) for item in lists for pid in item.compute}
    found = {(client.device, client.pid) for client in clients}
    return MpsLook(
        inventory,
        daemons,
        clients,
        n_unseen=len(listed - found),
        is_told=all(item.through_mps is not None for item in lists),
        was_daemon_asked=known is not None,
    )


def _read_lists(
    library_dir: Path | None, env: Mapping[str, str] | None, timeout_ns: int
) -> tuple[Inventory, list[DeviceContexts]]:
    """The GPUs, and the processes on each that answered in time."""
    board = ContextBoard()
    probe = NvmlProbe(interval_ns=SECOND_NS, library_dir=library_dir, env=env, contexts=board)
    end = time.monotonic_ns() + timeout_ns
    probe.start()
    try:
        inventory = probe.inventory(timeout_ns)
        lists: list[DeviceContexts] = []
        while len(lists) < len(inventory.gpus) and time.monotonic_ns() < end:
            list(probe.drain(time.monotonic_ns()))
            lists = board.newest()
            time.sleep(_STEP_S)
    finally:
        list(probe.stop())
    if not lists:
        raise ProbeError(
            f"NVML did not list the processes within {timeout_ns / 1e9:g} s; "
            "check that 'nvidia-smi' works on this host"
        )
    return inventory, lists
