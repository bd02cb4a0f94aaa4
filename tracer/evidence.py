"""What a stuck process looks like from outside, gathered before anyone restarts it.

Everything is read from /proc, which stops nothing. Python stacks come from ``py-spy`` where it is
installed, in its mode that does not pause the process.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from probes.host import proc

#: Most threads of one process, and processes, that are looked at.
MAX_THREADS = 256
MAX_PROCESSES = 64
PY_SPY_TIMEOUT_S = 10.0
_MAX_OUTPUT = 200_000


def process_evidence(pids: Iterable[int], root: Path = proc.PROC) -> list[dict[str, Any]]:
    """Return what every thread of some processes does now; those that ended are left out."""
    found = []
    for pid in sorted(pids)[:MAX_PROCESSES]:
        stat = proc.read_stat(pid, root)
        if stat is None:
            continue
        tids = proc.list_tids(pid, root)
        found.append(
            {
                "pid": pid,
                "name": stat.name,
                "state": stat.state,
                "n_threads": len(tids),
                "threads": [_thread(pid, tid, root) for tid in tids[:MAX_THREADS]],
                "python_stacks": _python_stacks(pid, root),
            }
        )
    return found


def _thread(pid: int, tid: int, root: Path) -> dict[str, Any]:
    stat = proc.read_stat(pid, root, tid)
    folder = root / str(pid) / "task" / str(tid)
    return {
        "tid": tid,
        "name": None if stat is None else stat.name,
        "state": None if stat is None else stat.state,
        "wchan": _text(folder / "wchan"),
        "syscall": _text(folder / "syscall"),
        "kernel_stack": _text(folder / "stack"),
    }


def _text(path: Path) -> str | None:
    data = proc.read_bytes(path)
    return data.decode("utf-8", "replace").strip() if data else None


def _python_stacks(pid: int, root: Path) -> str | None:
    """What ``py-spy dump`` says; None for another language, or without py-spy."""
    program = shutil.which("py-spy")
    if program is None or root != proc.PROC or not _is_python(pid, root):
        return None
    try:
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PY_SPY_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"py-spy did not answer ({type(error).__name__})"
    return (done.stdout or done.stderr)[:_MAX_OUTPUT]


def _is_python(pid: int, root: Path) -> bool:
    try:
        program = (root / str(pid) / "exe").readlink().name
    except OSError:
        return False
    return program.startswith("python") or any(
        "libpython" in mapping.path for mapping in proc.read_maps(pid, root, executable_only=True)
    )
