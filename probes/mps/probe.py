"""The probe of MPS: stores the audit every few seconds, and whenever the lists of a GPU change.

The audit looks into the file systems of other processes, which may not answer; it runs in a thread
of its own, and the recorder never waits for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from analysis.schema import MPS_CLIENT, Table
from probes.gpu.contexts import ContextBoard, DeviceContexts
from probes.host import proc
from probes.mps.audit import MpsClient, audit
from probes.mps.daemon import DaemonFinder
from probes.probe import Batch, PidSource, SourceReport, make_batch

SECOND_NS = 1_000_000_000
#: Lists older than this are not used again: the driver does not answer.
_STALE_NS = 5 * SECOND_NS
_LOOK_NS = SECOND_NS


class MpsProbe:
    """Stores which processes on the GPUs are in MPS, and why the others are not.

    Args:
        contexts: Where the probe of NVML puts its lists.
        targets: Tells the recorded processes, to mark them.
        root: Where /proc is.
        interval_ns: Longest time between two audits.
        clock: CLOCK_MONOTONIC in ns.
    """

    def __init__(
        self,
        contexts: ContextBoard,
        targets: PidSource,
        root: Path = proc.PROC,
        interval_ns: int = 5 * SECOND_NS,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.name = "mps"
        self.tables: Sequence[Table] = (MPS_CLIENT,)
        self.period_ns = SECOND_NS
        self._contexts = contexts
        self._targets = targets
        self._root = root
        self._interval_ns = interval_ns
        self._clock = clock
        self._finder = DaemonFinder(root)
        self._thread: threading.Thread | None = None
        self._stop_event = threading.Event()
        self._ready: deque[list[dict[str, Any]]] = deque()
        self._busy_since: int | None = None
        self._seen: object = None
        self._due_ns = 0
        self._cost_ns = 0
        self._n_rows = 0
        #: The last failure of an audit.
        self._fault = ""

    def start(self) -> None:
        """Begin auditing."""
        self._thread = threading.Thread(target=self._run, name="mps-audit", daemon=True)
        self._thread.start()

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Return the audits made since the last call; never waits."""
        rows: list[dict[str, Any]] = []
        while self._ready:
            rows.extend(self._ready.popleft())
        if not rows:
            return []
        self._n_rows += len(rows)
        columns = {name: [row.get(name) for row in rows] for name in MPS_CLIENT.column_names}
        return [make_batch(MPS_CLIENT, columns)]

    def stop(self) -> Iterable[Batch]:
        """Stop auditing and return what is left; a thread that is stuck is left behind."""
        self._stop_event.set()
        if self._thread is not None:
            self._thread.join(0.2)
        return self.drain(self._clock())

    def report(self) -> SourceReport:
        """Return what was audited, at what CPU time."""
        note = self._fault
        since = self._busy_since
        if since is not None and self._clock() - since > _STALE_NS:
            note = "a file system of a process on a GPU does not answer, so MPS is not audited"
        return SourceReport(self.name, self._n_rows, 0, self._cost_ns, note)

    def _run(self) -> None:
        """Look each second, and audit when something changed or it is time."""
        while not self._stop_event.is_set():
            now_ns = self._clock()
            lists = self._contexts.newest(now_ns - _STALE_NS)
            key = [(item.device, item.compute, item.through_mps) for item in lists]
            if lists and (key != self._seen or now_ns >= self._due_ns):
                self._seen, self._due_ns = key, now_ns + self._interval_ns
                self._busy_since = now_ns
                try:
                    self._audit(lists)
                except Exception as error:  # noqa: BLE001 - what is odd now may be gone next time
                    self._fault = f"MPS could not be audited: {type(error).__name__}: {error}"[:200]
                self._busy_since = None
                self._cost_ns = time.thread_time_ns()
            # On the beat of the other sources.
            self._stop_event.wait((_LOOK_NS - self._clock() % _LOOK_NS) / 1e9)

    def _audit(self, lists: Sequence[DeviceContexts]) -> None:
        targets = self._targets.pids()
        clients = audit(lists, self._finder.find(), self._root)
        self._ready.append([client_row(client, client.pid in targets) for client in clients])


def client_row(client: MpsClient, is_target: bool) -> dict[str, Any]:
    """Return the columns of ``mps_client``."""
    names = set(MPS_CLIENT.column_names) - {"is_target"}
    return {"is_target": is_target, **{name: getattr(client, name) for name in names}}
