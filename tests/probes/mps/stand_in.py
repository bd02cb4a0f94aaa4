"""A stand-in of the MPS daemon: a process of its name that listens on a control pipe."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from probes.gpu.contexts import DeviceContexts
from probes.mps.audit import MpsClient, audit
from probes.mps.daemon import Daemon, DaemonFinder

_DAEMON = """
import os, socket, subprocess, sys
folder, server, uid = sys.argv[1:4]
pipe = socket.socket(socket.AF_UNIX)
pipe.bind(folder + "/control")
os.chmod(folder + "/control", 0o777)
pipe.listen()
pid = 0
if uid != "none":
    child = subprocess.Popen([server, "-c", "import sys; sys.stdin.read()"],
                             stdin=subprocess.PIPE, user=int(uid))
    pid = child.pid
print(pid, flush=True)
sys.stdin.read()
"""


@dataclass
class StandIn:
    """A running stand-in: its folder and the pids of daemon and server (None: none)."""

    folder: Path
    pid: int
    server_pid: int | None

    def found(self) -> Daemon:
        """The daemon as the audit finds it."""
        return next(item for item in DaemonFinder().find() if item.pid == self.pid)


@contextmanager
def pipe_folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket, and that every user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="mps-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def daemon(folder: Path, server_uid: int | None = 0, *options: str) -> Iterator[StandIn]:
    """A stand-in whose control pipe is in ``folder``, with a server of that user."""
    programs = folder.parent / f"{folder.name}-bin"
    programs.mkdir(exist_ok=True)
    programs.chmod(0o755)
    python = Path(sys.executable).resolve()
    for name in ("control", "server"):
        link = programs / f"nvidia-cuda-mps-{name}"
        if not link.is_symlink():
            link.symlink_to(python)
    child = subprocess.Popen(
        [
            programs / "nvidia-cuda-mps-control",
            "-c",
            _DAEMON,
            folder,
            programs / "nvidia-cuda-mps-server",
            "none" if server_uid is None else str(server_uid),
            "-d",
            *options,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    try:
        server = int(child.stdout.readline())
        yield StandIn(folder, child.pid, server or None)
    finally:
        child.kill()
        child.wait()
        with contextlib.suppress(OSError):
            (folder / "control").unlink()
        shutil.rmtree(programs, ignore_errors=True)


@contextmanager
def process(
    *wrapper: str, pipe: Path | None = None, script: str = "", user: int | None = None
) -> Iterator[int]:
    """A process that a driver could list; its host pid. It waits for the end of its input.

    Args:
        wrapper: Command that starts it, e.g. ``unshare --ipc``.
        pipe: Value of the pipe's variable; None leaves it out.
        script: Shell commands before it.
        user: User to run as.
    """
    environment = {name: value for name, value in os.environ.items() if "CUDA_MPS" not in name}
    if pipe is not None:
        environment["CUDA_MPS_PIPE_DIRECTORY"] = str(pipe)
    shell = f"{script}\necho $(cut -d' ' -f4 /proc/self/stat)\nread line"
    child = subprocess.Popen(
        [*wrapper, "sh", "-ec", shell],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        user=user,
        cwd="/",
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline(), f"{wrapper} does not work here"
        yield _innermost(child.pid)
    finally:
        child.stdin.close()
        child.wait(10)
        child.stdout.close()


def _innermost(pid: int) -> int:
    """The youngest descendant: what a wrapper that forks started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return _innermost(int(children[0])) if children else pid


def judge(pid: int, *daemons: Daemon, clients: frozenset[int] | None = frozenset()) -> MpsClient:
    """The audit of one process that the driver lists on GPU 0."""
    (client,) = audit([DeviceContexts(1, 0, frozenset({pid}), clients)], daemons)
    return client
