"""What a recording of another tool is: facts for the manifest, batches of rows, problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from probes.probe import Batch

#: Rows of a batch at most, so that memory stays bounded.
BATCH_ROWS = 200_000
#: Longest text kept of a name that a recording gives.
NAME_CHARACTERS = 1000


class RecordingError(Exception):
    """The input cannot be imported; the text says what is wrong and what to do."""


@dataclass(frozen=True)
class Problem:
    """Rows of a recording that were not imported, and why.

    Attributes:
        reason: One sentence that tells rows of this kind apart.
        n_rows: How many there were.
    """

    reason: str
    n_rows: int


class Problems:
    """Counts rows that were skipped, by reason."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, reason: str, n_rows: int = 1) -> None:
        """Count ``n_rows`` rows under ``reason``; nothing happens for zero rows."""
        if n_rows > 0:
            self._counts[reason] += n_rows

    def __iter__(self) -> Iterator[Problem]:
        for reason, n_rows in sorted(self._counts.items()):
            yield Problem(reason, n_rows)

    def __len__(self) -> int:
        return len(self._counts)


class Recording(Protocol):
    """One opened recording of another tool.

    Attributes:
        format: ingero, kineto, nsys, operations or scrapes.
        problems: What was skipped; complete when ``batches`` is exhausted.
    """

    format: str
    problems: Problems

    def manifest_facts(self) -> dict[str, Any]:
        """Return what a session's manifest says of it, as plain data.

        Keys: origin, host, gpus, targets, sources, start_ns, end_ns, start_realtime_ns. Facts
        that are only known at the end of the file are there after ``batches`` is exhausted.
        """

    def batches(self) -> Iterator[Batch]:
        """Yield the rows as batches of at most 200,000, in bounded memory.

        Raises:
            RecordingError: the input turned out to be unreadable.
        """
