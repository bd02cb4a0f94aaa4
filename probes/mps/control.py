"""Asks the MPS daemon for its clients through its own control program, with ``get_*`` only.

The program is optional: without it, or when its answers are of another form (the newer protocol),
the audit rests on NVML and /proc.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from probes.host import proc
from probes.mps.daemon import PIPE_VARIABLE, Daemon

PROGRAM = "nvidia-cuda-mps-control"
#: Most time for one question.
TIMEOUT_S = 2.0


def known_clients(daemons: list[Daemon], root: Path = proc.PROC) -> frozenset[int] | None:
    """Return the host pids of all clients by the daemons' own word; None where none answered.

    Args:
        daemons: Daemons to ask.
        root: Where /proc is: a daemon is reached through its own root directory.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        return None
    clients: set[int] = set()
    has_answer = False
    for daemon in daemons:
        folder = f"{root}/{daemon.pid}/root{daemon.directory}"
        servers = _ask(program, folder, "get_server_list")
        has_answer = has_answer or servers is not None
        for server in servers or ():
            clients.update(_ask(program, folder, f"get_client_list {server}") or ())
    return frozenset(clients) if has_answer else None


def _ask(program: str, folder: str, question: str) -> list[int] | None:
    """Pids that a question is answered with; None when it is answered otherwise or not at all."""
    try:
        done = subprocess.run(
            [program],
            input=f"{question}\n",
            env={**os.environ, PIPE_VARIABLE: folder},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    words = done.stdout.split()
    if done.returncode != 0 or not all(word.isdecimal() for word in words):
        return None
    return [int(word) for word in words]
