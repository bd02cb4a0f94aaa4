"""Writes a session as one trace file."""

from __future__ import annotations

import gzip
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from analysis.attribution import Attribution
from analysis.report.trace.chrome import ChromeWriter
from analysis.report.trace.model import Item, Track
from analysis.report.trace.perfetto import PerfettoWriter
from analysis.report.trace.source import clocks_of, write_items
from analysis.timeline import Session


def write_perfetto(session: Session, attribution: Attribution, path: Path) -> int:
    """Write a session in Perfetto's format; return the slices, instants and samples written."""
    n = 0
    with path.open("wb", buffering=1 << 20) as file:
        writer = PerfettoWriter(file, clocks_of(session))

        def write(item: Item) -> None:
            nonlocal n
            writer.write(item)
            n += 0 if isinstance(item, Track) else len(item)

        write_items(session, attribution, write)
    return n


def write_chrome(session: Session, attribution: Attribution, path: Path) -> int:
    """Write a session as Chrome's JSON, compressed where the name ends in ``.gz``; return the
    slices, instants and samples written.
    """
    n = 0
    facts: dict[str, object] = {
        "session": attribution.name,
        "is_simulated": attribution.is_simulated,
        "verdict": attribution.verdict.cause,
        "start_monotonic_ns": session.start_ns,
    }
    with ExitStack() as stack:
        file: IO[str]
        if path.suffix == ".gz":
            file = stack.enter_context(gzip.open(path, "wt", encoding="utf-8"))
        else:
            file = stack.enter_context(path.open("w", encoding="utf-8"))
        writer = ChromeWriter(file, session.start_ns, facts)

        def write(item: Item) -> None:
            nonlocal n
            writer.write(item)
            n += 0 if isinstance(item, Track) else len(item)

        write_items(session, attribution, write)
        writer.close()
    return n
