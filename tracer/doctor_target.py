"""What can be seen of one process: rights, container, seccomp, runtimes and probed functions."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probes.cuda.coverage import coverage
from probes.cuda.libraries import Library, LibraryScanner
from probes.host import proc
from probes.probe import Requirement
from probes.targets import TargetTree
from tracer.errors import TargetError

#: Namespaces in which a process may differ from this one.
_NAMESPACES = ("pid", "mnt", "user", "ipc", "net")
_SECCOMP = {"0": "none", "1": "strict", "2": "filter"}
#: What every Go program of the last years carries in its file.
_GO_MARK = b"\xff Go buildinf:"


@dataclass
class TargetCheck:
    """What was found about a process tree.

    Attributes:
        requirements: What recording it needs.
        libraries: One entry per CUDA library file: path, layers, version, functions, problem.
        facts: JSON-able facts of each process.
    """

    requirements: list[Requirement] = field(default_factory=list)
    libraries: list[dict[str, Any]] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)


def check_target(pid: int, root: Path = proc.PROC) -> TargetCheck:
    """Return what can be recorded of a process and its children.

    Raises:
        TargetError: there is no such process.
    """
    tree = TargetTree([pid], root=root)
    if tree.get(pid) is None:
        raise TargetError(f"there is no process {pid}; find it with: pgrep -af PATTERN")
    pids = sorted(tree.pids())
    check = TargetCheck(facts=[_facts(tree, item, root) for item in pids])
    libraries = _libraries(pids, root)
    check.libraries = [_library(library) for library in libraries.values()]
    covered = coverage(libraries.values(), {})
    check.requirements = [
        _readable(pid, root),
        _functions(pid, libraries),
        *(
            Requirement("coverage", False, text, "calls of those functions are not seen")
            for text in covered.problems
        ),
        _seccomp(check.facts),
        _stacks(pids, root),
    ]
    return check


def _facts(tree: TargetTree, pid: int, root: Path) -> dict[str, Any]:
    process = tree.get(pid)
    status = proc.read_status(pid, root) or {}
    return {
        "pid": pid,
        "name": None if process is None else process.name,
        "container": None if process is None else process.container,
        "seccomp": _SECCOMP.get(status.get("Seccomp", "").strip(), "unknown"),
        "own_namespaces": [name for name in _NAMESPACES if _differs(pid, name, root)],
    }


def _differs(pid: int, name: str, root: Path) -> bool:
    """Whether a process lives in another namespace than this one; unknown counts as no."""
    try:
        ours = (root / "self/ns" / name).readlink()
        return (root / str(pid) / "ns" / name).readlink() != ours
    except OSError:
        return False


def _libraries(pids: list[int], root: Path) -> dict[str, Library]:
    """Every CUDA library file that the processes map, once each."""
    scanner = LibraryScanner(root=root)
    found: dict[str, Library] = {}
    for pid in pids:
        for library in scanner.scan(pid):
            found.setdefault(library.device_inode, library)
    return found


def _library(library: Library) -> dict[str, Any]:
    return {
        "path": library.path,
        "pid": library.pid,
        "layers": list(library.file.layers),
        "version": library.file.version,
        "n_functions": len(library.file.functions),
        "functions": sorted(library.file.functions),
        "is_static": library.file.is_static,
        "problem": library.problem,
    }


def _readable(pid: int, root: Path) -> Requirement:
    is_met = bool(proc.read_bytes(f"{root}/{pid}/maps", 4096))
    return Requirement(
        "access",
        is_met,
        "its memory map can be read" if is_met else "its memory map may not be read",
        "no CUDA calls: its libraries cannot be found",
        "" if is_met else "run with sudo, in the host's PID namespace",
    )


def _functions(pid: int, libraries: dict[str, Library]) -> Requirement:
    n_functions = sum(len(library.file.functions) for library in libraries.values())
    n_files = sum(bool(library.file.functions) for library in libraries.values())
    is_met = n_functions > 0
    return Requirement(
        "cuda functions",
        is_met,
        f"{n_functions} functions in {n_files} files can be probed"
        if is_met
        else f"process {pid} and its children map no library with CUDA functions (yet)",
        "no CUDA calls until it loads one",
        "" if is_met else "give the pid of the process that launches, or wait until it has started",
    )


def _seccomp(facts: list[dict[str, Any]]) -> Requirement:
    filtered = [item["pid"] for item in facts if item["seccomp"] in ("filter", "strict")]
    if not filtered:
        return Requirement("seccomp", True, "no process has a seccomp filter")
    return Requirement(
        "seccomp",
        True,
        f"{len(filtered)} processes have a seccomp filter (usual in containers); "
        "some kernels (6.11 and a few after) killed such a process at its first return probe",
    )


def _stacks(pids: list[int], root: Path) -> Requirement:
    """Return probes break runtimes that move stacks."""
    moving = [pid for pid in pids if _is_go(root / str(pid) / "exe")]
    return Requirement(
        "stacks",
        not moving,
        f"process {moving[0]} is a Go program, whose stacks move"
        if moving
        else "no runtime that moves stacks was found",
        "a return probe on one of its Go functions would crash it; CUDA functions run on a C stack",
        "" if not moving else "record only if it calls CUDA through cgo",
    )


def _is_go(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                return False
            with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as content:
                return content.find(_GO_MARK, 0, min(size, 256 << 20)) >= 0
    except (OSError, ValueError):
        return False
