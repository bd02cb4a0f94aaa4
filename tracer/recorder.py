"""The life of one recording: start the probes, drain them, follow the target, end cleanly.

One thread does everything here; only the session writer has another, and probes that talk to
something slow have their own. A probe that cannot run or fails is a source that is missing, never
the end of the recording.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from types import FrameType

from analysis.manifest import Gpu, Manifest, ProbedFunction, Source, Target
from analysis.schema import EVENT
from probes.clocks import (
    Anchor,
    ClockAnchors,
    ClockReaders,
    anchor_batch,
    change_batch,
    read_anchor,
)
from probes.probe import Batch, Detaching, Probe, make_batch
from probes.targets import TargetChange, TargetTree
from tracer.host_facts import host_facts
from tracer.lean_heap import collect_garbage_seldom
from tracer.session import SessionWriter
from tracer.simulated.build import is_simulated_library
from tracer.sources import SourceSlot
from tracer.status import Status, StatusMeter
from tracer.watching import Moment, Watcher

SECOND_NS = 1_000_000_000
#: How often the clocks are read together, and the manifest is replaced.
ANCHOR_NS = 5 * SECOND_NS
MANIFEST_NS = 3 * SECOND_NS
#: How often due segments are closed.
FLUSH_NS = SECOND_NS // 2
#: The files are closed after this even where a probe is still being detached.
STOP_NS = 1_200_000_000


class Recorder:
    """Records until it is stopped, the duration is over or the target has ended.

    Args:
        probes: Sources, in the order in which they are started.
        writer: Session to write; its manifest is filled in here.
        tree: Processes that are recorded.
        root_pids: The recording ends when all of these have ended.
        duration_ns: Longest recording; None is without end.
        anchors: Readings of the clocks.
        watchers: See all rows, and look at the recording each second.
        is_following: Whether the recording outlives its roots (:meth:`add_root`).
        on_status: Gets the status each second.
    """

    def __init__(
        self,
        probes: Sequence[Probe],
        writer: SessionWriter,
        tree: TargetTree,
        *,
        root_pids: Sequence[int] = (),
        duration_ns: int | None = None,
        anchors: ClockAnchors | None = None,
        watchers: Sequence[Watcher] = (),
        is_following: bool = False,
        on_status: Callable[[Status], None] | None = None,
    ) -> None:
        self._slots = [SourceSlot(probe) for probe in probes]
        self._writer = writer
        self._manifest = writer.manifest
        self._tree = tree
        self._roots = {pid: os.pidfd_open(pid) for pid in root_pids}
        self._duration_ns = duration_ns
        self._anchors = anchors or ClockAnchors()
        self._watchers = watchers
        self._on_status = on_status
        self._meter = StatusMeter()
        self._is_following = is_following
        self._poller = select.poll()
        self._reason: str | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._start_ns = 0
        self._stoppers: list[threading.Thread] = []
        self._collect_as_before: Callable[[], None] = lambda: None
        self._due = {"anchor": 0, "manifest": 0, "flush": 0, "second": 0}

    def stop(self, reason: str) -> None:
        """Ask the recording to end; may be called from a signal handler, and repeatedly."""
        if self._reason is None:
            self._reason = reason
        try:
            os.write(self._wake_write, b"x")
        except (BlockingIOError, OSError):
            return  # it is awake already, or has ended

    def start(self) -> None:
        """Write down host and targets and start every probe; the recording begins after that."""
        self._mark_start()
        self._manifest.host.update(host_facts())
        for slot in self._slots:
            slot.start()
            if not slot.is_running:
                self._notice("source_lost", slot.probe.name, slot.note)
        self._collect_as_before = collect_garbage_seldom()
        self._mark_start()
        self._due["anchor"] = self._start_ns + ANCHOR_NS
        self._update_manifest()
        self._writer.write_manifest()

    def _mark_start(self) -> None:
        """Take the present time as the begin of the recording."""
        anchor = self._read_clocks()
        self._start_ns = anchor.monotonic_ns
        self._manifest.start_ns = anchor.monotonic_ns
        self._manifest.start_realtime_ns = anchor.realtime_ns

    def run(self) -> str:
        """Record until the end and return its reason; :meth:`start` comes before."""
        self._poller.register(self._wake_read, select.POLLIN)
        for descriptor in self._roots.values():
            self._poller.register(descriptor, select.POLLIN)
        while self._reason is None:
            now_ns = time.monotonic_ns()
            if self._duration_ns is not None and now_ns - self._start_ns >= self._duration_ns:
                self._reason = "duration"
                break
            self._step(now_ns)
            timeout_ms = max(self._next_due() - time.monotonic_ns(), 0) / 1e6
            for descriptor, _ in self._poller.poll(timeout_ms):
                self._note_ended_root(descriptor)
        return self._reason

    def finish(self) -> bool:
        """Stop the probes and close the session; return whether all of it reached the disk.

        The files are closed within two seconds: a probe that is still being detached then goes on
        in the background (:meth:`wait_detached`), and what it had left is counted as missing.
        """
        deadline_ns = time.monotonic_ns() + STOP_NS
        for slot in self._slots:
            if slot.is_running:
                self._drain(slot)
        left: dict[str, list[Batch]] = {}
        for slot in self._slots:
            if slot.state in ("ok", "lost"):
                self._stop_in_background(slot, left)
        for thread in self._stoppers:
            thread.join(max(deadline_ns - time.monotonic_ns(), 0) / 1e9)
        for batches in list(left.values()):
            self._append(batches)
        for watcher in self._watchers:
            self._append(watcher.close())
        now_ns = time.monotonic_ns()
        self._follow_targets(now_ns)
        self._read_clocks()
        self._tell_losses(now_ns)
        self._manifest.end_ns = now_ns
        self._manifest.end_reason = self._reason
        self._update_manifest()
        for name in sorted({thread.name for thread in self._stoppers if thread.is_alive()}):
            source = self._manifest.source(name)
            if source is not None:
                source.note = (
                    source.note + " Its last rows are missing: detaching took long."
                ).strip()
        is_complete = self._writer.close()
        for descriptor in (*self._roots.values(), self._wake_read, self._wake_write):
            os.close(descriptor)
        self._roots = {}
        self._wake_write = -1
        self._collect_as_before()
        return is_complete

    def wait_detached(self, timeout_s: float) -> bool:
        """Wait until every probe is gone from the target; return whether they are."""
        deadline = time.monotonic() + timeout_s
        for thread in self._stoppers:
            thread.join(max(deadline - time.monotonic(), 0))
        detaching = [slot.probe for slot in self._slots if isinstance(slot.probe, Detaching)]
        are_gone = [probe.wait_detached(max(deadline - time.monotonic(), 0)) for probe in detaching]
        return all(are_gone) and not any(thread.is_alive() for thread in self._stoppers)

    def status(self) -> Status:
        """Return what the recording looks like now."""
        sources = [*(slot.source() for slot in self._slots), self._writer.source()]
        return self._meter.snapshot(
            time.monotonic_ns(), self._start_ns, sources, self._writer.problem
        )

    def _stop_in_background(self, slot: SourceSlot, left: dict[str, list[Batch]]) -> None:
        def stop() -> None:
            left[slot.probe.name] = slot.stop()

        thread = threading.Thread(target=stop, name=slot.probe.name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no room for another thread: then one after the other
            stop()
            return
        self._stoppers.append(thread)

    def _step(self, now_ns: int) -> None:
        """Do everything that is due."""
        for slot in self._slots:
            if slot.due_ns <= now_ns and slot.is_running:
                self._drain(slot)
        if self._is_due("flush", FLUSH_NS, now_ns):
            self._writer.flush()
        if self._is_due("anchor", ANCHOR_NS, now_ns):
            self._read_clocks()
        if self._is_due("second", SECOND_NS, now_ns):
            self._follow_targets(now_ns)
            self._tell_losses(now_ns)
            self._let_watchers_look(now_ns)
            if self._on_status is not None:
                self._on_status(self.status())
        if self._is_due("manifest", MANIFEST_NS, now_ns):
            self._update_manifest()
            self._writer.write_manifest()

    def _drain(self, slot: SourceSlot) -> None:
        self._append(slot.drain(time.monotonic_ns()))
        if slot.state == "lost":
            self._notice("source_lost", slot.probe.name, slot.note)

    def _is_due(self, name: str, period_ns: int, now_ns: int) -> bool:
        if self._due[name] > now_ns:
            return False
        # On the beat of the sources, so that it is done at one waking with them; but what looks at
        # the last second looks at a whole one.
        late_ns = 0 if name == "second" else now_ns % period_ns
        self._due[name] = now_ns - late_ns + period_ns
        return True

    def _next_due(self) -> int:
        """When something is to be done next, CLOCK_MONOTONIC in ns."""
        next_ns = min(self._due.values())
        for slot in self._slots:
            if slot.due_ns < next_ns and slot.is_running:
                next_ns = slot.due_ns
        if self._duration_ns is not None:
            next_ns = min(next_ns, self._start_ns + self._duration_ns)
        return next_ns

    def _append(self, batches: Sequence[Batch]) -> None:
        now_ns = time.monotonic_ns()
        for batch in batches:
            self._writer.append(batch)
            self._meter.observe(batch, now_ns)
            for watcher in self._watchers:
                watcher.observe(batch, now_ns)

    def _read_clocks(self) -> Anchor:
        anchor, changes = self._anchors.read()
        self._append([anchor_batch(anchor)])
        if changes:
            self._append([change_batch(changes)])
        return anchor

    def add_root(self, pid: int) -> bool:
        """Record a further process from now on; return whether it still runs."""
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return False
        self._roots[pid] = descriptor
        self._poller.register(descriptor, select.POLLIN)
        return True

    @property
    def root_pids(self) -> tuple[int, ...]:
        """The living processes that the recording is about, without their children."""
        return tuple(self._roots)

    def _let_watchers_look(self, now_ns: int) -> None:
        statuses: list[Status] = []

        def status() -> Status:
            if not statuses:
                statuses.append(self.status())
            return statuses[0]

        moment = Moment(now_ns, status, self.stop)
        for watcher in self._watchers:
            self._append(watcher.look(moment))

    def _note_ended_root(self, descriptor: int) -> None:
        if descriptor not in self._roots.values():
            return
        self._poller.unregister(descriptor)
        os.close(descriptor)
        self._roots = {pid: other for pid, other in self._roots.items() if other != descriptor}
        if not self._roots and not self._is_following:
            self.stop("target_ended")

    def _follow_targets(self, now_ns: int) -> None:
        changes = self._tree.refresh(now_ns)
        if changes:
            self._append([change_event_batch(changes)])

    def _tell_losses(self, now_ns: int) -> None:
        for slot in self._slots:
            batch = slot.loss_batch(now_ns)
            if batch is not None:
                self._append([batch])

    def _notice(self, kind: str, name: str, detail: str) -> None:
        row = {"time_ns": [time.monotonic_ns()], "kind": [kind], "name": [name]}
        self._append([make_batch(EVENT, {**row, "detail": [detail]})])

    def _update_manifest(self) -> None:
        """Take over targets, sources and what sources say about the machine."""
        self._manifest.targets = [Target(**asdict(target)) for target in self._tree.targets()]
        sources = [slot.source() for slot in self._slots]
        for source in sources:
            functions = source.details.pop("functions", None)
            if functions is not None:
                self._manifest.functions = [ProbedFunction(**item) for item in functions]
                if any(is_simulated_library(path) for path in {f["library"] for f in functions}):
                    self._manifest.is_simulated = True
            gpus = source.details.pop("gpus", None)
            if gpus is not None:
                self._manifest.gpus = [Gpu(**item) for item in gpus]
            driver = source.details.get("driver_version")
            if driver is not None:
                self._manifest.host["driver_version"] = driver
            if source.details.get("is_simulated"):
                self._manifest.is_simulated = True
        usage = resource.getrusage(resource.RUSAGE_SELF)
        recorder = Source(
            name="recorder",
            state="ok",
            cost_ns=time.process_time_ns(),
            details={"pid": os.getpid(), "max_rss_bytes": usage.ru_maxrss * 1024},
        )
        self._manifest.sources = [*sources, recorder, self._writer.source()]


def first_manifest(tool_version: str) -> Manifest:
    """Return the manifest of a recording that begins now.

    It is on disk before anything else, so that one that is killed at once has a begin too.
    """
    begin = read_anchor(ClockReaders())
    return Manifest(
        tool_version=tool_version,
        start_ns=begin.monotonic_ns,
        start_realtime_ns=begin.realtime_ns,
    )


def change_event_batch(changes: Sequence[TargetChange]) -> Batch:
    """Return one row of table ``event`` per change of the target's processes."""
    return make_batch(
        EVENT,
        {
            "time_ns": [change.time_ns for change in changes],
            "kind": [change.kind for change in changes],
            "pid": [change.pid for change in changes],
            "parent_pid": [change.parent_pid for change in changes],
            "name": [change.name or "" for change in changes],
            "detail": [change.detail for change in changes],
        },
    )


@contextmanager
def stopped_by_signals(
    recorder: Recorder, hang_up: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP end the recording while the body runs.

    A second signal changes nothing: the files are closed all the same.

    Args:
        recorder: What is ended.
        hang_up: Called at SIGHUP; True where that was no reason to end.
    """
    names = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung_up"}

    def handle(number: int, _: FrameType | None) -> None:
        if number != signal.SIGHUP or not hang_up():
            recorder.stop(names[signal.Signals(number)])

    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        del names[signal.SIGHUP]  # run by nohup: the recording outlives its terminal
    before = {number: signal.signal(number, handle) for number in names}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
