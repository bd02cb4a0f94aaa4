"""When a sample is due: on a steady beat, without a burst after a delay."""

from __future__ import annotations


class Pacer:
    """Tells when a sample is due.

    Args:
        interval_ns: Time between two samples.
    """

    def __init__(self, interval_ns: int) -> None:
        self._interval_ns = interval_ns
        self._due_ns: int | None = None

    @property
    def interval_ns(self) -> int:
        """Time between two samples as it is now."""
        return self._interval_ns

    def change(self, interval_ns: int) -> None:
        """Take another interval from the next sample on."""
        self._interval_ns = interval_ns

    def begin(self, now_ns: int) -> None:
        """Make the next sample due one interval from now."""
        self._due_ns = now_ns + self._interval_ns

    def is_due(self, now_ns: int) -> bool:
        """Return whether a sample is due, and if so set when the next one is."""
        if self._due_ns is None:
            self.begin(now_ns)
            return True
        if now_ns < self._due_ns:
            return False
        self._due_ns += self._interval_ns
        if self._due_ns <= now_ns:
            self.begin(now_ns)
        return True
