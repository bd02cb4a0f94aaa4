"""Kept scrapes of an engine's metrics page: lines of JSON with a time and the page, plain or gzip.

A line is an object with ``t`` (begin of the scrape in seconds, in the recording's own clock),
``text`` (the page in the Prometheus text format) and, where known, ``dt`` (length of the scrape in
seconds). The page is read by the code that reads it when it is scraped here.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc

from probes.engine.exposition import ExpositionParser
from probes.engine.fetch import MAX_PAGE_BYTES
from probes.engine.reading import PageReader
from probes.probe import Batch
from probes.recorded.json_events import GZIP_MAGIC
from probes.recorded.recording import BATCH_ROWS, Problems, RecordingError

#: A longer line is skipped: it is no page that would have been read when scraped.
_MAX_LINE_BYTES = MAX_PAGE_BYTES
_PROBE_BYTES = 64 << 10
#: Pages, and bytes of pages, that are held before their rows are handed out.
_HELD_PAGES = 200
_HELD_BYTES = MAX_PAGE_BYTES
#: Times beyond this do not fit 64 bits of nanoseconds.
_MAX_SECONDS = 9e9
#: The recording does not tell which URL was scraped.
_ENDPOINT = "recorded"
_LOOKS = re.compile(rb'\s*\{[^{}\[\]]{0,1000}?"text"\s*:\s*"(?:\\n|\s)*# (?:HELP|TYPE) ')
_UNKNOWN = -1


class ScrapesRecording:
    """Scrapes of one endpoint, in the order of their times."""

    format = "scrapes"

    def __init__(self, path: Path) -> None:
        self.problems = Problems()
        self._path = path
        self._engine: str | None = None
        self._n_scrapes = 0
        self._start_ns: int | None = None
        self._end_ns: int | None = None

    def manifest_facts(self) -> dict[str, Any]:
        """Return what a session's manifest says of it; see ``Recording``."""
        return {
            "origin": self.format,
            "host": {},
            "gpus": [],
            "targets": [],
            "sources": [
                {
                    "name": "engine",
                    "state": "ok" if self._n_scrapes else "unavailable",
                    "tables": ["engine_sample"],
                    "details": {"engine": self._engine, "n_scrapes": self._n_scrapes},
                }
            ],
            "start_ns": self._start_ns,
            "end_ns": self._end_ns,
            "start_realtime_ns": None,
        }

    def batches(self) -> Iterator[Batch]:
        """Yield the rows; see ``Recording``."""
        reader, parser = PageReader(_ENDPOINT), ExpositionParser()
        n_pages = n_bytes = 0
        for time_ns, scrape_ns, text in self._scrapes():
            page = parser.parse(text)
            self.problems.add("line of a page that is no sample", page.n_bad_lines)
            middle = time_ns + max(scrape_ns, 0) // 2
            if not page.is_complete:
                self.problems.add("scrape whose page broke off in the middle of a line")
                continue
            if not reader.hold(page, middle, scrape_ns):
                self.problems.add("scrape without a metric of a known engine")
                continue
            self._engine = reader.engine
            self._n_scrapes += 1
            if self._start_ns is None:
                self._start_ns = time_ns
            self._end_ns = time_ns + max(scrape_ns, 0)
            n_pages, n_bytes = n_pages + 1, n_bytes + len(text)
            if n_pages >= _HELD_PAGES or n_bytes >= _HELD_BYTES:
                yield from _handed_out(reader)
                n_pages = n_bytes = 0
        yield from _handed_out(reader)

    def _scrapes(self) -> Iterator[tuple[int, int, str]]:
        """Begin and length in ns (-1 where unknown) and page of each scrape that can be read."""
        latest = -1
        for line in self._lines():
            if not line.strip():
                continue
            try:
                item = json.loads(line)
            except (ValueError, RecursionError):
                self.problems.add("line that is no JSON")
                continue
            time_ns = _nanoseconds(item.get("t")) if isinstance(item, dict) else None
            if time_ns is None or not isinstance(item.get("text"), str):
                self.problems.add("line without a possible time 't' and a page 'text'")
                continue
            if time_ns <= latest:
                self.problems.add("scrape that is not later than the one before")
                continue
            latest = time_ns
            length = _nanoseconds(item.get("dt"))
            # Half of a surrogate pair is no text that a table could hold.
            text = item["text"].encode("utf-8", "replace").decode("utf-8")
            yield time_ns, _UNKNOWN if length is None else length, text

    def _lines(self) -> Iterator[bytes]:
        """Lines of the file, unpacked; what follows damage is left out and counted."""
        try:
            with _opened(self._path) as file:
                is_inside = False
                while line := file.readline(_MAX_LINE_BYTES):
                    is_whole = line.endswith(b"\n") or len(line) < _MAX_LINE_BYTES
                    if is_whole and not is_inside:
                        yield line
                    elif not is_inside:
                        self.problems.add(f"line longer than {_MAX_LINE_BYTES} bytes")
                    is_inside = not is_whole
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.problems.add("rest of the file: it is damaged or broken off")
        except OSError as error:
            raise RecordingError(
                f"{self._path} cannot be read ({error.strerror}); check the disk"
            ) from None


def is_scrapes_file(path: Path) -> bool:
    """Whether a file begins with a timed metrics page as a line of JSON, by its content."""
    try:
        with _opened(path) as file:
            return _LOOKS.match(file.read(_PROBE_BYTES)) is not None
    except (OSError, EOFError, zlib.error):
        return False


def _opened(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        is_packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    return cast(BinaryIO, gzip.open(path, "rb")) if is_packed else path.open("rb")


def _nanoseconds(seconds: object) -> int | None:
    """Nanoseconds of a number of seconds; None where it is none, negative or absurd."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    if not 0 <= seconds <= _MAX_SECONDS or not math.isfinite(seconds):
        return None
    return round(seconds * 1_000_000_000)


def _handed_out(reader: PageReader) -> Iterator[Batch]:
    """Rows of the pages held, in batches of bounded size, an unknown length of a scrape null."""
    for batch in reader.take():
        rows = batch.rows
        index = rows.schema.get_field_index("scrape_ns")
        length = rows.column(index)
        known = pc.if_else(pc.greater_equal(length, 0), length, pa.scalar(None, pa.int64()))
        rows = rows.set_column(index, rows.schema.field(index), known)
        for start in range(0, rows.num_rows, BATCH_ROWS):
            yield Batch(batch.table, rows.slice(start, BATCH_ROWS))
