"""Keeps probes attached to the CUDA libraries of a process tree while it changes.

A thread of its own looks for newly mapped libraries and new processes, so that reading large files
never delays the drain. A file that only targets map is probed for all processes (children are then
recorded from their first call, the kernel side leaves out strangers); a file that others map too is
probed process by process, and the time until a new process is probed is told as a gap.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from probes.attach import Attacher, Attachment, Place
from probes.cuda.functions import SYMBOL_INDEX, by_symbol
from probes.cuda.libraries import Library, LibraryScanner
from probes.cuda.program import COOKIE_NO_RETURN, program_of
from probes.host import proc
from probes.probe import ProbeError

#: Rest between two looks at all processes.
LOOK_NS = 200_000_000


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
    """One library file with probes in it."""

    library: Library
    attachments: dict[int, Attachment] = field(default_factory=dict)  # by pid, 0 is all


class LibraryWatcher:
    """Attaches to what the targets map.

    Args:
        attacher: Attaches the loaded programs.
        pids: Gives the living targets.
        started_ns: Gives the start of a target if it was seen in this recording, else None.
        is_entry_only: Probe no returns.
        root: Where /proc is.
    """

    def __init__(
        self,
        attacher: Attacher,
        pids: Callable[[], Iterable[int]],
        started_ns: Callable[[int], int | None],
        is_entry_only: bool = False,
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
        self._wake = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="cuda-libraries", daemon=True)

    def start(self) -> None:
        """Look once, then go on in the background."""
        self.look()
        self._thread.start()

    def wake(self) -> None:
        """Look again soon: a process was started or began another program."""
        self._wake.set()

    def stop(self) -> None:
        """Look no more; what is attached stays."""
        self._is_stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def detach(self) -> None:
        """Detach everything; may wait for the kernel."""
        for probed in self._probed.values():
            for attachment in probed.attachments.values():
                attachment.close()

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
        pids = set(self._pids())
        for pid in pids:
            libraries = self._scanner.scan(pid)
            if self._libraries.get(pid) is libraries:
                continue
            self._libraries[pid] = libraries
            for library in libraries:
                self._consider(library, pids)
        for pid in set(self._libraries) - pids:
            self._forget(pid)

    def _run(self) -> None:
        while not self._is_stopping:
            self._wake.wait(LOOK_NS / 1e9)
            self._wake.clear()
            if not self._is_stopping:
                self.look()

    def _forget(self, pid: int) -> None:
        self._scanner.forget(pid)
        del self._libraries[pid]
        for probed in self._probed.values():
            attachment = probed.attachments.pop(pid, None)
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
        places = [
            Place(
                offset,
                SYMBOL_INDEX[symbol] | (COOKIE_NO_RETURN if self._is_entry_only else 0),
                program_of(by_symbol[symbol]),
                not self._is_entry_only,
            )
            for symbol, offset in library.file.functions.items()
        ]
        try:
            attachment = self._attacher.attach(library.open_path, places, pid)
        except ProbeError as error:
            self._tell_once("coverage", library, str(error))
            return
        probed.attachments[pid] = attachment
        now_ns = time.monotonic_ns()
        scope = "only in the recorded processes" if is_shared else "for all that map it"
        detail = f"{len(places)} functions probed, {scope}."
        if attachment.n_failed:
            reasons = ", ".join(f"{n} x {text}" for text, n in attachment.n_failed.items())
            detail = f"{len(places)} functions, of which some could not be probed: {reasons}."
        with self._lock:
            self._changes.append(Change("library", now_ns, library.pid, library.path, detail))
            started_ns = self._started_ns(library.pid)
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
