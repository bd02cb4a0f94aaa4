"""What the samplers of /proc have in common: a beat, files held open, rows kept back.

Rows are kept back until a batch is worth its making: one row costs as much as fifty.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from analysis.schema import Table
from probes.host.held import HeldFiles
from probes.host.pacing import Pacer
from probes.probe import Batch, SourceReport, make_batch

SECOND_NS = 1_000_000_000
#: A probe samples less often while a sample takes more than this share of the interval: a tree of
#: thousands of threads must not cost a CPU.
MAX_SHARE = 0.03
#: Longest interval that it falls back to.
SLOWEST_NS = 10 * SECOND_NS


class RowBuffer:
    """Collects rows of one table and hands them over in bulk.

    Args:
        table: Declaration of the table.
        hold_ns: Longest time that a row is kept back.
    """

    def __init__(self, table: Table, hold_ns: int) -> None:
        self.n_rows = 0
        self._table = table
        self._hold_ns = hold_ns
        self._rows: list[Mapping[str, Any]] = []
        self._since_ns = 0

    def add(self, rows: Iterable[Mapping[str, Any]], now_ns: int) -> None:
        """Keep rows, each a dict by column; columns that are absent are null."""
        if not self._rows:
            self._since_ns = now_ns
        self._rows.extend(rows)

    def take(self, now_ns: int, is_last: bool = False) -> list[Batch]:
        """Return a batch when the oldest row was kept long enough, or at the end; else nothing."""
        if not self._rows or (now_ns - self._since_ns < self._hold_ns and not is_last):
            return []
        rows, self._rows = self._rows, []
        columns = {name: [row.get(name) for row in rows] for name in self._table.column_names}
        self.n_rows += len(rows)
        return [make_batch(self._table, columns)]


class BeatProbe:
    """A probe that samples one table on a beat, in the recorder's own thread.

    Args:
        name: The probe's name.
        table: The table that it fills.
        interval_ns: Time between two samples.
        hold_ns: Longest time that rows are kept back, to hand them over in bulk; samples that are
            at least so far apart are handed over at once.
        clock: CLOCK_MONOTONIC in ns.
    """

    def __init__(
        self,
        name: str,
        table: Table,
        interval_ns: int,
        hold_ns: int,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.name = name
        self.tables: Sequence[Table] = (table,)
        self.period_ns = interval_ns
        self._clock = clock
        self._interval_ns = interval_ns
        self._pacer = Pacer(interval_ns)
        self._buffer = RowBuffer(table, hold_ns if interval_ns < hold_ns else 0)
        self._files = HeldFiles()
        self._cost_ns = 0

    def start(self) -> None:
        """Begin observing; the first drain samples."""

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Sample when it is time, and return the rows that were kept long enough."""
        if self._pacer.is_due(now_ns):
            self._take_sample(now_ns)
        return self._buffer.take(now_ns)

    def stop(self) -> Iterable[Batch]:
        """Take a last sample and return all that is left."""
        now_ns = self._clock()
        self._take_sample(now_ns)
        self._files.close()
        return self._buffer.take(now_ns, is_last=True)

    def report(self) -> SourceReport:
        """Return what was sampled, at what CPU time, and at which interval."""
        interval_ns = self._pacer.interval_ns
        note = ""
        if interval_ns > self._interval_ns:
            note = f"there is much to look at, so it looks every {interval_ns / 1e9:g} s"
        details = {"interval_ns": interval_ns}
        return SourceReport(self.name, self._buffer.n_rows, 0, self._cost_ns, note, details)

    def sample(self, now_ns: int) -> list[dict[str, Any]]:
        """Return the rows of one sample, each a dict by column.

        Args:
            now_ns: The time of the drain.
        """
        raise NotImplementedError

    def _take_sample(self, now_ns: int) -> None:
        begin = time.thread_time_ns()
        self._buffer.add(self.sample(now_ns), now_ns)
        spent_ns = time.thread_time_ns() - begin
        self._cost_ns += spent_ns
        self._pace(spent_ns)

    def _pace(self, spent_ns: int) -> None:
        """Sample less often when a sample costs too much, and more often again when it does not."""
        interval_ns = self._pacer.interval_ns
        slowest_ns = max(SLOWEST_NS, self._interval_ns)
        if spent_ns > MAX_SHARE * interval_ns and interval_ns < slowest_ns:
            self._pacer.change(min(2 * interval_ns, slowest_ns))
        elif spent_ns < MAX_SHARE / 4 * interval_ns and interval_ns > self._interval_ns:
            self._pacer.change(max(interval_ns // 2, self._interval_ns))
