"""Keeps probes attached to the CUDA libraries of a process tree while it changes.

A thread of its own looks for newly mapped libraries and new processes, so that reading large files
never delays the drain. The kernel side wakes it when a target forks, calls exec or its loader maps
a library, so that it looks within milliseconds.

A file that only targets map is probed for all processes (children are then recorded from their
first call, the kernel side leaves out strangers); a file that others map too is probed process by
process, and the time until a new process is probed is told as a gap.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from probes.attach import Attacher, Attachment, Place, close_together
from probes.cuda.budget import NOTHING_SHED, Plan
from probes.cuda.libraries import Library, LibraryScanner
from probes.cuda.loaders import FORK, LOAD, LoaderProbes, Wakes
from probes.cuda.program import ENTRY_PROGRAM, cookie_of
from probes.host import proc
from probes.probe import ProbeError

#: Rest between two looks at all processes.
LOOK_NS = 200_000_000
#: When to look at a process after it was forked or called exec.
FOLLOW_NS = (5_000_000, 20_000_000, 60_000_000)
#: A process that the kernel told of is looked at for so long until the tree knows it.
YOUNG_NS = 2_000_000_000
#: Least rest between two looks at a process that loads libraries.
LOAD_NS = 5_000_000


@dataclass(frozen=True)
class Change:
    """One thing that the watcher did or could not do.

    Attributes:
        kind: ``library`` (probed), ``coverage`` (could not be probed) or ``fork_gap``.
        time_ns: When.
        pid: Process concerned.
        name: Path of the library.
        detail: One sentence.
        duration_ns: Length of a gap.
    """

    kind: str
    time_ns: int
    pid: int
    name: str
    detail: str
    duration_ns: int | None = None


@dataclass
class _Probed:
    """One library file with probes in it.

    Attributes:
        library: The file, as the first process maps it.
        attachments: What is always attached, by process; 0 is all.
        slices: What is attached while a slice is open, by process.
    """

    library: Library
    attachments: dict[int, Attachment] = field(default_factory=dict)
    slices: dict[int, Attachment] = field(default_factory=dict)

    @property
    def every(self) -> list[Attachment]:
        """All that is attached now."""
        return [*self.attachments.values(), *self.slices.values()]


class LibraryWatcher:
    """Attaches to what the targets map.

    Args:
        attacher: Attaches the loaded programs.
        pids: Gives the living targets.
        started_ns: Gives the start of a target if it was seen in this recording, else None.
        is_entry_only: Probe no returns.
        wakes: Tells of new processes and libraries; None to look at intervals only.
        root: Where /proc is.
    """

    def __init__(
        self,
        attacher: Attacher,
        pids: Callable[[], Iterable[int]],
        started_ns: Callable[[int], int | None],
        is_entry_only: bool = False,
        wakes: Wakes | None = None,
        root: Path = proc.PROC,
    ) -> None:
        self._attacher = attacher
        self._pids = pids
        self._started_ns = started_ns
        self._is_entry_only = is_entry_only
        self._root = root
        self._scanner = LibraryScanner(root=root)
        self._probed: dict[str, _Probed] = {}
        self._libraries: dict[int, list[Library]] = {}
        self._told: set[tuple[int, str]] = set()
        self._changes: list[Change] = []
        self._lock = threading.Lock()
        #: Held while anything is attached or detached.
        self._attaching = threading.RLock()
        self._plan = NOTHING_SHED
        self._is_suspended = False
        self._is_slice_open = False
        self._wakes = wakes
        self._loaders = LoaderProbes(attacher, root) if wakes is not None else None
        #: Processes that the kernel told of, with the time; those of them that began then.
        self._young: dict[int, int] = {}
        self._began: dict[int, int] = {}
        #: When to look at which process.
        self._due: dict[int, list[int]] = {}
        self._looked_ns: dict[int, int] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cuda-libraries", daemon=True)

    def start(self) -> None:
        """Look once, then go on in the background."""
        self.look()
        self._thread.start()

    def wake(self) -> None:
        """Look again soon: a process was started or began another program."""
        with suppress(BlockingIOError):
            os.write(self._wake_write, b"x")

    def stop(self) -> None:
        """Look no more; what is attached stays. To be called once."""
        self._stopping.set()
        self.wake()
        if self._thread.is_alive():
            self._thread.join()

    def detach(self) -> None:
        """Detach everything, after :meth:`stop`; may wait for the kernel."""
        with self._attaching:
            close_together(one for probed in self._probed.values() for one in probed.every)
            if self._loaders is not None:
                self._loaders.detach()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def suspend(self) -> None:
        """Detach everything at once; libraries found meanwhile are only remembered."""
        with self._attaching:
            self._is_suspended, self._is_slice_open = True, False
            close_together(one for probed in self._probed.values() for one in probed.every)

    def apply(self, plan: Plan) -> None:
        """Attach what a plan leaves, after :meth:`suspend` or in place of another plan."""
        with self._attaching:
            self.suspend()
            self._is_suspended, self._plan = False, plan
            for probed in self._probed.values():
                probed.slices.clear()
                for pid in list(probed.attachments):
                    probed.attachments[pid] = self._attach_again(probed.library, pid, False)

    def open_slice(self) -> None:
        """Attach also what the plan keeps for slices."""
        with self._attaching:
            self._is_slice_open = True
            for probed in self._probed.values():
                for pid in list(probed.attachments):
                    probed.slices[pid] = self._attach_again(probed.library, pid, True)

    def close_slice(self) -> None:
        """Detach what :meth:`open_slice` attached."""
        with self._attaching:
            self._is_slice_open = False
            close_together(
                one for probed in self._probed.values() for one in probed.slices.values()
            )
            for probed in self._probed.values():
                probed.slices.clear()

    def has_driver(self) -> bool:
        """Return whether any probed library has functions of the driver."""
        return any("driver" in one.library.file.layers for one in list(self._probed.values()))

    def cost_classes(self) -> dict[str, str]:
        """Return the class of cost of every probed function, the dearest of its copies."""
        classes: dict[str, str] = {}
        for probed in list(self._probed.values()):
            for symbol, name in probed.library.file.costs.items():
                if classes.get(symbol) != "stepped":
                    classes[symbol] = name
        return classes

    def take_changes(self) -> list[Change]:
        """Return what happened since the last call."""
        with self._lock:
            changes, self._changes = self._changes, []
        return changes

    def libraries(self) -> Mapping[int, list[Library]]:
        """Return the libraries of each process as last seen."""
        return dict(self._libraries)

    def probed(self) -> list[tuple[str, Library]]:
        """Return every (symbol, library) that was probed."""
        return [
            (symbol, probed.library)
            for probed in list(self._probed.values())
            for symbol in probed.library.file.functions
        ]

    def look(self) -> None:
        """Look at every target once and attach to what is new."""
        pids = self._targets()
        for pid in pids:
            self._look_at(pid, pids)
        for pid in set(self._libraries) - pids:
            self._forget(pid)

    def _look_at(self, pid: int, pids: set[int]) -> None:
        """Look at one target and attach to what is new."""
        self._looked_ns[pid] = time.monotonic_ns()
        libraries = self._scanner.scan(pid)
        if self._loaders is not None:
            self._loaders.follow(pid, self._scanner.mappings(pid))
        if self._libraries.get(pid) is libraries:
            return
        self._libraries[pid] = libraries
        for library in libraries:
            self._consider(library, pids)

    def _targets(self) -> set[int]:
        """Processes of the tree, and those that it does not know yet."""
        oldest = time.monotonic_ns() - YOUNG_NS
        self._young = {pid: told for pid, told in self._young.items() if told > oldest}
        self._began = {pid: told for pid, told in self._began.items() if told > oldest}
        return {*self._pids(), *self._young}

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        if self._wakes is not None:
            poller.register(self._wakes.descriptor, select.POLLIN)
        next_look_ns = time.monotonic_ns() + LOOK_NS
        while not self._stopping.is_set():
            due_ns = min(
                [next_look_ns, *(time_ns for times in self._due.values() for time_ns in times)]
            )
            poller.poll(max(due_ns - time.monotonic_ns(), 0) / 1e6)
            if self._stopping.is_set():
                return
            with suppress(BlockingIOError):
                if os.read(self._wake_read, 4096):
                    next_look_ns = 0
            self._take_wakes()
            now_ns = time.monotonic_ns()
            due = {pid for pid, times in self._due.items() if min(times) <= now_ns}
            later = {
                pid: [one for one in times if one > now_ns] for pid, times in self._due.items()
            }
            self._due = {pid: times for pid, times in later.items() if times}
            if now_ns >= next_look_ns:
                self.look()
                next_look_ns = time.monotonic_ns() + LOOK_NS
                continue
            pids = self._targets()
            for pid in due & pids:
                self._look_at(pid, pids)

    def _take_wakes(self) -> None:
        """Note when to look at the processes that the kernel side tells of."""
        for wake in self._wakes.take() if self._wakes is not None else ():
            times = [wake.time_ns + delay for delay in FOLLOW_NS]
            if wake.kind == LOAD:
                times = [max(wake.time_ns, self._looked_ns.get(wake.pid, 0) + LOAD_NS)]
            elif wake.kind == FORK and all(0 in one.attachments for one in self._probed.values()):
                continue  # the child is recorded already
            else:
                self._began[wake.pid] = wake.time_ns
            self._young[wake.pid] = wake.time_ns
            self._due[wake.pid] = times

    def _forget(self, pid: int) -> None:
        self._scanner.forget(pid)
        self._looked_ns.pop(pid, None)
        del self._libraries[pid]
        if self._loaders is not None:
            self._loaders.forget(pid)
        with self._attaching:
            for probed in self._probed.values():
                for held in (probed.attachments, probed.slices):
                    attachment = held.pop(pid, None)
                    if attachment is not None:
                        attachment.close()

    def _consider(self, library: Library, pids: set[int]) -> None:
        """Attach to a library of a process, unless it is attached already."""
        if library.problem:
            self._tell_once("coverage", library, library.problem)
        if not library.file.functions or library.open_path is None:
            return
        probed = self._probed.get(library.device_inode)
        if probed is None:
            probed = self._probed[library.device_inode] = _Probed(library)
        if 0 in probed.attachments or library.pid in probed.attachments:
            return
        is_shared = bool(probed.attachments) or self._is_mapped_by_others(library, pids)
        pid = library.pid if is_shared else 0
        n_places = len(library.file.functions)
        with self._attaching:
            try:
                attachment = self._attach(library, library.open_path, pid, is_slice=False)
                if self._is_slice_open:
                    probed.slices[pid] = self._attach(
                        library, library.open_path, pid, is_slice=True
                    )
            except ProbeError as error:
                self._tell_once("coverage", library, str(error))
                return
            probed.attachments[pid] = attachment
        now_ns = time.monotonic_ns()
        scope = "only in the recorded processes" if is_shared else "for all that map it"
        detail = f"{n_places} functions probed, {scope}."
        if attachment.n_failed:
            reasons = ", ".join(f"{n} x {text}" for text, n in attachment.n_failed.items())
            detail = f"{n_places} functions, of which some could not be probed: {reasons}."
        with self._lock:
            self._changes.append(Change("library", now_ns, library.pid, library.path, detail))
            started_ns = self._started_ns(library.pid) or self._began.get(library.pid)
            if is_shared and started_ns is not None:
                self._changes.append(
                    Change(
                        "fork_gap",
                        now_ns,
                        library.pid,
                        library.path,
                        "Calls that a new process made before it was probed are missing; how many "
                        "is not known.",
                        now_ns - started_ns,
                    )
                )

    def _attach(self, library: Library, path: str, pid: int, is_slice: bool) -> Attachment:
        """Attach the part of a library's functions that is due under the plan."""
        if self._is_suspended:
            return Attachment()
        plan = self._plan
        places = []
        for symbol, offset in library.file.functions.items():
            if (symbol in plan.in_slices) is not is_slice:
                continue
            has_return = not self._is_entry_only and symbol not in plan.entry_only
            cookie = cookie_of(symbol, has_return)
            places.append(Place(offset, cookie, ENTRY_PROGRAM, has_return))
        return self._attacher.attach(path, places, pid)

    def _attach_again(self, library: Library, pid: int, is_slice: bool) -> Attachment:
        """The same for a library that was attached before: through a process that maps it now."""
        for holder, libraries in list(self._libraries.items()):
            if pid not in (0, holder):
                continue
            for one in libraries:
                if one.device_inode == library.device_inode and one.open_path is not None:
                    try:
                        return self._attach(one, one.open_path, pid, is_slice)
                    except ProbeError as error:
                        self._tell_once("coverage", one, str(error))
        return Attachment()

    def _tell_once(self, kind: str, library: Library, detail: str) -> None:
        if (library.pid, library.device_inode) in self._told:
            return
        self._told.add((library.pid, library.device_inode))
        with self._lock:
            self._changes.append(
                Change(kind, time.monotonic_ns(), library.pid, library.path, detail)
            )

    def _is_mapped_by_others(self, library: Library, pids: set[int]) -> bool:
        """Whether a process that is not recorded maps the same file."""
        own = os.getpid()
        major, minor, inode = library.device_inode.split(":")
        needle = f" {int(major):02x}:{int(minor):02x} {inode} ".encode()
        for entry in self._root.iterdir():
            if not entry.name.isdigit() or int(entry.name) in pids or int(entry.name) == own:
                continue
            if needle in (proc.read_bytes(f"{entry}/maps", proc.MAX_MAPS_BYTES) or b""):
                return True
        return False
