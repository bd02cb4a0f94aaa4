"""One probe inside a recording: its state, when it is due, what it cost and what it lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from analysis.manifest import Source
from analysis.schema import LOSS
from probes.probe import Batch, Probe, ProbeError, SourceReport, make_batch, remedy


@dataclass
class SourceSlot:
    """Drives one probe and never lets its failure end the recording.

    ``state`` is waiting, ok, unavailable (never ran) or lost (ran, and failed).
    """

    probe: Probe
    state: str = "waiting"
    note: str = ""
    due_ns: int = 0
    cpu_ns: int = 0
    longest_drain_ns: int = 0
    n_rows: int = 0
    _n_lost_told: int = 0

    def start(self) -> None:
        """Start the probe; where it cannot run its state becomes unavailable, with the reason."""
        begin_ns = time.thread_time_ns()
        try:
            self.probe.start()
            self.state = "ok"
        except ProbeError as error:
            self.state, self.note = "unavailable", str(error)
        except Exception as error:  # noqa: BLE001 - a probe's bug must not end the recording
            self.state, self.note = "unavailable", _bug(error)
        self.cpu_ns += time.thread_time_ns() - begin_ns

    def drain(self, now_ns: int) -> list[Batch]:
        """Return what became complete; a probe that fails is lost from here on."""
        # On a common beat, so that sources of one rate are drained at one waking.
        self.due_ns = now_ns - now_ns % self.probe.period_ns + self.probe.period_ns
        begin_ns = time.monotonic_ns()
        batches = self._collect(self.probe.drain, now_ns)
        self.longest_drain_ns = max(self.longest_drain_ns, time.monotonic_ns() - begin_ns)
        return batches

    def stop(self) -> list[Batch]:
        """Stop the probe and return what was left; may be called from another thread."""
        return self._collect(self.probe.stop)

    def _collect(self, call: Callable[..., Iterable[Batch]], *arguments: int) -> list[Batch]:
        batches: list[Batch] = []
        begin_ns = time.thread_time_ns()
        try:
            # Rows that came before a failure are kept.
            batches.extend(call(*arguments))
        except ProbeError as error:
            self.state, self.note = "lost", str(error)
        except Exception as error:  # noqa: BLE001 - a probe's bug must not end the recording
            self.state, self.note = "lost", _bug(error)
        self.cpu_ns += time.thread_time_ns() - begin_ns
        for batch in batches:
            self.n_rows += batch.rows.num_rows
        return batches

    @property
    def is_running(self) -> bool:
        """Whether it delivers rows."""
        return self.state == "ok"

    def report(self) -> SourceReport:
        """Return the probe's own report, or an empty one where it cannot give any."""
        if self.state != "unavailable":
            try:
                return self.probe.report()
            except Exception as error:  # noqa: BLE001 - a probe's bug must not end the recording
                return SourceReport(
                    self.probe.name, self.n_rows, self._n_lost_told, note=_bug(error)
                )
        return SourceReport(self.probe.name, 0, 0)

    def loss_batch(self, now_ns: int) -> Batch | None:
        """Return a row about losses since the last call, unless the probe tells them itself."""
        n_lost = self.report().n_lost
        n_new, self._n_lost_told = n_lost - self._n_lost_told, n_lost
        if n_new <= 0 or LOSS in self.probe.tables:
            return None
        return make_batch(
            LOSS,
            {
                "time_ns": [now_ns],
                "source": [self.probe.name],
                "reason": ["reported"],
                "n_lost": [n_new],
            },
        )

    def source(self) -> Source:
        """Return the entry of the manifest."""
        report = self.report()
        is_worse = bool(report.n_lost or report.note)
        state = "degraded" if self.state == "ok" and is_worse else self.state
        details = dict(report.details or {})
        details["drain_cpu_ns"] = self.cpu_ns
        details["longest_drain_ns"] = self.longest_drain_ns
        return Source(
            name=self.probe.name,
            state="ok" if state == "waiting" else state,
            tables=[table.name for table in self.probe.tables],
            n_rows=self.n_rows,
            n_lost=report.n_lost,
            period_ns=self.probe.period_ns,
            cost_ns=report.cost_ns if report.cost_ns is not None else self.cpu_ns,
            note=self.note or report.note,
            details=details,
        )


def _bug(error: Exception) -> str:
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and "start new thread" in str(error)
    ):
        return (
            "There was no room for a thread or for memory; raise the limits (ulimit -v, -u). "
            "The recording went on without it."
        )
    if isinstance(error, OSError) and (mend := remedy(error, "")):
        return f"It lacked room ({error.strerror}); {mend}. The recording went on without it."
    return (
        f"It failed unexpectedly ({type(error).__name__}: {error}); please report this as a "
        "defect. The recording went on without it."
    )
