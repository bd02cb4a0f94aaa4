"""Open a session and read its tables by time range.

A session is a directory: ``manifest.json`` and one folder per table that holds closed Parquet
segments ``FIRST-LAST.parquet`` (zero-padded sequence ranges). A segment whose range lies inside a
larger one was compacted into it and is ignored; temporaries are ignored; a segment that cannot be
read is skipped and counted. A session may be read while it is being written.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis import schema
from analysis.manifest import Manifest, ManifestError
from analysis.soundness import sound_rows

if TYPE_CHECKING:
    import pandas as pd

_T = TypeVar("_T")
#: Rows of a segment that are held at a time.
_PART_ROWS = 1 << 20
#: Segments from which it is worth a thread to read the next part while one is in use.
_MANY_SEGMENTS = 4
#: Times a table is listed again because the recorder compacted segments while it was read.
_ATTEMPTS = 5
#: A session that claims to be longer (a year) is damaged, and its windows would fill the memory.
MAX_SPAN_NS = 366 * 86_400 * 1_000_000_000
_SEGMENT = re.compile(r"(\d+)-(\d+)\.parquet")


class TimelineError(ValueError):
    """A session or one of its tables cannot be read; the text says why and what to do."""


def open_session(path: str | Path) -> Session:
    """Return the session in a directory, ready to be read.

    Raises:
        TimelineError: it is not a session, or its manifest cannot be read.
    """
    folder = Path(path)
    # A recording without a given name is called NAME.tracer; both spellings find it.
    spellings = (folder, Path(f"{folder}.tracer"), Path(str(folder).removesuffix(".tracer")))
    try:
        found = next((spelling for spelling in spellings if spelling.is_dir()), None)
    except OSError as error:
        raise TimelineError(
            f"{folder} cannot be looked for ({error.strerror}); "
            "give the DIR that 'tracer record -o DIR' wrote"
        ) from None
    if found is None:
        raise TimelineError(
            f"{folder} is not a directory: give the DIR that 'tracer record -o DIR' wrote"
        )
    try:
        manifest = Manifest.read(found)
    except ManifestError as error:
        raise TimelineError(str(error)) from None
    return Session(found, manifest)


class Session:
    """One recording: its manifest and its tables.

    Attributes:
        path: Its directory.
        manifest: What was recorded, where, from which sources, and what was lost.
        problems: One sentence per segment that could not be read; it grows as tables are read.
        is_range: Whether it is a range of a session, made by :meth:`between`.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.problems: list[str] = []
        self._damaged: dict[str, set[str]] = {}
        self._segments: dict[str, list[Path]] = {}
        self._bounds: tuple[int, int] | None = None
        self.is_range = False

    def between(self, start_ns: int, end_ns: int) -> Session:
        """Return the same session as if only a range of it had been recorded.

        Rows before and after the range are not read; intervals that began earlier and reach into
        it are. The manifest stays that of the whole.

        Args:
            start_ns: Begin of the range, CLOCK_MONOTONIC; not before the recording's own.
            end_ns: End of it; not after the recording's own.

        Raises:
            TimelineError: the range holds no time of the recording.
        """
        first, last = max(start_ns, self.start_ns), min(end_ns, self.end_ns)
        if first >= last:
            raise TimelineError(
                f"the range lies outside of the recording, which is {self.duration_ns / 1e9:.1f} s "
                "long; give times from its begin"
            )
        part = Session(self.path, self.manifest)
        part._bounds = (first, last)
        part.is_range = True
        return part

    def without(self, names: Iterable[str]) -> Session:
        """Return the same session as if some tables had not been recorded."""
        part = self.between(self.start_ns, self.end_ns)
        part._segments.update({name: [] for name in names})
        return part

    def sql(self, query: str) -> pd.DataFrame:
        """Return the answer of DuckDB to one query over the tables of this session.

        Every table of :attr:`tables` can be named, with the columns that ``tracer describe TABLE``
        prints; times are int64 ns. Nothing can be written, and no other file can be read.

        Args:
            query: One statement, e.g. ``SELECT function, count(*) FROM cuda_call GROUP BY 1``.

        Returns:
            One row per row of the answer; whole numbers stay whole beside nulls.

        Raises:
            TimelineError: DuckDB is not installed, a table was not recorded, or the query is wrong.
        """
        from analysis.sql import ask

        return ask(self, query)

    def segments(self, name: str) -> list[Path]:
        """Return the files of one table in order of their sequence."""
        if name not in self._segments:
            files = _segment_files(self.path / name)
            odd = [path for path in files if path.exists() and not path.is_file()]
            self._segments[name] = [path for path in files if path not in odd]
            for path in odd:
                self._skip(path, OSError("it is not a regular file"))
        return self._segments[name]

    def n_rows(self, name: str) -> int:
        """Return the rows of a table by its segments' footers; damaged segments count as none."""
        total = 0
        for path in self.segments(name):
            try:
                total += pq.read_metadata(path).num_rows
            except (OSError, pa.ArrowException):
                continue
        return total

    def has(self, name: str) -> bool:
        """Return whether a table has at least one segment (it may still hold no row)."""
        return bool(self.segments(name))

    @property
    def tables(self) -> list[str]:
        """Names of the declared tables that this session has."""
        return [declared.name for declared in schema.TABLES if self.has(declared.name)]

    def table(
        self,
        name: str,
        start_ns: int | None = None,
        end_ns: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return the rows of a table in time order, as Arrow, nulls kept.

        Args:
            name: Name of the table.
            start_ns: Keep rows whose time (or start) is at or after this; intervals that began
                earlier and reach into the range are kept too.
            end_ns: Keep rows whose time (or start) is before this.
            columns: Columns to read; all by default.

        Raises:
            TimelineError: the table is not declared, has no such column, or was not recorded.
        """
        declared = _declared(name)
        wanted = list(columns) if columns is not None else list(declared.column_names)
        for column in wanted:
            if column not in declared.column_names:
                raise TimelineError(
                    f"table {name} has no column {column}{_closest(column, declared.column_names)}"
                )
        if not self.has(name):
            raise TimelineError(
                f"the session has no table {name}{_closest(name, self.tables)}; "
                f"record it with: {declared.command}"
            )
        parts = self.collect(name, wanted, lambda part: part, start_ns, end_ns)
        arrow = declared.arrow_schema()
        empty = pa.schema([arrow.field(column) for column in wanted]).empty_table()
        rows = pa.concat_tables(parts) if parts else empty
        if declared.order in wanted and not _is_sorted(rows[declared.order]):
            rows = rows.sort_by(declared.order)
        return rows

    def frame(
        self,
        name: str,
        start_ns: int | None = None,
        end_ns: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Return the same rows as :meth:`table` as a DataFrame with nullable columns."""
        return as_frame(self.table(name, start_ns, end_ns, columns))

    def collect(
        self,
        name: str,
        columns: Sequence[str],
        convert: Callable[[pa.Table], _T],
        start_ns: int | None = None,
        end_ns: int | None = None,
        *,
        keep_dictionaries: bool = False,
        start_over: Callable[[], object] | None = None,
    ) -> list[_T]:
        """Return ``convert`` of each part of a table (at most a million rows at a time), so that
        a table larger than memory can be reduced on the way.

        A column that a segment lacks (older writer) is null. Segments that cannot be read are
        skipped and counted in :attr:`problems`. With ``keep_dictionaries``, text columns are
        Arrow dictionaries. Starts over when a running recorder compacts segments meanwhile;
        ``start_over`` is called before each start.
        """
        if self.is_range:
            start_ns = self.start_ns if start_ns is None else max(start_ns, self.start_ns)
            end_ns = self.end_ns if end_ns is None else min(end_ns, self.end_ns)
        for _attempt in range(_ATTEMPTS):
            if start_over is not None:
                start_over()
            try:
                segments = self.segments(name)
                parts = (
                    part
                    for path in segments
                    for part in self._parts(
                        path, columns, start_ns, end_ns, keep_dictionaries=keep_dictionaries
                    )
                )
                is_many = len(segments) >= _MANY_SEGMENTS
                converted = [convert(part) for part in (_ahead(parts) if is_many else parts)]
                # Else Arrow keeps what reading took at its most.
                pa.default_memory_pool().release_unused()
                return converted
            except FileNotFoundError:
                del self._segments[name]
        raise TimelineError(
            f"table {name} changes faster than it can be read; try again when the recording is over"
        )

    def _parts(
        self,
        path: Path,
        columns: Sequence[str],
        start_ns: int | None,
        end_ns: int | None,
        *,
        keep_dictionaries: bool,
    ) -> Iterator[pa.Table]:
        """Row ranges of one segment in the declared types; nothing if it cannot be read."""
        declared = _declared(path.parent.name)
        arrow = declared.arrow_schema()
        is_ranged = start_ns is not None or end_ns is not None
        times = _time_columns(declared)
        wanted = list(dict.fromkeys([*columns, *(times if is_ranged else [])]))
        fields = [arrow.field(column).with_nullable(True) for column in columns]
        texts = [item.name for item in arrow if item.type == pa.string()]
        try:
            with pa.OSFile(str(path)) as opened:
                metadata = pq.read_metadata(opened)
                names = set(metadata.schema.to_arrow_schema().names)
                for item in declared:
                    if item.name in wanted and not item.nullable and item.name not in names:
                        raise ValueError(f"it has no column {item.name}")
                texts = [name for name in texts if name in names] if keep_dictionaries else []
                file = pq.ParquetFile(opened, metadata=metadata, read_dictionary=texts)
                present = [column for column in wanted if column in names]
                groups = _row_groups(metadata, times, start_ns, end_ns)
                for batch in file.iter_batches(
                    _PART_ROWS, row_groups=groups, columns=present, use_threads=False
                ):
                    rows, n_bad = sound_rows(pa.Table.from_batches([batch]), declared)
                    if n_bad:
                        self._tell(path, f"lost {n_bad} rows: they hold impossible values")
                    if is_ranged:
                        rows = _in_range(rows, times, start_ns, end_ns)
                    arrays = [_column(rows, item, keep_dictionaries) for item in fields]
                    yield pa.table(dict(zip(columns, arrays, strict=True)))
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException, ValueError) as error:
            self._skip(path, error)

    def _skip(self, path: Path, error: Exception) -> None:
        reason = str(error).strip().splitlines()
        text = "was skipped: it cannot be read"
        self._tell(path, f"{text} ({reason[0][:120]})" if reason else text)

    def _tell(self, path: Path, what: str) -> None:
        """Note what is wrong with a segment, once."""
        self._damaged.setdefault(path.parent.name, set()).add(path.name)
        sentence = f"segment {path.parent.name}/{path.name} {what}"
        if sentence not in self.problems:
            self.problems.append(sentence)

    @property
    def damage(self) -> dict[str, float]:
        """Share of the segments of each table that could not be read in full, as far as they
        were read, in (0, 1].
        """
        return {
            name: min(len(paths) / max(len(self.segments(name)), 1), 1.0)
            for name, paths in self._damaged.items()
        }

    @property
    def start_ns(self) -> int:
        """Begin of the recording in ns of CLOCK_MONOTONIC (first row where not written down)."""
        return self._range()[0]

    @property
    def end_ns(self) -> int:
        """End of the recording in ns of CLOCK_MONOTONIC (last row while running or crashed)."""
        return self._range()[1]

    @property
    def duration_ns(self) -> int:
        """Length of the recording in ns."""
        return self.end_ns - self.start_ns

    def _range(self) -> tuple[int, int]:
        if self._bounds is None:
            start, end = self.manifest.start_ns, self.manifest.end_ns
            if start is None or end is None:
                first, last = self._extent()
                start = first if start is None else start
                end = last if end is None else end
            if end - start > MAX_SPAN_NS:
                n_days = (end - start) / 86_400e9
                raise TimelineError(
                    f"the session claims to be {n_days:,.0f} days long: its times are damaged; "
                    "record again"
                )
            self._bounds = (start, max(start, end))
        return self._bounds

    def _extent(self) -> tuple[int, int]:
        """First and last instant of any row; (0, 0) for a session without rows."""
        first: int | None = None
        last: int | None = None
        for declared in schema.TABLES:
            names = _time_columns(declared)
            for low, high in self.collect(declared.name, names, _limits):
                if low is not None and high is not None:
                    first = low if first is None else min(first, low)
                    last = high if last is None else max(last, high)
        return (first or 0, last or 0)


