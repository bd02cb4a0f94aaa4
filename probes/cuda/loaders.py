"""Hearing at once of new processes and libraries, instead of at the next look.

The dynamic loader of a program (glibc, musl) calls ``_dl_debug_state`` when it has begun and ended
to map libraries: a debugger puts its breakpoint there, and we a probe, in the target's processes
only. The kernel side then wakes the thread that attaches to libraries; forks and execs wake it too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from probes.attach import Attacher, Attachment, Place, close_together
from probes.cuda.elf import ElfError, ElfFile
from probes.cuda.loading import LOADER_PROGRAM
from probes.cuda.program import COOKIE_NO_RETURN
from probes.host import proc
from probes.probe import ProbeError
from probes.ring import Ring

#: Most processes whose loader is probed; others are looked at in turn.
MAX_LOADERS = 256
FORK, EXEC, LOAD = 1, 2, 4

_LOADER_NAME = re.compile(r"/(ld-|ld64|ld\.so)[^/]*$")
_SYMBOL = "_dl_debug_state"


@dataclass(frozen=True)
class Wake:
    """Why to look: ``kind`` is FORK, EXEC or LOAD of process ``pid`` at ``time_ns``."""

    kind: int
    pid: int
    time_ns: int


@dataclass(frozen=True)
class Wakes:
    """What the kernel side tells; its descriptor is readable when there is anything."""

    ring: Ring
    descriptor: int

    def take(self) -> list[Wake]:
        """Return what was told since the last call."""
        records = self.ring.drain()
        return [
            Wake(int(record["kind"]), int(record["pid_tgid"]) >> 32, int(record["time_ns"]))
            for record in records
        ]


class LoaderProbes:
    """Probes in the dynamic loaders of the targets.

    Args:
        attacher: Attaches the loaded programs.
        root: Where /proc is.
    """

    def __init__(self, attacher: Attacher, root: Path = proc.PROC) -> None:
        self._attacher = attacher
        self._root = root
        self._attachments: dict[int, Attachment] = {}
        self._places: dict[tuple[int, int], int | None] = {}

    def follow(self, pid: int, mappings: list[proc.Mapping]) -> None:
        """Probe the loader of a process, unless it is probed already or there is none."""
        if pid in self._attachments or len(self._attachments) >= MAX_LOADERS:
            return
        for mapping in mappings:
            if not _LOADER_NAME.search(mapping.path):
                continue
            path = f"{self._root}/{pid}/map_files/{mapping.range_name}"
            offset = self._place(path, mapping)
            if offset is None:
                continue
            place = Place(offset, COOKIE_NO_RETURN, LOADER_PROGRAM, has_return=False)
            try:
                self._attachments[pid] = self._attacher.attach(path, [place], pid)
            except ProbeError:
                self._attachments[pid] = Attachment()  # it is looked at in turn
            return

    def forget(self, pid: int) -> None:
        """Detach from a process that ended."""
        attachment = self._attachments.pop(pid, None)
        if attachment is not None:
            attachment.close()

    def detach(self) -> None:
        """Detach from all."""
        close_together(self._attachments.values())
        self._attachments.clear()

    def _place(self, path: str, mapping: proc.Mapping) -> int | None:
        """Offset of the function in a loader's file."""
        key = (mapping.device, mapping.inode)
        if key not in self._places:
            self._places[key] = None
            try:
                with ElfFile(path) as elf:
                    for symbol in elf.functions(frozenset((_SYMBOL,))):
                        self._places[key] = elf.file_offset(symbol.address)
            except ElfError:
                pass
        return self._places[key]
