"""Evaluates the triggers of a recording each second, and watches for a hang of its own accord."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from probes.probe import Batch
from tracer.call_progress import CallProgress
from tracer.captures import Capture, Captures
from tracer.hang_watch import HangWatch
from tracer.live import QUIET
from tracer.readings import Readings
from tracer.trigger_grammar import ANY_FINDING, HANG, XID, Trigger
from tracer.watching import Moment

SECOND_NS = 1_000_000_000
#: A trigger that fired must not have held for so long before it fires again.
REARM_NS = 30 * SECOND_NS
#: How often the whole is analysed for ``any finding``, over this much time.
FINDING_PERIOD_NS = 60 * SECOND_NS
#: A hang is looked for in this much time before.
HANG_NS = 120 * SECOND_NS
#: Causes that an open call may prove.
HANG_CAUSES = ("hang.collective", "hang.hardware", "hang.kernel")


@dataclass
class _State:
    """Whether a trigger is armed, and since when it has not held."""

    is_armed: bool = True
    quiet_since_ns: int | None = None


class Triggers:
    """Fires captures.

    Args:
        triggers: What was asked for.
        captures: Makes the captures.
        flush: Asks that what was recorded so far goes to the disk now.
    """

    def __init__(
        self, triggers: Sequence[Trigger], captures: Captures, flush: Callable[[], None]
    ) -> None:
        self._triggers: list[Trigger] = []
        self._states: dict[str, _State] = {}
        self.change(triggers)
        self._captures = captures
        self._flush = flush
        self._progress = CallProgress()
        self._readings = Readings()
        self._hangs = HangWatch(self._progress)
        self._xids: list[str] = []
        self._analysis: _Analysis | None = None
        self._finding_due_ns = 0
        self._told: dict[str, int] = {}

    def change(self, triggers: Sequence[Trigger]) -> None:
        """Watch for other triggers from now on; one that stays is not armed anew."""
        self._triggers = [trigger for trigger in triggers if trigger.word != HANG]
        self._states = {
            trigger.text: self._states.get(trigger.text, _State()) for trigger in self._triggers
        }

    def observe(self, batch: Batch, now_ns: int) -> None:
        """Take note of rows."""
        self._progress.observe(batch)
        self._readings.observe(batch, now_ns)
        if batch.table.name == "event":
            kinds, details = batch.rows.column("kind"), batch.rows.column("detail")
            for kind, detail in zip(kinds.to_pylist(), details.to_pylist(), strict=True):
                if kind == "xid":
                    self._xids.append(detail or "an Xid was logged.")

    def look(self, moment: Moment) -> Sequence[Batch]:
        """Fire what holds; return a row of ``event`` for each."""
        self._progress.settle()
        if self._progress.submitted_ns is not None:
            self._readings.note_progress(self._progress.submitted_ns)
        fired = [*self._finished(moment.now_ns)]
        xids, self._xids = self._xids, []
        for trigger in self._triggers:
            why = self._why(trigger, moment, xids)
            if self._is_new(trigger, why is not None, moment.now_ns) and why is not None:
                fired.append(self._fire(trigger.text, why, moment.now_ns))
        self._begin_analysis(moment.now_ns)
        return fired

    def _why(self, trigger: Trigger, moment: Moment, xids: Sequence[str]) -> str | None:
        """One sentence on why a trigger holds now; None where it does not."""
        if trigger.word == XID:
            return " ".join(xids[:3]) or None
        if trigger.word:
            return None
        now_ns, status = moment.now_ns, moment.status()
        said = []
        if trigger.no_progress_ns is not None:
            stalled_ns = self._readings.stalled_ns(now_ns, status)
            if stalled_ns is None or stalled_ns < trigger.no_progress_ns:
                return None
            said.append(f"no launch and no token for {stalled_ns / 1e9:.0f} s with work asked for")
        for condition in trigger.conditions:
            value = self._readings.value(condition.quantity, now_ns, status)
            if value is None or not condition.holds(value):
                return None
            said.append(f"{condition.quantity} is {value:.4g}")
        return "; ".join(said) + "."

    def _is_new(self, trigger: Trigger, holds: bool, now_ns: int) -> bool:
        """Whether a trigger that holds is to fire, rather than being the one that fired before."""
        state = self._states[trigger.text]
        if not holds:
            if state.quiet_since_ns is None:
                state.quiet_since_ns = now_ns
            if now_ns - state.quiet_since_ns >= REARM_NS:
                state.is_armed = True
            return False
        state.quiet_since_ns = None
        was_armed, state.is_armed = state.is_armed, False
        return was_armed or trigger.word == XID

    def _fire(
        self, name: str, why: str, now_ns: int, finding: dict[str, Any] | None = None
    ) -> Batch:
        self._flush()
        return self._captures.fire(Capture(name, now_ns, why, self._progress.evidence(), finding))

    def _begin_analysis(self, now_ns: int) -> None:
        """Let the analyzers look at an open call, or, for ``any finding``, at the last minute."""
        if self._analysis is not None:
            return
        suspect = self._hangs.look(now_ns)
        if suspect is not None:
            self._flush()
            self._analysis = _Analysis(self._captures, now_ns, HANG_NS, HANG_CAUSES, suspect)
        elif self._finding_due_ns <= now_ns and any(
            trigger.word == ANY_FINDING for trigger in self._triggers
        ):
            if self._finding_due_ns:
                self._flush()
                self._analysis = _Analysis(self._captures, now_ns, FINDING_PERIOD_NS, ())
            self._finding_due_ns = now_ns + FINDING_PERIOD_NS

    def _finished(self, now_ns: int) -> list[Batch]:
        """Fire what an analysis found, once it has ended."""
        analysis = self._analysis
        if analysis is None or analysis.is_running:
            return []
        self._analysis = None
        found = analysis.found
        if found is None or found["verdict"]["status"] != "found":
            return []
        verdict = found["verdict"]
        if analysis.suspect is not None:
            self._hangs.settle(int(analysis.suspect["call_id"]))
        elif verdict["cause"] in QUIET or self._was_told(verdict["cause"], now_ns):
            return []
        return [self._fire(verdict["cause"], verdict["text"], now_ns, found)]

    def _was_told(self, cause: str, now_ns: int) -> bool:
        """Whether a cause was found by the look before too; it is told once while it lasts."""
        before_ns, self._told[cause] = self._told.get(cause), now_ns
        return before_ns is not None and now_ns - before_ns < 3 * FINDING_PERIOD_NS

    def close(self) -> Sequence[Batch]:
        """Leave what runs in the background."""
        return self._captures.close()


class _Analysis:
    """One analysis in the background."""

    def __init__(
        self,
        captures: Captures,
        now_ns: int,
        length_ns: int,
        causes: Sequence[str],
        suspect: dict[str, Any] | None = None,
    ) -> None:
        self.suspect = suspect
        self.found: dict[str, Any] | None = None

        def work() -> None:
            self.found = captures.analyse_soon(now_ns - length_ns, now_ns, causes)

        self._thread = threading.Thread(target=work, name="analysis", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no room for a thread: the next look tries again
            return

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._thread.is_alive()
