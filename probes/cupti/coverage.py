"""Says for which time the device times of a process are all there.

Outside of it a device without a recorded activity is not idle: nothing was collected, a kernel
still runs, or what the process held when it was killed is lost.
"""

from __future__ import annotations

from dataclasses import dataclass


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