def _segment_files(folder: Path) -> list[Path]:
    """Closed segments of a table, without those whose range a larger one covers."""
    found: list[tuple[int, int, Path]] = []
    try:
        names = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    for path in names:
        match = _SEGMENT.fullmatch(path.name)
        if match and int(match[1]) <= int(match[2]):
            found.append((int(match[1]), int(match[2]), path))
    found.sort(key=lambda item: (item[0], -item[1]))
    kept: list[Path] = []
    reach = -1
    for _first, last, path in found:
        if last > reach:
            kept.append(path)
            reach = last
    return kept


def as_frame(rows: pa.Table) -> pd.DataFrame:
    """Return Arrow rows as a DataFrame with nullable columns."""
    import pandas as pd

    mapping = {
        pa.int8(): pd.Int8Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.uint64(): pd.UInt64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
        pa.string(): pd.StringDtype(),
    }
    frame: pd.DataFrame = rows.to_pandas(types_mapper=mapping.get)
    return frame


def _ahead(parts: Iterator[_T]) -> Iterator[_T]:
    """The same, each made by another thread while the one before it is in use."""
    with ThreadPoolExecutor(1, thread_name_prefix="session-reader") as reader:
        try:
            following = reader.submit(next, parts, None)
        except RuntimeError:  # no room for a thread
            yield from parts
            return
        while (part := following.result()) is not None:
            following = reader.submit(next, parts, None)
            yield part


