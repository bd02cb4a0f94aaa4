"""What the samplers of /proc have in common: a beat, files held open, readings kept back.

A sample takes readings (what the files say, unread), and nothing else. They are made into rows in
bulk, when a batch is worth its making: one after the other they cost a fraction of what each costs
alone after a pause, and one row costs as much as fifty.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from analysis.schema import Table
from probes.host.held import HeldFiles
from probes.host.pacing import Pacer
from probes.probe import Batch, SourceReport, make_batch

SECOND_NS = 1_000_000_000
#: Longest time that readings are kept back where samples are frequent: as long as the session keeps
#: few rows anyway, which it does not do once more with these.
HOLD_NS = 3 * SECOND_NS
#: Fewer samples than this are not worth being kept back.
_HELD_SAMPLES = 4
#: A probe samples less often while a sample takes more than this share of the interval: a tree of
#: thousands of threads must not cost a CPU.
MAX_SHARE = 0.03
#: Longest interval that it falls back to.
SLOWEST_NS = 10 * SECOND_NS


#: What one sample takes of one thing.
Reading = TypeVar("Reading")
#: Values by column, all equally many; columns that are absent are null.
Columns = Mapping[str, Sequence[Any]]


class ReadingBuffer(Generic[Reading]):
    """Collects readings of one table and hands them over in bulk.

    Args:
        table: Declaration of the table.
        hold_ns: Longest time that a reading is kept back.
        to_columns: Makes columns of readings; none where there is no row.
    """

    def __init__(
        self, table: Table, hold_ns: int, to_columns: Callable[[Sequence[Reading]], Columns]
    ) -> None:
        self.n_rows = 0
        self._table = table
        self._hold_ns = hold_ns
        self._to_columns = to_columns
        self._readings: list[Reading] = []
        self._since_ns = 0

    def add(self, readings: Iterable[Reading], now_ns: int) -> None:
        """Keep the readings of a sample."""
        if not self._readings:
            self._since_ns = now_ns
        self._readings.extend(readings)

    def is_due(self, now_ns: int) -> bool:
        """Return whether the oldest reading was kept long enough."""
        return bool(self._readings) and now_ns - self._since_ns >= self._hold_ns

    def take(self, now_ns: int) -> list[Batch]:
        """Return the rows of all readings that are kept."""
        readings, self._readings = self._readings, []
        columns = self._to_columns(readings)
        if not columns:
            return []
        held_ns = max(now_ns - self._since_ns, 0)
        batch = replace(make_batch(self._table, columns), held_ns=held_ns)
        self.n_rows += batch.rows.num_rows
        return [batch]


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the columns of rows that have some of them each."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


class BeatProbe(Generic[Reading]):
    """A probe that samples one table on a beat, in the recorder's own thread.

    Args:
        name: The probe's name.
        table: The table that it fills.
        interval_ns: Time between two samples.
        hold_ns: Longest time that readings are kept back, to be read in bulk; where that would be
            few, they are handed over at once.
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
        held_ns = hold_ns if _HELD_SAMPLES * interval_ns <= hold_ns else 0
        self._buffer = ReadingBuffer(table, held_ns, self.to_columns)
        self._files = HeldFiles()
        self._cost_ns = 0
        self._n_samples = 0
        #: What making rows of one sample cost the last time.
        self._rows_ns = 0

    def start(self) -> None:
        """Begin observing; the first drain samples."""

    def drain(self, now_ns: int) -> Iterable[Batch]:
        """Sample when it is time, and return the rows that were kept long enough."""
        if self._pacer.is_due(now_ns):
            self._take_sample(now_ns)
        return self._make_rows(now_ns) if self._buffer.is_due(now_ns) else []

    def stop(self) -> Iterable[Batch]:
        """Take a last sample and return all that is left."""
        now_ns = self._clock()
        self._take_sample(now_ns)
        self._files.close()
        return self._make_rows(now_ns)

    def report(self) -> SourceReport:
        """Return what was sampled, at what CPU time, and at which interval."""
        interval_ns = self._pacer.interval_ns
        note = ""
        if interval_ns > self._interval_ns:
            note = f"there is much to look at, so it looks every {interval_ns / 1e9:g} s"
        details = {"interval_ns": interval_ns}
        return SourceReport(self.name, self._buffer.n_rows, 0, self._cost_ns, note, details)

    def sample(self, now_ns: int) -> Sequence[Reading]:
        """Return the readings of one sample.

        Args:
            now_ns: The time of the drain.
        """
        raise NotImplementedError

    def to_columns(self, readings: Sequence[Reading]) -> Columns:
        """Return the rows of all readings since the last call, in order; none without rows."""
        raise NotImplementedError

    def _take_sample(self, now_ns: int) -> None:
        begin = time.thread_time_ns()
        self._buffer.add(self.sample(now_ns), now_ns)
        self._n_samples += 1
        spent_ns = time.thread_time_ns() - begin
        self._cost_ns += spent_ns
        self._pace(spent_ns + self._rows_ns)

    def _make_rows(self, now_ns: int) -> list[Batch]:
        begin = time.thread_time_ns()
        batches = self._buffer.take(now_ns)
        spent_ns = time.thread_time_ns() - begin
        self._cost_ns += spent_ns
        self._rows_ns = spent_ns // max(self._n_samples, 1)
        self._n_samples = 0
        return batches

    def _pace(self, spent_ns: int) -> None:
        """Sample less often when a sample costs too much, and more often again when it does not."""
        interval_ns = self._pacer.interval_ns
        slowest_ns = max(SLOWEST_NS, self._interval_ns)
        if spent_ns > MAX_SHARE * interval_ns and interval_ns < slowest_ns:
            self._pacer.change(min(2 * interval_ns, slowest_ns))
        elif spent_ns < MAX_SHARE / 4 * interval_ns and interval_ns > self._interval_ns:
            self._pacer.change(max(interval_ns // 2, self._interval_ns))
