"""The probe of the kernel's log: Xid errors of the GPU driver, lost GPUs, killed and hung tasks.

Lines are read from ``/dev/kmsg`` without waiting. What was logged before the recording began is
reported too (a hang is often attached to after its Xid), as observed at the begin.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from analysis.schema import EVENT, LOSS, Table
from probes.host.buffer import SECOND_NS
from probes.probe import Batch, ProbeError, SourceReport, make_batch, remedy

#: Where the kernel's log is read.
KMSG = Path("/dev/kmsg")
#: Longest text of a line that is kept.
MAX_TEXT = 240
#: Most records read at one drain.
MAX_RECORDS = 10_000
#: Of what was logged before, only this much is reported.
MAX_AGE_NS = 24 * 3600 * SECOND_NS

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?$")
_XID_PID = re.compile(r"\bpid='?(\d+)'?")
_OFF_BUS = re.compile(
    r"NVRM: .*\b((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?)?.*fallen off the bus"
)
_OOM = re.compile(
    r"(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process (\d+) \(([^)]*)\)"
)
_HUNG = re.compile(r"INFO: task (.+):(\d+) blocked for more than (\d+) seconds")


class KernelLogProbe:
    """Reads the kernel's log for what concerns a GPU service.

    Args:
        device: The log.
        clock: CLOCK_MONOTONIC in ns.
    """

    def __init__(self, device: Path = KMSG, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.name = "kernel_log"
        self.tables: Sequence[Table] = (EVENT, LOSS)
        self.period_ns = SECOND_NS
        self._device = device
        self._clock = clock
        self._descriptor: int | None = None
        self._start_ns = 0
        #: Until when all lines were read; None while there are lines of before the recording.
        self._emptied_ns: int | None = None
        self._old_events: list[dict[str, Any]] = []
        self._old_lost = 0
        self._sequence: int | None = None
        self._n_rows = 0
        self._n_lost = 0
        self._cost_ns = 0

    def start(self) -> None:
        """Open the log.

        Raises:
            ProbeError: it cannot be read here.
        """
        try:
            self._descriptor = os.open(self._device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise ProbeError(
                f"the kernel's log {self._device} cannot be read ({error.strerror}), so Xid "
                f"errors are not seen; {remedy(error, 'run as root on the host')}"
            ) from None
        self._start_ns = self._clock()
        self._old_events, self._old_lost = self._read(self._start_ns)

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Return an event for each line of interest since the last call; never waits."""
        if self._descriptor is None:
            return []
        begin = time.thread_time_ns()
        events, lost = self._read(now_ns)
        events, self._old_events = [*self._old_events, *events], []
        lost, self._old_lost = lost + self._old_lost, 0
        batches = self._batches(events, lost, now_ns)
        self._cost_ns += time.thread_time_ns() - begin
        return batches

    def _read(self, now_ns: int) -> tuple[list[dict[str, Any]], int]:
        """Events of the lines since the last call, and how many lines were lost.

        A line was written between the last time that nothing was left and now, whatever it says:
        the kernel stamps with a clock that nobody corrects, seconds off after weeks.
        """
        events: list[dict[str, Any]] = []
        lost = 0
        is_empty = False
        assert self._descriptor is not None
        for _ in range(MAX_RECORDS):
            try:
                record = os.read(self._descriptor, 8192)
            except BlockingIOError:
                is_empty = True
                break
            except BrokenPipeError:
                # Records were overwritten unread: the sequence numbers will tell how many.
                continue
            except OSError:
                break
            if not record:
                is_empty = True
                break
            for line in record.decode("utf-8", "replace").splitlines():
                lost += self._line(line, now_ns, events)
        if is_empty:
            self._emptied_ns = now_ns
        return events, lost

    def stop(self) -> Iterable[Batch]:
        """Close the log and return what is left."""
        batches = list(self.drain(self._clock()))
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
        return batches

    def report(self) -> SourceReport:
        """Return how many lines were of interest, and how many were overwritten unread."""
        return SourceReport(self.name, self._n_rows, self._n_lost, self._cost_ns)

    def _line(self, line: str, now_ns: int, events: list[dict[str, Any]]) -> int:
        """Take one line of a record; tells how many records were lost before it."""
        head, mark, text = line.partition(";")
        fields = head.split(",")
        if not mark or len(fields) < 3 or not (fields[1].isdecimal() and fields[2].isdecimal()):
            return 0
        sequence = int(fields[1])
        lost = 0
        if self._sequence is not None and sequence > self._sequence + 1:
            lost = sequence - self._sequence - 1
        self._sequence = sequence
        event = parse_line(text)
        if event is not None:
            logged_ns = int(fields[2]) * 1000
            if self._emptied_ns is None:
                age = max(self._start_ns - logged_ns, 0)
                if age > MAX_AGE_NS:
                    return lost
                event["detail"] += f" (logged {age / 1e9:.0f} s before the recording began)"
            event["time_ns"] = min(max(logged_ns, self._emptied_ns or self._start_ns), now_ns)
            events.append(event)
        return lost

    def _batches(self, events: list[dict[str, Any]], lost: int, now_ns: int) -> list[Batch]:
        batches = []
        if events:
            columns = {key: [event.get(key) for event in events] for key in EVENT.column_names}
            batches.append(make_batch(EVENT, columns))
            self._n_rows += len(events)
        if lost:
            self._n_lost += lost
            columns = {
                "time_ns": [now_ns],
                "source": [self.name],
                "reason": ["ring_full"],
                "n_lost": [lost],
                "detail": ["The kernel overwrote log lines unread: an Xid may be missing."],
            }
            batches.append(make_batch(LOSS, columns))
        return batches


