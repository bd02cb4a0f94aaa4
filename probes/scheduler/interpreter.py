"""Whose lock a futex is: Python keeps its interpreter lock inside an object that it exports.

The lock of CPython is a condition variable within ``_PyRuntime`` (3.7 and later), which the
executable or libpython exports: a futex at an address within it is the interpreter's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from probes.cuda.elf import ElfError, ElfFile
from probes.host import proc

#: Exported object that holds the interpreter's state.
SYMBOL = b"_PyRuntime"
#: A process in which none was found is looked at again after so long: it may call exec.
RETRY_NS = 5_000_000_000


@dataclass(frozen=True)
class _Known:
    """Addresses of the interpreter's state, or that there is none; and until when to believe it."""

    start: int
    end: int
    until_ns: int | None


class InterpreterLocks:
    """Tells futexes of the interpreter from others, for as many processes as one likes.

    Args:
        root: Where /proc is.
    """

    def __init__(self, root: Path = proc.PROC) -> None:
        self._root = root
        self._known: dict[int, _Known] = {}

    def is_interpreter(self, pid: int, address: int, now_ns: int) -> bool | None:
        """Return whether the futex at an address of a process is its interpreter's; None where no
        interpreter is known in it.
        """
        known = self._known.get(pid)
        if known is None or (known.until_ns is not None and known.until_ns < now_ns):
            found = self._find(pid)
            start, end = found or (0, 0)
            known = _Known(start, end, None if found else now_ns + RETRY_NS)
            self._known[pid] = known
        return known.start <= address < known.end if known.end else None

    def _find(self, pid: int) -> tuple[int, int] | None:
        """Addresses of the interpreter's state in a process, None where it has none."""
        seen: set[tuple[int, int]] = set()
        for mapping in proc.read_maps(pid, self._root, executable_only=True):
            key = (mapping.device, mapping.inode)
            if key in seen or "python" not in os.path.basename(mapping.path):  # noqa: PTH119
                continue
            seen.add(key)
            path = f"{self._root}/{pid}/map_files/{mapping.range_name}"
            try:
                with ElfFile(path) as elf:
                    bias = elf.load_bias(mapping.start, mapping.offset)
                    for symbol in elf.symbols_containing(SYMBOL):
                        if symbol.name.encode() == SYMBOL and symbol.size and bias is not None:
                            start = symbol.address + bias
                            return start, start + symbol.size
            except ElfError:
                continue
        return None
