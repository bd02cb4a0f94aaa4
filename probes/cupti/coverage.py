"""Says for which time the device times of a process are all there.

Outside of it a device without a recorded activity is not idle: nothing was collected, a kernel
still runs, or what the process held when it was killed is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from probes.cupti import ring

#: Streams that show themselves within this time of a window's begin have to have drained what was
#: submitted before it.
OPENING_NS = 250_000_000
_CONTEXT_SYNC = 4


@dataclass
class Coverage:
    """The covered time of one process, given out in pieces.

    Attributes:
        pid: The process.
        until_ns: Covered up to here, ns; None while nothing is.
    """

    pid: int
    until_ns: int | None = None
    _told_ns: int | None = None

    def begin(self, time_ns: int) -> None:
        """Collection begins here; what came before stays as it is."""
        if self.until_ns is None or time_ns > self.until_ns:
            self.until_ns = self._told_ns = time_ns

    def interrupt(self) -> None:
        """Something is missing: what was not given out yet is not covered, until it begins anew."""
        self.until_ns = self._told_ns = None

    def advance(self, newest_ns: int, unanswered_ns: int | None) -> None:
        """All is known up to the newest record, or up to the oldest call still without activity."""
        if self.until_ns is None:
            return
        known_ns = newest_ns if unanswered_ns is None else min(newest_ns, unanswered_ns)
        self.until_ns = max(self.until_ns, known_ns)

    def take(self, at_least_ns: int) -> tuple[int, int] | None:
        """Return the piece (begin, end) in ns that was not given out yet, if it is long enough."""
        if self.until_ns is None or self._told_ns is None:
            return None
        begin_ns, end_ns = self._told_ns, self.until_ns
        if end_ns - begin_ns < max(at_least_ns, 1):
            return None
        self._told_ns = end_ns
        return begin_ns, end_ns


@dataclass
class Opening:
    """From when on a window knows everything.

    What was submitted before collection began is not recorded, and may run long after. It is over
    on a stream where a recorded activity starts, and everywhere when a wait for the whole context
    returns.

    Attributes:
        on_ns: When collection began, ns.
    """

    on_ns: int
    _starts: dict[int, int] = field(default_factory=dict)
    _synced_ns: int | None = None

    def see(self, records: npt.NDArray[Any]) -> None:
        """Take note of what records show."""
        kind = records["kind"]
        is_new = records["end_ns"] > self.on_ns
        is_run = (kind >= ring.KERNEL) & (kind <= ring.GRAPH) & (records["start_ns"] > 0) & is_new
        runs = records[is_run]
        runs = runs[np.argsort(runs["start_ns"], kind="stable")]
        streams, first = np.unique(runs["stream"], return_index=True)
        for stream, start in zip(streams.tolist(), runs["start_ns"][first].tolist(), strict=True):
            self._starts[stream] = min(start, self._starts.get(stream, start))
        is_sync = (kind == ring.SYNC) & (records["detail"] == _CONTEXT_SYNC) & is_new
        if is_sync.any() and self._synced_ns is None:
            self._synced_ns = int(records["end_ns"][is_sync].min())

    def begin_ns(self, now_ns: int, *, is_over: bool) -> int | None:
        """Return from when on all is known, ns; None while nothing shows it.

        Args:
            now_ns: Present time.
            is_over: The window is.
        """
        if not is_over and now_ns < self.on_ns + OPENING_NS:
            return None
        ends = [max(self._starts.values())] if self._starts else []
        if self._synced_ns is not None:
            ends.append(self._synced_ns)
        return max(min(ends), self.on_ns) if ends else None