def was_killed_for_memory(pid: int, since_ns: int, device: Path = KMSG) -> bool:
    """Return whether the kernel says that it killed a process for lack of memory.

    Args:
        pid: The process, as the host numbers it.
        since_ns: What was logged before is about another process of that number, CLOCK_MONOTONIC.
        device: The log; one that cannot be read says nothing.
    """
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        while True:
            try:
                record = os.read(descriptor, 8192)
            except BrokenPipeError:
                continue  # records were overwritten unread
            except OSError:
                return False
            if not record:
                return False
            lines = record.decode("utf-8", "replace").splitlines()
            if any(_is_kill(line, pid, since_ns) for line in lines):
                return True
    finally:
        os.close(descriptor)


def _is_kill(line: str, pid: int, since_ns: int) -> bool:
    head, _, text = line.partition(";")
    fields = head.split(",")
    match = _OOM.search(text)
    if match is None or int(match[1]) != pid or len(fields) < 3 or not fields[2].isdecimal():
        return False
    return int(fields[2]) * 1000 >= since_ns


def parse_line(text: str) -> dict[str, Any] | None:
    """Return the columns of an event (without its time) for one line; None when of no interest."""
    match = _XID.search(text)
    if match is not None:
        rest = match[3] or ""
        process = _XID_PID.search(rest)
        detail = f"Xid {match[2]} on GPU {match[1]}: {rest or 'no text'}"
        return _event("xid", f"xid {match[2]}", detail, int(process[1]) if process else None)
    if "fallen off the bus" in text:
        match = _OFF_BUS.search(text)
        if match is not None:
            where = f" {match[1]}" if match[1] else ""
            return _event("xid", "fallen off the bus", f"GPU{where} has fallen off the bus: {text}")
    match = _OOM.search(text)
    if match is not None:
        detail = f"The kernel killed {match[2]} for lack of memory"
        return _event("other", "oom_kill", detail, int(match[1]))
    match = _HUNG.search(text)
    if match is not None:
        detail = f"Task {match[1]} was blocked for more than {match[3]} s"
        return _event("other", "hung_task", detail, None, int(match[2]))
    return None


def _event(
    kind: str, name: str, detail: str, pid: int | None = None, tid: int | None = None
) -> dict[str, Any]:
    return {"kind": kind, "name": name, "detail": detail[:MAX_TEXT], "pid": pid, "tid": tid}
