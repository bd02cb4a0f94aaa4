"""Attaching programs to functions of a library file, and finding out what the kernel can do.

Where the kernel has it, one link holds all places of a file (``uprobe_multi``, attached and
detached in milliseconds); else there is one perf event per place and direction. Both are tested
for, not guessed from a version. Detaching waits for the kernel and belongs off the hot path.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from probes import syscalls
from probes.probe import ProbeError

_EVENT_SOURCE = Path("/sys/bus/event_source/devices/uprobe")
_SELF_TEST_TIMEOUT_S = 10.0
#: Calls that are under way when entries are detached have so long to return.
_GRACE_S = 0.002
#: Most descriptors that are closed at the same time.
_CLOSERS = 16


@dataclass(frozen=True)
class Place:
    """One function in a file.

    Attributes:
        offset: Offset of its first instruction in the file.
        cookie: Number that the programs get.
        program: Name of the program to run at entry.
        has_return: Whether its return is probed too.
        counter: Offset in the file of the counter that turns it on while anybody looks (of markers
            that programs declare); 0 for none.
    """

    offset: int
    cookie: int
    program: str
    has_return: bool = True
    counter: int = 0


@dataclass
class Attachment:
    """Open links and perf events; closing them detaches the probes.

    Attributes:
        entries: Descriptors of what runs at entry.
        returns: Descriptors of what runs at return.
        n_failed: Places that the kernel refused, by error text.
    """

    entries: list[int] = field(default_factory=list)
    returns: list[int] = field(default_factory=list)
    n_failed: dict[str, int] = field(default_factory=dict)

    def close(self) -> None:
        """Detach; may wait for the kernel (0.1 s a place with perf events)."""
        for descriptors in (self.entries, self.returns):
            while descriptors:
                os.close(descriptors.pop())


def close_together(attachments: Iterable[Attachment]) -> None:
    """Detach several at once: probes are gone at the begin, the waits for the kernel overlap.

    Returns go a moment after entries, so that most calls that are under way are still completed.
    """
    taken = list(attachments)
    with ThreadPoolExecutor(_CLOSERS) as closers:
        for is_return in (False, True):
            held = [one.returns if is_return else one.entries for one in taken]
            descriptors = [descriptor for each in held for descriptor in each]
            for each in held:
                each.clear()
            if is_return and descriptors:
                time.sleep(_GRACE_S)
            for descriptor in descriptors:
                closers.submit(os.close, descriptor)


@lru_cache(maxsize=1)
def has_uprobe_multi() -> bool:
    """Return whether the kernel links one program to many places of a file at once."""
    try:
        program = syscalls.load_empty_program(syscalls.ATTACH_UPROBE_MULTI)
    except OSError:
        return False
    try:
        link = syscalls.link_uprobe_multi(program, "/", [0], [0], is_return=False)
    except OSError as error:
        # A kernel that knows such links looks at the file and finds a folder.
        return error.errno == errno.EBADF
    finally:
        os.close(program)
    os.close(link)
    return True


class Attacher:
    """Attaches the loaded programs of one module.

    Args:
        programs: Name to descriptor; loaded for ``uprobe_multi`` if ``is_multi``, else as kprobes.
        return_program: Name of the program of all return probes.
        is_multi: Use ``uprobe_multi`` links.
    """

    def __init__(self, programs: Mapping[str, int], return_program: str, is_multi: bool) -> None:
        self._programs = programs
        self._return_program = return_program
        self._is_multi = is_multi

    def attach(self, path: str, places: Sequence[Place], pid: int = 0) -> Attachment:
        """Return what holds the probes at these places of a file.

        Return probes come first, so that no entry is seen whose return cannot be.

        Args:
            path: The file, as this process can open it.
            places: Functions in it.
            pid: Only in this process; 0 is every process.

        Raises:
            ProbeError: no place could be probed.
        """
        attachment = Attachment()
        returning = [place for place in places if place.has_return]
        groups: list[tuple[str, bool, list[Place]]] = [(self._return_program, True, returning)]
        groups.extend(
            (program, False, [place for place in places if place.program == program])
            for program in sorted({place.program for place in places})
        )
        for program, is_return, group in groups:
            if not group:
                continue
            if self._is_multi:
                self._link(attachment, path, program, group, is_return, pid)
            else:
                for place in group:
                    self._open(attachment, path, program, place, is_return, pid)
        if places and not attachment.entries:
            attachment.close()
            reasons = ", ".join(attachment.n_failed) or "unknown"
            raise ProbeError(
                f"no function of {path} can be probed ({reasons}); run 'tracer doctor'"
            )
        return attachment

    def _link(
        self,
        attachment: Attachment,
        path: str,
        program: str,
        places: Sequence[Place],
        is_return: bool,
        pid: int,
    ) -> None:
        """One link for all places; where the kernel refuses it, halves, down to single places."""
        try:
            link = syscalls.link_uprobe_multi(
                self._programs[program],
                path,
                [place.offset for place in places],
                [place.cookie for place in places],
                is_return=is_return,
                pid=pid,
                counters=[place.counter for place in places],
            )
        except OSError as error:
            if len(places) == 1 or error.errno in (errno.EPERM, errno.ESRCH, errno.ENOENT):
                _count(attachment, error, len(places))
                return
            half = len(places) // 2
            self._link(attachment, path, program, places[:half], is_return, pid)
            self._link(attachment, path, program, places[half:], is_return, pid)
        else:
            (attachment.returns if is_return else attachment.entries).append(link)

    def _open(
        self,
        attachment: Attachment,
        path: str,
        program: str,
        place: Place,
        is_return: bool,
        pid: int,
    ) -> None:
        kind, return_bit = _uprobe_source()
        try:
            event = syscalls.open_uprobe_event(
                path,
                place.offset,
                kind=kind,
                return_bit=return_bit if is_return else None,
                pid=pid or -1,
                counter=place.counter,
            )
        except OSError as error:
            _count(attachment, error, 1)
            return
        try:
            link = syscalls.link_perf_event(self._programs[program], event, place.cookie)
        except OSError as error:
            _count(attachment, error, 1)
        else:
            (attachment.returns if is_return else attachment.entries).append(link)
        finally:
            os.close(event)


def _count(attachment: Attachment, error: OSError, n: int) -> None:
    text = os.strerror(error.errno or 0)
    attachment.n_failed[text] = attachment.n_failed.get(text, 0) + n


@lru_cache(maxsize=1)
def _uprobe_source() -> tuple[int, int]:
    """Perf type of uprobes and the bit that asks for returns."""
    kind = int((_EVENT_SOURCE / "type").read_text())
    text = (_EVENT_SOURCE / "format" / "retprobe").read_text()
    return kind, int(text.strip().removeprefix("config:"))


@lru_cache(maxsize=1)
def returns_survive_seccomp() -> bool:
    """Return whether a process whose system calls are filtered survives a return probe here.

    Tried once on a child made for it: some kernels kill such a process at its first probed return.

    Raises:
        ProbeError: the trial itself could not be made.
    """
    child = subprocess.Popen(
        [sys.executable, "-S", str(Path(__file__).with_name("seccomp_trial.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdin is not None and child.stdout is not None
    link = program = -1
    try:
        words = child.stdout.readline().split()
        if len(words) != 2:
            raise ProbeError("the seccomp self-test could not be started; run 'tracer doctor'")
        path = f"/proc/{child.pid}/map_files/{words[0].decode()}"
        offset = int(words[1])
        is_multi = has_uprobe_multi()
        program = syscalls.load_empty_program(syscalls.ATTACH_UPROBE_MULTI if is_multi else 0)
        if is_multi:
            link = syscalls.link_uprobe_multi(
                program, path, [offset], [0], is_return=True, pid=child.pid
            )
        else:
            kind, bit = _uprobe_source()
            event = syscalls.open_uprobe_event(
                path, offset, kind=kind, return_bit=bit, pid=child.pid
            )
            link = syscalls.link_perf_event(program, event, 0)
            os.close(event)
        child.communicate(b"\n", timeout=_SELF_TEST_TIMEOUT_S)
        return child.returncode == 0
    except OSError as error:
        raise ProbeError(
            f"the seccomp self-test failed ({os.strerror(error.errno or 0)}); run 'tracer doctor'"
        ) from None
    except subprocess.TimeoutExpired:
        return False
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        for descriptor in (link, program):
            if descriptor >= 0:
                os.close(descriptor)
