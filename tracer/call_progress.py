"""How far each recorded process got: its last launches, its longest wait, its open calls.

Rows are only set aside when they arrive and looked at once a second; memory is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from probes.probe import Batch
from tracer.coded_text import which_are

#: Last launches that are kept of each process, and most processes.
N_LAST = 20
MAX_PIDS = 1024
#: Most kernel names that are kept.
MAX_NAMES = 20_000
_SUBMISSIONS = frozenset({"launch", "graph_launch", "copy", "set", "collective"})
_LAUNCHES = frozenset({"launch", "graph_launch"})
_WAITS = frozenset({"sync"})
_COLUMNS = ("start_ns", "duration_ns", "pid", "tid", "function", "kind", "depth", "kernel")


@dataclass
class Progress:
    """One process: its last submission, its longest completed wait (ns), its last launches."""

    submitted_ns: int = 0
    longest_wait_ns: int = 0
    launches: tuple[dict[str, Any], ...] = ()


class CallProgress:
    """Progress of every process of a recording."""

    def __init__(self) -> None:
        self._calls: list[pa.RecordBatch] = []
        self._opened: list[pa.RecordBatch] = []
        self._names: OrderedDict[tuple[int, int], str] = OrderedDict()
        self._pids: OrderedDict[int, Progress] = OrderedDict()
        self._mps: list[dict[str, Any]] = []
        #: Rows of ``open_call`` of the last second.
        self.open_calls: list[dict[str, Any]] = []

    def observe(self, batch: Batch) -> None:
        """Set rows aside for the next :meth:`settle`."""
        name = batch.table.name
        if name == "cuda_call":
            self._calls.append(batch.rows.select(_COLUMNS))
        elif name == "open_call":
            self._opened.append(batch.rows)
        elif name == "mps_client":
            self._mps = batch.rows.to_pylist()
        elif name == "kernel_function":
            columns = (batch.rows.column(key).to_pylist() for key in ("pid", "kernel", "name"))
            for pid, kernel, text in zip(*columns, strict=True):
                if text:
                    self._names[pid, kernel] = text
            while len(self._names) > MAX_NAMES:
                self._names.popitem(last=False)

    def settle(self) -> None:
        """Take over what was set aside."""
        opened, self._opened = self._opened, []
        self.open_calls = [row for rows in opened for row in rows.to_pylist()]
        calls, self._calls = self._calls, []
        if not calls:
            return
        for rows in calls:
            self._note_calls(rows)
        last: dict[int, list[dict[str, Any]]] = {}
        for rows in reversed(calls):
            for pid, own in _by_pid(rows, _LAUNCHES):
                later = last.setdefault(pid, [])
                missing = N_LAST - len(later)
                if missing > 0:
                    later[:0] = rows.take(pa.array(own[-missing:])).to_pylist()
        for pid, launches in last.items():
            progress = self._of(pid)
            progress.launches = (*progress.launches, *launches)[-N_LAST:]

    def _note_calls(self, rows: pa.RecordBatch) -> None:
        """Take over when work was submitted, and how long was waited."""
        start_ns = rows["start_ns"].to_numpy()
        for pid, own in _by_pid(rows, _SUBMISSIONS):
            progress = self._of(pid)
            progress.submitted_ns = max(progress.submitted_ns, int(start_ns[own].max()))
        for pid, own in _by_pid(rows, _WAITS):
            longest = pc.max(rows["duration_ns"].take(pa.array(own))).as_py()
            if longest is not None:
                progress = self._of(pid)
                progress.longest_wait_ns = max(progress.longest_wait_ns, longest)

    def _of(self, pid: int) -> Progress:
        progress = self._pids.setdefault(pid, Progress())
        self._pids.move_to_end(pid)
        if len(self._pids) > MAX_PIDS:
            self._pids.popitem(last=False)
        return progress

    def of(self, pid: int) -> Progress:
        """Return the progress of a process, an empty one where it made no call."""
        return self._pids.get(pid, Progress())

    @property
    def submitted_ns(self) -> int | None:
        """When any process last handed work to a device, ns; None where none did."""
        return max((item.submitted_ns for item in self._pids.values()), default=0) or None

    def evidence(self) -> dict[str, Any]:
        """Return open calls, last launches with their kernels, and MPS, as JSON-able data."""
        return {
            "open_calls": [
                {**row, "kernel_name": self._name(row["pid"], row["kernel"])}
                for row in self.open_calls
            ],
            "last_launches": {
                str(pid): [
                    {
                        **{key: row[key] for key in ("start_ns", "tid", "function", "kernel")},
                        "kernel_name": self._name(pid, row["kernel"]),
                    }
                    for row in progress.launches
                ]
                for pid, progress in self._pids.items()
                if progress.launches
            },
            "mps": self._mps,
        }

    def _name(self, pid: int, kernel: int | None) -> str | None:
        return None if kernel is None else self._names.get((pid, kernel))


def _by_pid(rows: pa.RecordBatch, kinds: Set[str]) -> list[tuple[int, NDArray[np.int64]]]:
    """Numbers of the outermost calls of some kinds, ascending, for each process."""
    is_outer = rows["depth"].to_numpy() == 0
    chosen = np.flatnonzero(is_outer & which_are(rows["kind"], kinds))
    pids = rows["pid"].to_numpy()[chosen]
    if len(pids) and (pids == pids[0]).all():
        return [(int(pids[0]), chosen)]
    return [(pid, chosen[pids == pid]) for pid in np.unique(pids).tolist()]
