"""Whether a pid names something that can be recorded, and if not, what to give instead."""

from __future__ import annotations

import os

from probes.host import proc
from tracer.errors import TargetError


def check_target(pid: int) -> None:
    """Accept the pid of a living process.

    Raises:
        TargetError: it is none; the text says what it is and what to give.
    """
    stat = proc.read_stat(pid) if pid > 0 else None
    fields = proc.read_status(pid) if stat is not None else None
    if stat is None or fields is None:
        raise TargetError(
            f"there is no process {pid}; find it with: pgrep -af PATTERN, "
            "and give its id as this host sees it"
        )
    leader = fields.get("Tgid", str(pid))
    if leader != str(pid):
        raise TargetError(f"{pid} is a thread of process {leader}; give --pid {leader}")
    if pid == os.getpid():
        raise TargetError(f"{pid} is this tracer itself; give the pid of the service")
    if stat.is_dead:
        raise TargetError(
            f"process {pid} ({stat.name}) has ended and only waits for its parent "
            f"{stat.parent_pid} to notice; start it again"
        )
    if stat.state not in "ZXx" and "VmSize" not in fields:
        raise TargetError(
            f"{pid} ({stat.name}) is a thread of the kernel and makes no CUDA calls; "
            "give the pid of the service"
        )
