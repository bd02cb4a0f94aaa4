"""What brings a process into MPS: the command or manifest to start it with."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from shlex import quote

from probes.mps.daemon import DEFAULT_DIRECTORY, PIPE_VARIABLE, Daemon

#: Folders that a process of another user than root must be able to write to.
_CACHES = {
    "HOME": "/cache",
    "XDG_CACHE_HOME": "/cache/.cache",
    "CUDA_CACHE_PATH": "/cache/.nv/ComputeCache",
    "TRITON_CACHE_DIR": "/cache/.triton",
}
#: The daemon with one server for all users.
MULTIUSER = "nvidia-cuda-mps-control -multiuser-server -d"


@dataclass(frozen=True)
class Mend:
    """How to start a process again so that it is in MPS: plainly, or in a container."""

    host: str
    docker: str
    kubernetes: str


def start_daemon() -> Mend:
    """Return how to start a daemon, and then processes in it."""
    start = f"{PIPE_VARIABLE}={DEFAULT_DIRECTORY} nvidia-cuda-mps-control -d"
    begin = f"start the daemon on the host ({start}), then "
    options = _docker_options(DEFAULT_DIRECTORY, "host", None)
    return Mend(
        host=begin + "start the process again",
        docker=begin + f"docker run {options} IMAGE",
        kubernetes=begin + "start the pod with\n" + _pod(DEFAULT_DIRECTORY, None),
    )


def start_again(daemon: Daemon, is_host_ipc: bool) -> Mend:
    """Return how to start a process so that this daemon takes it.

    Args:
        daemon: The daemon.
        is_host_ipc: Whether the daemon is in the host's IPC namespace.
    """
    directory, uid = daemon.directory, daemon.served_uid
    ipc = "host" if is_host_ipc else f"container:{(daemon.container or '')[:12]}"
    user = f"sudo -u '#{uid}' " if uid is not None else ""
    return Mend(
        host=f"start the process again with {user}env {PIPE_VARIABLE}={quote(directory)} COMMAND",
        docker=f"docker run {_docker_options(directory, ipc, uid)} IMAGE",
        kubernetes="start the pod with\n" + _pod(directory, uid),
    )


def _docker_options(directory: str, ipc: str, uid: int | None) -> str:
    options = [
        "--gpus all",
        f"--ipc={ipc}",
        f"-v {quote(f'{directory}:{directory}')}",
        f"-e {PIPE_VARIABLE}={quote(directory)}",
    ]
    if uid is not None:
        options.append(f"--user {uid}")
    if uid:
        options.append(f"--tmpfs /cache:exec,uid={uid}")
        options.extend(f"-e {name}={path}" for name, path in _CACHES.items())
    return " ".join(options)


def _pod(directory: str, uid: int | None) -> str:
    """Fields of a pod, as YAML."""
    variables = {PIPE_VARIABLE: directory, **(_CACHES if uid else {})}
    lines = ["spec:", "  hostIPC: true"]
    if uid is not None:
        lines.append(f"  securityContext: {{runAsUser: {uid}, fsGroup: {uid}}}")
    lines += ["  containers:", "  - env:"]
    lines += [f"    - {{name: {name}, value: {_yaml(value)}}}" for name, value in variables.items()]
    lines += ["    volumeMounts:", f"    - {{name: mps, mountPath: {_yaml(directory)}}}"]
    if uid:
        lines.append("    - {name: cache, mountPath: /cache}")
    lines += ["  volumes:", f"  - {{name: mps, hostPath: {{path: {_yaml(directory)}}}}}"]
    if uid:
        lines.append("  - {name: cache, emptyDir: {}}")
    return "\n".join(lines)


def _yaml(text: str) -> str:
    """A text inside of a YAML mapping, in quotes where it needs them."""
    return text if re.fullmatch(r"[\w/][\w/.-]*", text) else json.dumps(text)
