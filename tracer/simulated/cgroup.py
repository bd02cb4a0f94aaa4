"""A CPU quota for one process, in a control group of version 1 or 2."""

from __future__ import annotations

import os
from pathlib import Path

from tracer.simulated.stage import Stage, StageError

_ROOT = Path("/sys/fs/cgroup")


def _controller() -> tuple[Path, int] | None:
    """Folder in which groups with CPU quotas can be made, and the version."""
    if (_ROOT / "cgroup.controllers").is_file():
        enabled = (_ROOT / "cgroup.subtree_control").read_text(encoding="utf-8").split()
        return (_ROOT, 2) if "cpu" in enabled else None
    if (_ROOT / "cpu" / "cpu.cfs_quota_us").is_file():
        return _ROOT / "cpu", 1
    return None


def missing_quota() -> str:
    """Return why no CPU quota can be set here; empty when it can."""
    controller = _controller()
    if controller is None:
        return "no control group with CPU quotas is mounted on /sys/fs/cgroup"
    if not os.access(controller[0], os.W_OK):
        return f"control groups cannot be made in {controller[0]}; run as root"
    return ""


def set_quota(stage: Stage, pid: int, quota_us: int, period_us: int) -> None:
    """Move a process into a group of its own with that quota, until the stage is taken down.

    Raises:
        StageError: quotas cannot be set here.
    """
    controller = _controller()
    if controller is None:
        raise StageError(missing_quota())
    root, version = controller
    group = root / f"llm-server-{pid}"
    home = _group_of(pid, version)
    group.mkdir()
    if version == 2:
        (group / "cpu.max").write_text(f"{quota_us} {period_us}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(period_us))
        (group / "cpu.cfs_quota_us").write_text(str(quota_us))

    def undo() -> None:
        # A throttled process dies slowly: move it back first.
        for task in (group / "cgroup.procs").read_text(encoding="utf-8").split():
            (root / home.lstrip("/") / "cgroup.procs").write_text(task)
        group.rmdir()

    stage.on_close(undo)
    (group / "cgroup.procs").write_text(str(pid))


def _group_of(pid: int, version: int) -> str:
    """Path of the group a process is in, within the controller."""
    for line in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines():
        _, names, path = line.split(":", 2)
        if (version == 2 and not names) or (version == 1 and "cpu" in names.split(",")):
            return path
    return "/"