def _declared(name: str) -> schema.Table:
    try:
        return schema.table(name)
    except KeyError:
        names = [declared.name for declared in schema.TABLES]
        raise TimelineError(f"there is no table {name}{_closest(name, names)}") from None


def _time_columns(declared: schema.Table) -> list[str]:
    """The time that a table is ordered by, and the length of its rows if they have one."""
    if declared.order == "start_ns" and "duration_ns" in declared.column_names:
        return [declared.order, "duration_ns"]
    return [declared.order]


def _row_groups(
    metadata: pq.FileMetaData, times: list[str], start_ns: int | None, end_ns: int | None
) -> list[int]:
    """Row groups of a segment that may hold rows of a range, by the footer's statistics."""
    if start_ns is None and end_ns is None:
        return list(range(metadata.num_row_groups))
    places = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
    kept = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        columns = [group.column(places[name]) for name in times if name in places]
        found = [column.statistics for column in columns if column.is_stats_set]
        known = [item for item in found if item is not None and _has_limits(item)]
        if len(known) == len(times):
            reach = sum(item.max for item in known)
            is_later = end_ns is not None and known[0].min >= end_ns
            is_earlier = start_ns is not None and reach < start_ns
            if is_later or is_earlier:
                continue
        kept.append(index)
    return kept


