"""What happens when a trigger fires: the detail around it is kept, evidence gathered, a verdict
made, and a command told. One thread does it in the background; the recording goes on.

Each capture is a folder ``captures/NNN-NAME`` of the session with ``trigger.json``,
``evidence.json`` and, once it is known, ``finding.json``.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.schema import EVENT
from probes.probe import Batch, make_batch
from tracer import live
from tracer.evidence import process_evidence
from tracer.live import kill_group
from tracer.segments import replace_file

FOLDER = "captures"
SECOND_NS = 1_000_000_000
HOUR_NS = 3600 * SECOND_NS
#: The verdict of a capture is about this much time before it.
VERDICT_NS = 60 * SECOND_NS
#: Rows need a moment from the recorder to the disk.
SETTLE_S = 0.5
COMMAND_TIMEOUT_S = 60.0
#: Captures that wait for the background thread; more are only noted.
MAX_WAITING = 4


@dataclass(frozen=True)
class CaptureOptions:
    """How captures are made.

    Attributes:
        before_ns: Time before a capture whose detail is kept.
        after_ns: Time after it whose detail is kept.
        per_hour: Most captures in an hour.
        on_finding: Command of a shell that gets the finding as JSON on its standard input; None
            for none.
    """

    before_ns: int = 120 * SECOND_NS
    after_ns: int = 60 * SECOND_NS
    per_hour: int = 6
    on_finding: str | None = None


@dataclass(frozen=True)
class Capture:
    """One firing: its name, when (CLOCK_MONOTONIC), one sentence, and what is known already."""

    name: str
    time_ns: int
    why: str
    evidence: dict[str, Any] = field(default_factory=dict)
    finding: dict[str, Any] | None = None


class Captures:
    """Makes the captures of one session.

    Args:
        session: The session's directory.
        options: How.
        pids: Returns the processes that are looked at.
        pin: Keeps the detail between two times.
        say: Tells the person one line.
        look_closer: Called with the time of each capture, ns.
    """

    def __init__(
        self,
        session: Path,
        options: CaptureOptions,
        pids: Callable[[], Iterable[int]],
        pin: Callable[[int, int], None],
        say: Callable[[str], None],
        look_closer: Sequence[Callable[[int], None]] = (),
    ) -> None:
        self._session = session
        self._options = options
        self._pids = pids
        self._pin = pin
        self._say = say
        self._look_closer = look_closer
        self._times: deque[int] = deque()
        self._queue: queue.Queue[tuple[int, Capture]] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._children: set[subprocess.Popen[bytes]] = set()
        #: Captures whose verdict is not made yet, by number.
        self._unfinished: dict[int, Capture] = {}
        self._is_closed = False
        #: Captures made, and firings that were not for want of leave.
        self.n_captures = 0
        self.n_refused = 0
        #: What the last verdict said: cause, confidence, text.
        self.last_verdict: dict[str, Any] | None = None

    def change(self, options: CaptureOptions) -> None:
        """Make captures by other options from now on."""
        self._options = options

    def fire(self, capture: Capture) -> Batch:
        """Begin a capture and return its row of ``event``; beyond the most per hour only that."""
        now_ns = capture.time_ns
        while self._times and self._times[0] <= now_ns - HOUR_NS:
            self._times.popleft()
        if len(self._times) >= self._options.per_hour:
            self.n_refused += 1
            return self._event(capture, f"{capture.why} No capture: the most per hour are made.")
        self._times.append(now_ns)
        self.n_captures += 1
        self._pin(now_ns - self._options.before_ns, now_ns + self._options.after_ns)
        self._say(f"{capture.name}: {capture.why}")
        for look_closer in self._look_closer:
            look_closer(now_ns)
        self._start_thread()
        with self._lock:
            self._unfinished[self.n_captures] = capture
        try:
            self._queue.put_nowait((self.n_captures, capture))
        except queue.Full:
            with self._lock:
                del self._unfinished[self.n_captures]
            return self._event(capture, f"{capture.why} Its evidence was not gathered: too many.")
        return self._event(capture, capture.why)

    def _event(self, capture: Capture, detail: str, kind: str = "trigger") -> Batch:
        return make_batch(
            EVENT,
            {
                "time_ns": [capture.time_ns],
                "kind": [kind],
                "name": [capture.name],
                "detail": [detail],
            },
        )

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="captures", daemon=True)
            with contextlib.suppress(RuntimeError):  # no room for a thread: the detail is kept
                self._thread.start()

    def _work(self) -> None:
        while not self._is_closed:
            number, capture = self._queue.get()
            try:
                self._make(number, capture)
            except OSError as error:
                if self._finish(number):
                    reason = error.strerror or error
                    self._say(f"{capture.name}: its capture could not be written ({reason}).")

    def _make(self, number: int, capture: Capture) -> None:
        folder = self._session / FOLDER / f"{number:03d}-{_slug(capture.name)}"
        # Not the session itself: where it was removed or moved, it is not to come back.
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        told = {"name": capture.name, "time_ns": capture.time_ns, "why": capture.why}
        _write(folder / "trigger.json", {**told, "realtime_s": time.time()})
        evidence = {**capture.evidence, "processes": process_evidence(self._pids())}
        _write(folder / "evidence.json", evidence)
        finding = capture.finding or self._verdict(capture.time_ns)
        if not self._finish(number):
            return  # the recording ended, and it was told so
        result = {**told, "session": str(self._session), "capture": str(folder)}
        result["result"] = finding
        _write(folder / "finding.json", result)
        if finding is not None:
            verdict = self.last_verdict = finding["verdict"]
            self._say(
                f"{verdict['cause']} ({100 * verdict['confidence']:.0f} % sure): {verdict['text']} "
                f"Kept in {folder}."
            )
        else:
            self._say(f"{capture.name}: the analysis failed; no verdict. Kept in {folder}.")
        if self._options.on_finding is not None:
            self._tell(self._options.on_finding, result)

    def _finish(self, number: int) -> bool:
        """Whether a capture was still awaited; it is not any more."""
        with self._lock:
            return self._unfinished.pop(number, None) is not None

    def _verdict(self, time_ns: int) -> dict[str, Any] | None:
        return self.analyse_soon(time_ns - VERDICT_NS, time_ns)

    def analyse_soon(
        self, start_ns: int, end_ns: int, causes: Sequence[str] = ()
    ) -> dict[str, Any] | None:
        """Return what a process of its own finds in a part of the session, once its rows are on
        disk; None if it fails.
        """
        time.sleep(SETTLE_S)
        try:
            child = self._start(lambda: live.start(self._session, start_ns, end_ns, causes))
        except OSError:
            return None
        if child is None:
            return None
        try:
            return live.result(child)
        finally:
            self._forget(child)

    def _tell(self, command: str, result: dict[str, Any]) -> None:
        """Run the command of ``--on-finding``; nothing that it started outlives its time."""
        try:
            child = self._start(lambda: _start_shell(command))
        except OSError as error:
            self._say(f"The command of --on-finding did not run ({type(error).__name__}).")
            return
        if child is None:
            return
        told = json.dumps(result, default=str).encode()
        try:
            child.communicate(told, timeout=COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            kill_group(child)
            child.wait()
            self._say(f"The command of --on-finding was ended after {COMMAND_TIMEOUT_S:.0f} s.")
            return
        finally:
            self._forget(child)
        if self._is_closed:
            self._say("The command of --on-finding was ended with the recording.")
        elif child.returncode:
            self._say(f"The command of --on-finding ended with exit status {child.returncode}.")

    def _start(
        self, begin: Callable[[], subprocess.Popen[bytes]]
    ) -> subprocess.Popen[bytes] | None:
        """Start a process that :meth:`close` ends; None once the captures are closed.

        Raises:
            OSError: it could not be started.
        """
        with self._lock:
            if self._is_closed:
                return None
            child = begin()
            self._children.add(child)
            return child

    def _forget(self, child: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._children.discard(child)

    def close(self) -> Sequence[Batch]:
        """Leave what is not done yet, say so, and return its rows of ``event``; files are whole or
        absent.
        """
        with self._lock:
            self._is_closed = True
            for child in self._children:
                kill_group(child)
            unfinished = [*self._unfinished.values()]
            self._unfinished.clear()
        for capture in unfinished:
            self._say(
                f"{capture.name}: the recording ended before its verdict was made"
                f"{', so --on-finding was not called' if self._options.on_finding else ''}; "
                f"make it with: tracer analyze {self._session}"
            )
        detail = "The recording ended before the verdict of this trigger was made."
        return [self._event(capture, detail, "other") for capture in unfinished]


def _start_shell(command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        shell=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _slug(name: str) -> str:
    words = "".join(letter if letter.isalnum() or letter in "._" else " " for letter in name)
    return "-".join(words.split())[:60] or "trigger"


def _write(path: Path, content: Any) -> None:
    replace_file(path, json.dumps(content, indent=1, default=str).encode() + os.linesep.encode())
