"""Which processes on the GPUs are in MPS, which are not, and why not.

NVML says who has a context and whose came through MPS; /proc says the rest. A process tries the
control pipe once, when it initialises CUDA, and runs without MPS in silence when that fails: the
reasons are the things that it would have needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.gpu.contexts import DeviceContexts
from probes.host import proc
from probes.mps.daemon import (
    PIPE_VARIABLE,
    Daemon,
    Identity,
    control_identity,
    is_part_of_mps,
    namespace,
    pipe_directory,
    user_id,
)
from probes.mps.mend import MULTIUSER, Mend, start_again, start_daemon

#: Every reason for which a process can be outside, and what it means, in the order of weight.
REASONS: Mapping[str, str] = {
    "no_daemon": "no MPS daemon runs on this host",
    "daemon_not_visible": "MPS is in use, but its daemon is not among the processes visible here",
    "environment": "its environment names another folder than the daemon's",
    "not_visible": "the daemon's control pipe is not visible from its mount namespace",
    "other_inode": "the control pipe it finds is not the daemon's (left over, or another's)",
    "other_uid": "it runs as another user than the MPS server serves",
    "other_ipc_namespace": "it is in another IPC namespace than the daemon",
    "started_before": "it started before the daemon",
    "unexplained": "all that can be seen from here fits: it was started before the server was "
    "ready, changed its environment itself, or was refused (see the daemon's control.log)",
}


@dataclass(frozen=True)
class MpsClient:
    """One process with a context on one GPU: the columns of table ``mps_client``, and its mend.

    ``is_target`` is not among them: it depends on the recording.
    """

    time_ns: int
    device: int
    pid: int
    name: str | None
    container: str | None
    role: str
    reason: str | None = None
    other_reasons: str | None = None
    daemon_pid: int | None = None
    server_pid: int | None = None
    uid: int | None = None
    server_uid: int | None = None
    is_multiuser: bool | None = None
    has_pipe_variable: bool | None = None
    is_control_visible: bool | None = None
    is_same_control: bool | None = None
    is_same_ipc: bool | None = None
    is_started_before: bool | None = None
    detail: str | None = None
    mend: str | None = None
    mends: Mend | None = None


@dataclass(frozen=True)
class _Process:
    """What matters of a process with a context."""

    pid: int
    name: str
    start_ticks: int
    container: str | None
    uid: int | None
    ipc: str | None
    mount: str | None
    has_variable: bool | None
    directory: str
    control: Identity | None


def audit(
    lists: Iterable[DeviceContexts],
    daemons: Iterable[Daemon],
    root: Path = proc.PROC,
    known_clients: frozenset[int] | None = None,
) -> list[MpsClient]:
    """Return a row for each process with a context on each GPU, by device and pid.

    Pids that no process here has are left out. Looks into the file systems of the processes, so it
    may block: not for the recorder's thread.

    Args:
        lists: Processes on each GPU as the driver lists them.
        daemons: Daemons of this host.
        root: Where /proc is.
        known_clients: Clients by the daemon's own word, where it was asked.
    """
    daemons = list(daemons)
    found = []
    for contexts in lists:
        has_clients = bool(contexts.through_mps)
        for pid in sorted(contexts.compute | (contexts.through_mps or frozenset())):
            process = _read(pid, root)
            if process is None:
                continue
            is_in_mps = _is_in_mps(pid, contexts, known_clients)
            client = _judge(process, contexts, is_in_mps, daemons, has_clients, root)
            found.append(client)
    return found


def _is_in_mps(
    pid: int, contexts: DeviceContexts, known_clients: frozenset[int] | None
) -> bool | None:
    """Whether a process is in MPS: by the driver's list, else by the daemon's; None: not told."""
    if contexts.through_mps is not None:
        return pid in contexts.through_mps
    return None if known_clients is None else pid in known_clients


def _read(pid: int, root: Path) -> _Process | None:
    """What matters of a process; None when there is none of that pid."""
    stat = proc.read_stat(pid, root) if pid > 0 else None
    if stat is None:
        return None
    has_variable, directory = pipe_directory(pid, root)
    return _Process(
        pid=pid,
        name=stat.name,
        start_ticks=stat.start_ticks,
        container=proc.container_id(proc.read_cgroups(pid, root)),
        uid=user_id(pid, root),
        ipc=namespace(pid, "ipc", root),
        mount=namespace(pid, "mnt", root),
        has_variable=has_variable,
        directory=directory,
        control=control_identity(pid, directory, root),
    )


def _judge(
    process: _Process,
    contexts: DeviceContexts,
    is_in_mps: bool | None,
    daemons: list[Daemon],
    has_clients: bool,
    root: Path,
) -> MpsClient:
    pid, name = process.pid, process.name
    place = (contexts.time_ns, contexts.device, pid, name, process.container)
    if is_part_of_mps(pid, root):
        return MpsClient(*place, role="server", uid=process.uid)
    daemon = _nearest(process, daemons)
    facts = _facts(process, daemon)
    if is_in_mps:
        return MpsClient(*place, role="client", **facts)
    reasons = _reasons(process, daemon, has_clients, root)
    if is_in_mps is None:
        reasons = [reason for reason in reasons if reason != "unexplained"]
    mends = _mends(daemon, reasons, root)
    detail = "; ".join(_sentence(reason, process, daemon) for reason in reasons)
    if is_in_mps is None:
        detail = "The driver does not list MPS clients. " + detail
    return MpsClient(
        *place,
        role="unknown" if is_in_mps is None else "outside",
        reason=reasons[0] if reasons else None,
        other_reasons=",".join(reasons[1:]) or None,
        detail=detail[:1].upper() + detail[1:] + ("." if reasons else ""),
        mend=_chosen(mends, process, daemon),
        mends=mends,
        **facts,
    )


def _facts(process: _Process, daemon: Daemon | None) -> dict[str, Any]:
    """Columns that hold what the process has and the daemon wants."""
    facts: dict[str, Any] = {
        "uid": process.uid,
        "has_pipe_variable": process.has_variable,
        "is_control_visible": process.control is not None,
    }
    if daemon is not None:
        facts.update(
            daemon_pid=daemon.pid,
            server_pid=daemon.servers[0].pid if daemon.servers else None,
            server_uid=daemon.served_uid,
            is_multiuser=daemon.is_multiuser,
            is_same_control=process.control is not None and process.control == daemon.control,
            is_same_ipc=None
            if process.ipc is None or daemon.ipc is None
            else process.ipc == daemon.ipc,
            is_started_before=process.start_ticks < daemon.start_ticks,
        )
    return facts


def _nearest(process: _Process, daemons: list[Daemon]) -> Daemon | None:
    """The daemon whose pipe a process finds, else the one with a server, else the first."""
    for daemon in daemons:
        if daemon.control is not None and daemon.control == process.control:
            return daemon
    return next((daemon for daemon in daemons if daemon.servers), next(iter(daemons), None))


def _reasons(process: _Process, daemon: Daemon | None, has_clients: bool, root: Path) -> list[str]:
    """Every reason that holds, the weightiest first; never empty."""
    if daemon is None:
        return ["daemon_not_visible" if has_clients else "no_daemon"]
    reasons = []
    if process.control is None or process.control != daemon.control:
        is_elsewhere = daemon.control is not None and daemon.control == control_identity(
            process.pid, daemon.directory, root
        )
        if is_elsewhere:
            reasons.append("environment")
        elif process.control is None:
            reasons.append("not_visible")
        else:
            reasons.append("other_inode")
    served = daemon.served_uid
    if served is not None and process.uid is not None and process.uid != served:
        reasons.append("other_uid")
    if process.ipc is not None and daemon.ipc is not None and process.ipc != daemon.ipc:
        reasons.append("other_ipc_namespace")
    if process.start_ticks < daemon.start_ticks:
        reasons.append("started_before")
    return reasons or ["unexplained"]


def _sentence(reason: str, process: _Process, daemon: Daemon | None) -> str:
    """One reason with the facts of this case; never the value of a variable."""
    text = REASONS[reason]
    if daemon is None:
        return text
    if reason == "environment":
        how = "is set to another folder" if process.has_variable else "is not set"
        return f"{PIPE_VARIABLE} {how}, and the daemon's pipe is in {daemon.directory}"
    if reason == "not_visible" and daemon.control is None:
        return f"the daemon's control pipe is gone from {daemon.directory}: start the daemon again"
    if reason in ("not_visible", "other_inode"):
        return f"{text}; the daemon's is in {daemon.directory}"
    if reason == "other_uid":
        return (
            f"it runs as uid {process.uid}, the MPS server (pid "
            f"{daemon.servers[0].pid if daemon.servers else daemon.pid}) serves uid "
            f"{daemon.served_uid} only (for several users: {MULTIUSER})"
        )
    return text


def _mends(daemon: Daemon | None, reasons: list[str], root: Path) -> Mend | None:
    if not reasons or "daemon_not_visible" in reasons:
        return None
    if daemon is None:
        return start_daemon()
    is_host_ipc = daemon.container is None or daemon.ipc == namespace(1, "ipc", root)
    return start_again(daemon, is_host_ipc)


def _chosen(mends: Mend | None, process: _Process, daemon: Daemon | None) -> str | None:
    """The mend for this kind of process."""
    if mends is None:
        return None
    is_contained = process.container is not None or (
        daemon is not None and process.mount is not None and process.mount != daemon.mount
    )
    return mends.docker if is_contained else mends.host
