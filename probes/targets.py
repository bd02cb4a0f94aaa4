"""Which processes are recorded: the roots that were asked for and all that descend from them.

A pid names a process only together with its start time: pids are used again. Children are found
by looking (:meth:`TargetTree.refresh`) and by the kernel's events (``note_*``), whichever is first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from probes.host import proc

#: Most ended processes that are kept for the manifest; the oldest are dropped beyond it.
MAX_ENDED = 4096
#: A tree of no more threads is searched for children by their lists, without counting processes.
FEW_THREADS = 64
#: How often command line and cgroup of a process are looked at that goes by the same name.
_DESCRIBE_NS = 5_000_000_000
#: A process that started this long after the fork that made its pid known is another one.
_START_TOLERANCE_NS = 50_000_000


@dataclass(frozen=True)
class TargetProcess:
    """One process of the tree, with the fields of the manifest's ``Target``.

    ``start_ns`` and ``end_ns`` are CLOCK_MONOTONIC, the start good to a clock tick (10 ms). The
    command line is redacted. None is unknown; ``end_ns`` of a living process is None.
    """

    pid: int
    parent_pid: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    name: str | None = None
    command_line: str | None = None
    container: str | None = None
    cgroup: str | None = None


@dataclass(frozen=True)
class TargetChange:
    """One change of the tree: ``kind`` is fork, exec or exit; the time is CLOCK_MONOTONIC.

    The time of a fork found by looking is the child's start; of an exec or exit so found, the
    time of the look.
    """

    kind: str
    pid: int
    time_ns: int
    parent_pid: int | None = None
    name: str | None = None
    detail: str = ""


@dataclass
class _Entry:
    """A process with what identifies it and its image."""

    process: TargetProcess
    start_ticks: int | None
    image: tuple[object, ...] | None
    n_threads: int = 0
    exit_time_ns: int | None = None
    #: When command line and cgroup were looked at last; None: not since the start.
    described_ns: int | None = None
    #: The files ``cmdline`` and ``cgroup`` that the process's fields were made from.
    files: tuple[bytes, bytes] = (b"", b"")


class TargetTree:
    """The living and ended processes below some roots.

    Args:
        root_pids: Host pids to start from; those that do not exist are left out.
        root: Where /proc is.
        boottime_offset_ns: Reads CLOCK_BOOTTIME minus CLOCK_MONOTONIC, in ns.
        excluded_pids: Descendants that are left out, with all that descends from them: the
            recorder itself where it was started from the tree that it records.
    """

    def __init__(
        self,
        root_pids: Iterable[int],
        root: Path = proc.PROC,
        boottime_offset_ns: Callable[[], int] = proc.boottime_offset_ns,
        excluded_pids: Iterable[int] = (),
    ) -> None:
        self._excluded = frozenset(excluded_pids)
        self._root = root
        self._read_offset = boottime_offset_ns
        self._offset_ns = boottime_offset_ns()
        self._living: dict[int, _Entry] = {}
        #: The last ended process of each pid, in the order of their ends, and those before.
        self._ended: dict[int, _Entry] = {}
        self._replaced: list[_Entry] = []
        #: Ended processes that were dropped from the list of targets.
        self.n_forgotten = 0
        #: The id that the kernel gave last, before the last look for descendants.
        self._newest_pid: bytes | None = None
        for pid in root_pids:
            stat = proc.read_stat(pid, root)
            if stat is not None and not stat.is_dead:
                self._add(stat)
        for stat in self._find_descendants():
            self._add(stat)

    def pids(self) -> set[int]:
        """Return the host pids of the living processes of the tree."""
        return set(self._living)

    def targets(self) -> list[TargetProcess]:
        """Return every process that is or was in the tree, by start."""
        processes = [
            entry.process
            for entry in (*self._replaced, *self._ended.values(), *self._living.values())
        ]
        return sorted(processes, key=lambda process: (process.start_ns or 0, process.pid))

    def get(self, pid: int) -> TargetProcess | None:
        """Return the living process of that pid, or None when it is not of the tree."""
        entry = self._living.get(pid)
        return None if entry is None else entry.process

    def is_alive(self, pid: int) -> bool:
        """Return whether that process of the tree runs now, and is not another of the same pid."""
        entry = self._living.get(pid)
        if entry is None:
            return False
        stat = proc.read_stat(pid, self._root)
        return stat is not None and not stat.is_dead and stat.start_ticks == entry.start_ticks

    def refresh(self, now_ns: int) -> list[TargetChange]:
        """Look at the tree again and return what changed since, in no particular order.

        Names and command lines that a process gave itself are taken over without a change.

        Args:
            now_ns: CLOCK_MONOTONIC.
        """
        self._offset_ns = self._read_offset()
        changes = []
        for pid, entry in list(self._living.items()):
            stat = proc.read_stat(pid, self._root)
            if stat is None and (self._root / str(pid)).exists():
                continue  # no file can be opened now; that one is there is told without
            if stat is None or stat.is_dead or stat.start_ticks != entry.start_ticks:
                changes.append(self._end(pid, entry.exit_time_ns or now_ns))
            elif self._update(entry, stat, now_ns):
                changes.append(_change("exec", entry.process, now_ns))
        for stat in self._find_descendants() if self._may_have_forked() else ():
            process = self._add(stat)
            changes.append(_change("fork", process, process.start_ns or now_ns))
        return changes

    def add_root(self, pid: int) -> TargetProcess | None:
        """Take a further process and all that descends from it into the tree; None if it ended."""
        known = self._living.get(pid)
        if known is not None:
            return known.process
        stat = proc.read_stat(pid, self._root)
        if stat is None or stat.is_dead or pid in self._excluded:
            return None
        return self._add(stat)

    def note_fork(self, parent_pid: int, child_pid: int, time_ns: int) -> TargetChange | None:
        """Take over a fork that the kernel told; return the change, or None when it is none.

        A child that has ended meanwhile is kept with what is known of it.
        """
        parent = self._living.get(parent_pid) or self._ended_at(parent_pid, time_ns)
        if parent is None or child_pid in self._excluded:
            return None
        known = self._living.get(child_pid)
        if known is not None:
            started_ns = known.process.start_ns
            if started_ns is None or started_ns >= time_ns - _START_TOLERANCE_NS:
                return None
            self._end(child_pid, known.exit_time_ns or time_ns)
        stat = proc.read_stat(child_pid, self._root)
        if stat is not None and not self._is_of(stat, time_ns):
            stat = None
        if stat is not None and not stat.is_dead:
            process = replace(self._add(stat), parent_pid=parent_pid)
            self._living[child_pid].process = process
        else:
            process = TargetProcess(
                pid=child_pid,
                parent_pid=parent_pid,
                start_ns=time_ns,
                end_ns=None,
                name=parent.process.name,
            )
            self._remember_ended(_Entry(process, None, None))
        return _change("fork", process, time_ns)

    def note_exec(self, pid: int, time_ns: int) -> TargetChange | None:
        """Take over an exec that the kernel told; return the change, or None for a stranger."""
        entry = self._living.get(pid)
        stat = proc.read_stat(pid, self._root)
        if entry is None or stat is None or stat.start_ticks != entry.start_ticks:
            return None
        self._update(entry, stat, time_ns)
        return _change("exec", entry.process, time_ns)

    def note_exit(self, pid: int, time_ns: int) -> TargetChange | None:
        """Take over the end of a process that the kernel told; return the change, if it is one.

        The kernel tells when a leading thread ends: while others of its process run on, the time
        is only remembered, and the next :meth:`refresh` after the real end uses it.
        """
        entry = self._living.get(pid)
        if entry is None:
            ended = self._ended.get(pid)
            if ended is None or ended.process.end_ns is not None:
                return None
            ended.process = replace(ended.process, end_ns=time_ns)
            return _change("exit", ended.process, time_ns)
        started_ns = entry.process.start_ns
        if started_ns is not None and time_ns < started_ns - _START_TOLERANCE_NS:
            return None  # it was the end of an earlier process of this pid
        stat = proc.read_stat(pid, self._root)
        if stat is not None and stat.start_ticks == entry.start_ticks and not stat.is_dead:
            entry.exit_time_ns = time_ns
            return None
        return self._end(pid, time_ns)

    def _is_of(self, stat: proc.ProcessStat, fork_time_ns: int) -> bool:
        """Whether the process now at a pid can be the child of a fork at that time."""
        start_ns = proc.start_time_ns(stat.start_ticks, self._offset_ns)
        return start_ns <= fork_time_ns + _START_TOLERANCE_NS

    def _add(self, stat: proc.ProcessStat) -> TargetProcess:
        """Make a process that was just read part of the tree."""
        entry = _Entry(
            TargetProcess(
                pid=stat.pid,
                parent_pid=stat.parent_pid or None,
                start_ns=proc.start_time_ns(stat.start_ticks, self._offset_ns),
            ),
            stat.start_ticks,
            self._image(stat),
            stat.n_threads,
        )
        self._describe(entry, stat)
        self._living[stat.pid] = entry
        return entry.process

    def _update(self, entry: _Entry, stat: proc.ProcessStat, now_ns: int) -> bool:
        """Take over name, image, and now and then command line and cgroup; return whether the image
        is new.

        The addresses of the image are random for each exec, so that a program which executes
        itself again is seen, and a process that only renames itself is not taken for one.
        """
        image = self._image(stat)
        is_new = image is not None and entry.image is not None and image != entry.image
        entry.image = image if image is not None else entry.image
        entry.n_threads = stat.n_threads
        is_due = entry.described_ns is None or now_ns - entry.described_ns >= _DESCRIBE_NS
        if is_new or is_due or stat.name != entry.process.name:
            entry.described_ns = now_ns
            self._describe(entry, stat)
        return is_new

    def _describe(self, entry: _Entry, stat: proc.ProcessStat) -> None:
        """Take over name, command line and cgroup where they changed."""
        folder = f"{self._root}/{stat.pid}"
        command_line = proc.read_bytes(f"{folder}/cmdline", proc.MAX_COMMAND_LINE_BYTES)
        cgroup = proc.read_bytes(f"{folder}/cgroup")
        files = (command_line or b"", cgroup or b"")
        if files != entry.files or command_line is None or stat.name != entry.process.name:
            entry.files = files
            cgroups = proc.parse_cgroups(files[1])
            entry.process = replace(
                entry.process,
                name=stat.name,
                command_line=None if command_line is None else proc.redacted(command_line),
                container=proc.container_id(cgroups),
                cgroup=proc.main_cgroup(cgroups),
            )

    def _image(self, stat: proc.ProcessStat) -> tuple[object, ...] | None:
        """What differs between two programs that a process ran.

        None when it cannot be seen: without the right to, or in the middle of an exec.
        """
        if stat.start_code <= 1:
            return None
        try:
            executable = str((self._root / str(stat.pid) / "exe").readlink())
        except OSError:
            return None
        return (executable.removesuffix(" (deleted)"), stat.start_code, stat.start_stack)

    def _end(self, pid: int, time_ns: int) -> TargetChange:
        """Move a living process to the ended ones."""
        entry = self._living.pop(pid)
        entry.process = replace(entry.process, end_ns=time_ns)
        self._remember_ended(entry)
        return _change("exit", entry.process, time_ns)

    def _ended_at(self, pid: int, time_ns: int) -> _Entry | None:
        """An ended process that still ran at that time: its last fork may be told after its end."""
        entry = self._ended.get(pid)
        if entry is None or (entry.process.end_ns or time_ns) < time_ns:
            return None
        return entry

    def _remember_ended(self, entry: _Entry) -> None:
        before = self._ended.pop(entry.process.pid, None)
        if before is not None:
            self._replaced.append(before)
        self._ended[entry.process.pid] = entry
        if len(self._ended) + len(self._replaced) > MAX_ENDED:
            keep = MAX_ENDED * 3 // 4
            self.n_forgotten += len(self._ended) + len(self._replaced) - keep
            self._ended = dict(list(self._ended.items())[-keep:])
            del self._replaced[: max(len(self._replaced) - (keep - len(self._ended)), 0)]

    def _may_have_forked(self) -> bool:
        """Whether any process or thread of this host began since the last call: one file instead
        of one per thread of the tree.
        """
        words = (proc.read_bytes(self._root / "loadavg") or b"").split()
        newest = words[4] if len(words) > 4 else None
        is_same = newest is not None and newest == self._newest_pid
        self._newest_pid = newest
        return not is_same

    def _find_descendants(self) -> list[proc.ProcessStat]:
        """Living descendants of the tree that are not in it, parents before children.

        The kernel's lists of children cost one file per thread of the tree, the scan for parents
        one per process of the host: the cheaper is taken.
        """
        if not self._living:
            return []
        n_threads = sum(entry.n_threads for entry in self._living.values())
        pids = None if n_threads <= FEW_THREADS else proc.list_pids(self._root)
        if pids is None or n_threads < len(pids):
            found = self._find_by_children()
            if found is not None:
                return found
        return self._find_by_parents(proc.list_pids(self._root) if pids is None else pids)

    def _find_by_children(self) -> list[proc.ProcessStat] | None:
        found: dict[int, proc.ProcessStat] = {}
        queue = list(self._living)
        while queue:
            children = proc.list_children(queue.pop(), self._root)
            if children is None:
                return None
            for child in children:
                if child in self._living or child in found or child in self._excluded:
                    continue
                stat = proc.read_stat(child, self._root)
                if stat is not None and not stat.is_dead:
                    found[child] = stat
                    queue.append(child)
        return list(found.values())

    def _find_by_parents(self, pids: list[int]) -> list[proc.ProcessStat]:
        children: dict[int, list[proc.ProcessStat]] = {}
        for pid in pids:
            if pid in self._living or pid in self._excluded:
                continue
            stat = proc.read_stat(pid, self._root)
            if stat is not None and not stat.is_dead:
                children.setdefault(stat.parent_pid, []).append(stat)
        found: list[proc.ProcessStat] = []
        queue = list(self._living)
        while queue:
            for stat in children.pop(queue.pop(), ()):
                found.append(stat)
                queue.append(stat.pid)
        return found


def _change(kind: str, process: TargetProcess, time_ns: int) -> TargetChange:
    """A change with what is known of its process."""
    details = {
        "fork": f"process {process.parent_pid} started {process.pid} ({process.name})",
        "exec": f"process {process.pid} began to run {process.name}",
        "exit": f"process {process.pid} ({process.name}) ended",
    }
    return TargetChange(
        kind, process.pid, time_ns, process.parent_pid, process.name, details[kind] + "."
    )