def _has_limits(found: pq.Statistics) -> bool:
    return bool(found.has_min_max) and isinstance(found.min, int) and isinstance(found.max, int)


def _ends(rows: pa.Table, times: list[str]) -> pa.ChunkedArray:
    begin = rows[times[0]]
    if len(times) == 2 and times[1] in rows.column_names:
        return pc.add(begin, pc.coalesce(rows[times[1]], 0))
    return begin


def _in_range(
    rows: pa.Table, times: list[str], start_ns: int | None, end_ns: int | None
) -> pa.Table:
    begin = rows[times[0]]
    mask = pc.is_valid(begin)
    if end_ns is not None:
        mask = pc.and_(mask, pc.less(begin, end_ns))
    if start_ns is not None:
        reaches = pc.greater(_ends(rows, times), start_ns)
        mask = pc.and_(mask, pc.or_(reaches, pc.greater_equal(begin, start_ns)))
    return rows.filter(mask)


def _limits(rows: pa.Table) -> tuple[int | None, int | None]:
    times = rows.column_names
    return pc.min(rows[times[0]]).as_py(), pc.max(_ends(rows, times)).as_py()


def _column(rows: pa.Table, item: pa.Field, keep_dictionaries: bool) -> pa.ChunkedArray:
    """One column in its declared type, null where the segment has not got it."""
    if item.name not in rows.column_names:
        return pa.chunked_array([pa.nulls(rows.num_rows, item.type)])
    column = rows[item.name]
    if keep_dictionaries and pa.types.is_dictionary(column.type):
        return column
    return column.cast(item.type)


def _closest(name: str, names: Sequence[str]) -> str:
    matches = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {matches[0]}?)" if matches else ""


def _is_sorted(column: pa.ChunkedArray) -> bool:
    values = column.to_numpy()
    return bool(np.all(values[1:] >= values[:-1])) if len(values) else True
