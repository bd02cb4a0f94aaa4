"""What looks at a running recording: triggers, marks, the metrics page, free space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from probes.probe import Batch
from tracer.status import Status


@dataclass(frozen=True)
class Moment:
    """One look at the recording, once a second.

    Attributes:
        now_ns: CLOCK_MONOTONIC.
        status: Returns the status at this moment; computed at the first call.
        stop: Asks the recording to end, with a reason.
    """

    now_ns: int
    status: Callable[[], Status]
    stop: Callable[[str], None]


class Watcher(Protocol):
    """Sees every batch and, each second, the recording; neither call may block."""

    def observe(self, batch: Batch, now_ns: int) -> None:
        """Take note of rows that arrived at ``now_ns``."""

    def look(self, moment: Moment) -> Sequence[Batch]:
        """Return rows of its own to record."""

    def close(self) -> Sequence[Batch]:
        """End, and return the last rows."""
