"""Threads that read DCGM: the lines of ``dcgmi dmon``, or the page of a dcgm-exporter."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from probes.engine.exposition import ExpositionParser
from probes.engine.fetch import Fetcher, FetchError
from probes.gpu.dcgm_fields import DmonParser, read_exporter, read_instances
from probes.probe import ProbeError

SECOND_NS = 1_000_000_000
_RESTART_NS = 10 * SECOND_NS
_LONGEST_RESTART_NS = 300 * SECOND_NS
_JOIN_S = 0.2
#: A dcgmi that prints no values for so long hangs; it needs a few seconds to begin.
_SILENCE_NS = 15 * SECOND_NS
#: An exchange that lasts so long hangs: its own deadline is 2 s.
_OVERDUE_NS = 3 * SECOND_NS
_READ_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 16
_CONFLICT = (
    "another profiler (Nsight, another host engine) may hold the counters: end it, or let go of "
    "them with 'dcgmi profile --pause'"
)

#: Time, device, GPU instance (None: the whole) and values by field number.
Reading = tuple[int, int, int | None, Mapping[int, float | None]]


class Reader(threading.Thread):
    """Common to both readers: losing the source once, and stopping."""

    may_repeat = False

    def __init__(
        self,
        source: str,
        interval_ns: int,
        readings: deque[Reading],
        events: deque[tuple[int, str, str]],
        clock: Callable[[], int],
    ) -> None:
        super().__init__(name="dcgm-reader", daemon=True)
        self.source = source
        self.n_failures = 0
        self.n_other_rows = 0
        self.cost_ns = 0
        self.last_error = ""
        self._interval_ns = interval_ns
        self._readings = readings
        self._events = events
        self._clock = clock
        self._stop_event = threading.Event()
        self._is_lost = False
        #: Begin of an exchange, whose deadline does not cover the look-up of a name.
        self._busy_since: int | None = None

    def lose(self, reason: str) -> None:
        """Report the loss of the source, once until it recovers."""
        self.n_failures += 1
        self.last_error = reason
        if not self._is_lost and not self._stop_event.is_set():
            self._is_lost = True
            detail = f"DCGM cannot be read: {reason}."
            self._events.append((self._clock(), "source_lost", detail))

    def look(self, now_ns: int) -> None:
        """Report the source as lost where its thread hangs in what cannot be ended."""
        since = self._busy_since
        if since is not None and now_ns - since > _OVERDUE_NS and not self._is_lost:
            self.lose("no whole answer in time")

    def found(self) -> None:
        """Report the recovery of the source, if it was lost."""
        if self._is_lost:
            self._is_lost = False
            self.last_error = ""
            self._events.append((self._clock(), "source_recovered", "DCGM is readable again."))


class DmonReader(Reader):
    """Runs ``dcgmi dmon`` and reads its lines; runs it again when it ends."""

    def __init__(
        self,
        command: tuple[str, ...],
        fields: tuple[int, ...],
        interval_ns: int,
        readings: deque[Reading],
        events: deque[tuple[int, str, str]],
        clock: Callable[[], int],
    ) -> None:
        super().__init__("dcgmi dmon", interval_ns, readings, events, clock)
        self._fields = fields
        period_ms = max(interval_ns // 1_000_000, 100)
        numbers = ",".join(str(number) for number in fields)
        self._command = (*command, "dmon", "-e", numbers, "-d", str(period_ms))
        self._child: subprocess.Popen[bytes] | None = None
        self._silence_ns = max(_SILENCE_NS, 5 * interval_ns)
        self._spoke_ns = 0

    def check(self) -> None:
        """Refuse where there is no dcgmi.

        Raises:
            ProbeError: it is not installed.
        """
        if shutil.which(self._command[0]) is None:
            raise ProbeError(
                f"there is no '{self._command[0]}' here; install datacenter-gpu-manager, or give "
                "the URL of a dcgm-exporter"
            )

    def run(self) -> None:
        """Read until told to stop."""
        pause = _RESTART_NS
        while not self._stop_event.is_set():
            n_read = self._run_once()
            self.cost_ns = time.thread_time_ns()
            pause = _RESTART_NS if n_read else min(2 * pause, _LONGEST_RESTART_NS)
            self._stop_event.wait(pause / 1e9)

    def stop(self) -> None:
        """End the child, and the thread."""
        self._stop_event.set()
        if self._child is not None:
            with contextlib.suppress(OSError):
                self._child.kill()
        if self.is_alive():
            self.join(_JOIN_S)

    def _run_once(self) -> int:
        """Run dcgmi until it ends; tells how many rows it printed."""
        parser = DmonParser(self._fields)
        n_read = 0
        try:
            child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            self.lose(f"dcgmi cannot be run ({error.strerror})")
            return 0
        self._child = child
        if self._stop_event.is_set():
            child.kill()
        assert child.stdout is not None
        fault = ""
        with child.stdout:
            for line in self._lines(child.stdout.fileno()):
                if line is None:
                    fault = f"dcgmi has printed no values for {self._silence_ns / 1e9:g} s"
                    break
                row = parser.feed(line)
                if row is None:
                    continue
                self._spoke_ns = self._clock()
                if row.entity != "GPU":
                    self.n_other_rows += 1
                    continue
                self.found()
                n_read += 1
                self._readings.append((self._spoke_ns, row.index, None, row.values))
                self.cost_ns = time.thread_time_ns()
        if fault and not self._stop_event.is_set():
            self.lose(fault)
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
        code = child.wait()
        if not self._stop_event.is_set() and not fault:
            self.lose(self._reason(parser.errors, code))
        return n_read

    def _lines(self, descriptor: int) -> Iterator[str | None]:
        """Lines as they are printed; None, at last, when no values came for too long."""
        held = b""
        # select() refuses the descriptors of a process with many files.
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        self._spoke_ns = self._clock()
        while not self._stop_event.is_set():
            left = self._spoke_ns + self._silence_ns - self._clock()
            if left <= 0:
                yield None
                return
            if not waiting.poll(left / 1e6):
                continue
            data = os.read(descriptor, _READ_BYTES)
            *lines, held = (held + data).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in lines)
            held = held[-_MAX_LINE_BYTES:]
            if not data:
                return

    @staticmethod
    def _reason(errors: Sequence[str], code: int) -> str:
        """Why dcgmi ended, with what to do about a conflict over the counters."""
        if not errors:
            return f"dcgmi ended with code {code}"
        text = errors[-1][:200]
        return (
            f"dcgmi says '{text}'; {_CONFLICT}" if "Profiling" in text else f"dcgmi says '{text}'"
        )


class ExporterReader(Reader):
    """Reads the page of a dcgm-exporter."""

    may_repeat = True

    def __init__(
        self,
        url: str,
        uuids: Mapping[str, int] | None,
        interval_ns: int,
        readings: deque[Reading],
        events: deque[tuple[int, str, str]],
        clock: Callable[[], int],
    ) -> None:
        super().__init__(url, interval_ns, readings, events, clock)
        self._uuids = uuids
        self._parser = ExpositionParser()
        self._fetcher: Fetcher | None = None

    def check(self) -> None:
        """Refuse what is no URL.

        Raises:
            ProbeError: the URL cannot be fetched at all.
        """
        try:
            self._fetcher = Fetcher(self.source, clock=self._clock)
        except FetchError as error:
            raise ProbeError(f"{error}; give http://HOST:9400/metrics") from None

    def run(self) -> None:
        """Read until told to stop."""
        while not self._stop_event.is_set():
            begin = self._clock()
            self._read()
            self.cost_ns = time.thread_time_ns()
            self._stop_event.wait(max(begin + self._interval_ns - self._clock(), 0) / 1e9)

    def stop(self) -> None:
        """End the exchange under way, and the thread."""
        self._stop_event.set()
        if self._fetcher is not None:
            self._fetcher.abort()
        if self.is_alive():
            self.join(_JOIN_S)

    def _read(self) -> None:
        """Read the page once."""
        assert self._fetcher is not None
        self._busy_since = self._clock()
        try:
            page = self._fetcher.get()
        except FetchError as error:
            self.lose(str(error))
            return
        finally:
            self._busy_since = None
        parsed = self._parser.parse(page.text)
        devices = read_exporter(parsed, self._uuids)
        if not devices or not parsed.is_complete:
            broke = "the page broke off in the middle of a line"
            self.lose(broke if devices else "the page has no GPU metrics of DCGM")
            return
        self.found()
        time_ns = page.start_ns + page.duration_ns // 2
        for device, values in sorted(devices.items()):
            self._readings.append((time_ns, device, None, values))
        for (device, instance), values in sorted(read_instances(parsed, self._uuids).items()):
            self._readings.append((time_ns, device, instance, values))
