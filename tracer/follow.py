"""Keeps to a service over restarts of its processes: by name, by cgroup or by port."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.schema import EVENT
from probes.engine.discover import find_listeners
from probes.host import proc
from probes.probe import Batch, make_batch
from probes.targets import TargetTree
from tracer.errors import UsageError
from tracer.plain_text import shorten
from tracer.watching import Moment

#: Most processes that one name, cgroup or port may mean.
MAX_ROOTS = 64
_PORT_MAX = 65_535


@dataclass(frozen=True)
class Service:
    """What is followed: ``kind`` is name, cgroup or port."""

    kind: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Service:
        """Return the service that a text names: a number is a port, what has a slash is a cgroup.

        Raises:
            UsageError: it names nothing.
        """
        text = text.strip()
        if not text:
            raise UsageError("--follow needs a name, a cgroup or a port, e.g. --follow vllm")
        if text.isdecimal():
            digits = text.lstrip("0")
            if not digits or len(digits) > len(str(_PORT_MAX)) or int(digits) > _PORT_MAX:
                raise UsageError(f"{shorten(text)} is not a port; ports are 1 to {_PORT_MAX}")
            return cls("port", digits)
        if "/" in text or text.endswith((".service", ".scope", ".slice")):
            return cls("cgroup", text.strip("/"))
        return cls("name", text)

    def __str__(self) -> str:
        return f"{self.kind} {self.value}"

    def find(self, root: Path = proc.PROC) -> list[int]:
        """Return the processes that are it now, without those whose parent is it too."""
        pids = [pid for pid in proc.list_pids(root) if pid != os.getpid()]
        if self.kind == "port":
            listeners = find_listeners(pids, root)
            found = {item.pid for item in listeners if item.port == int(self.value)}
        else:
            is_it = self._has_name if self.kind == "name" else self._is_in_cgroup
            found = {pid for pid in pids if is_it(pid, root)}
        found -= _recorders(found, root)
        parents = {pid: stat.parent_pid for pid in found if (stat := proc.read_stat(pid, root))}
        return sorted(pid for pid, parent in parents.items() if parent not in found)[:MAX_ROOTS]

    def _has_name(self, pid: int, root: Path) -> bool:
        """Whether the process, its program or the script that it runs has this name."""
        stat = proc.read_stat(pid, root)
        if stat is None or stat.is_dead:
            return False
        if stat.name == self.value:
            return True
        words = (proc.read_bytes(root / str(pid) / "cmdline") or b"").split(b"\0")[:2]
        return any(Path(os.fsdecode(word)).name == self.value for word in words if word)

    def _is_in_cgroup(self, pid: int, root: Path) -> bool:
        path = proc.main_cgroup(proc.read_cgroups(pid, root)) or ""
        parts, wanted = path.strip("/").split("/"), self.value.split("/")
        return any(
            parts[at : at + len(wanted)] == wanted for at in range(len(parts) - len(wanted) + 1)
        )


def _recorders(pids: Iterable[int], root: Path) -> set[int]:
    """Those of the processes that are a tracer: a name on its command line is not the service."""
    found = set()
    for pid in pids:
        words = (proc.read_bytes(root / str(pid) / "cmdline") or b"").split(b"\0")
        names = [Path(os.fsdecode(word)).name for word in words[:3]]
        if "tracer" in names and b"record" in words[:5]:
            found.add(pid)
    return found


class Follower:
    """Takes further processes of a service into the recording; each restart becomes an event.

    Args:
        service: What is followed.
        tree: Processes that are recorded.
        roots: Returns the living processes the recording is about.
        add_root: Takes one more into the recording.
        root: Where /proc is.
    """

    def __init__(
        self,
        service: Service,
        tree: TargetTree,
        roots: Callable[[], Sequence[int]],
        add_root: Callable[[int], bool],
        root: Path = proc.PROC,
    ) -> None:
        self._service = service
        self._tree = tree
        self._roots = roots
        self._add_root = add_root
        self._root = root
        self._gone_ns: int | None = None
        #: Times that a process of the service was taken in after the first.
        self.n_restarts = 0

    def observe(self, batch: Batch, now_ns: int) -> None:
        """Rows tell nothing about it."""

    def look(self, moment: Moment) -> Sequence[Batch]:
        """Look for the service's processes, every second."""
        living = set(self._roots())
        if living:
            self._gone_ns = None
        elif self._gone_ns is None:
            self._gone_ns = moment.now_ns
        batches = []
        for pid in self._service.find(self._root):
            if pid in living or self._tree.is_alive(pid):
                continue
            process = self._tree.add_root(pid)
            if process is None or not self._add_root(pid):
                continue
            self.n_restarts += 1
            gone = "" if self._gone_ns is None else self._absence(moment.now_ns)
            batches.append(
                make_batch(
                    EVENT,
                    {
                        "time_ns": [process.start_ns or moment.now_ns],
                        "kind": ["restart"],
                        "pid": [pid],
                        "name": [process.name or ""],
                        "detail": [f"process {pid} of {self._service} is recorded now{gone}."],
                    },
                )
            )
        return batches

    def _absence(self, now_ns: int) -> str:
        assert self._gone_ns is not None
        seconds = (now_ns - self._gone_ns) / 1e9
        return f", after {seconds:.0f} s without any"

    def close(self) -> Sequence[Batch]:
        """Nothing is left to record."""
        return ()
