"""What stands beside the events in Ingero's recordings: stacks, host samples, counts of losses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from analysis.schema import HOST_SAMPLE, LOSS
from probes.probe import Batch, make_batch
from probes.recorded.calls import nullable
from probes.recorded.recording import NAME_CHARACTERS
from probes.recorded.sqlite_file import SqliteFile

#: Its counts of what it did not keep are per minute.
_BUCKET_NS = 60_000_000_000
_LAST_NS = 1 << 62
_MAX_STACK_FRAMES = 12
_MAX_STACKS = 100_000


def read_stacks(file: SqliteFile) -> dict[int, str]:
    """Return the text of each stack by its hash, innermost frame first."""
    table = "stack_traces"
    if not file.has(table, "hash", "frames"):
        return {}
    stacks = {}
    query = f"SELECT {file.integer(table, 'hash')}, substr(frames, 1, 100000) FROM {table}"
    for key, frames in file.all_rows(query, _MAX_STACKS):
        text = _stack_text(frames)
        if key is not None and text:
            stacks[key] = text
    return stacks


def host_samples(file: SqliteFile, session: Mapping[str, Any]) -> Iterator[Batch]:
    """Yield the recorder's samples of the host; ``session`` describes the host."""
    table = "system_snapshots"
    if not file.has(table, "timestamp"):
        return
    load = (
        "CASE WHEN typeof(load_avg) IN ('real', 'integer') THEN load_avg END"
        if file.has(table, "load_avg")
        else "NULL"
    )
    query = (
        f"SELECT {file.integer(table, 'timestamp')}, {load}, "
        f"{file.integer(table, 'mem_avail')}, {file.integer(table, 'swap_mb')} "
        f"FROM {table} WHERE typeof(timestamp) = 'integer' ORDER BY 1"
    )
    memory_mb = session.get("mem_total")
    for rows in file.rows(query):
        time, load1, available, swap = (list(column) for column in zip(*rows, strict=True))
        mega = 1024 * 1024
        yield make_batch(
            HOST_SAMPLE,
            {
                "time_ns": time,
                "scope": ["host"] * len(time),
                "n_cpus": [session.get("cpu_cores")] * len(time),
                "load1": load1,
                "memory_available_bytes": _scaled(available, mega),
                "memory_total_bytes": _scaled([memory_mb] * len(time), mega),
                "swap_used_bytes": _scaled(swap, mega),
            },
        )


def losses(
    file: SqliteFile,
    operations: Mapping[tuple[int, int], str],
    start_ns: int | None,
    end_ns: int | None,
) -> Iterator[Batch]:
    """Yield what the recorder counted and did not keep, per minute, process and kind."""
    table = "event_aggregates"
    names = ("bucket", "source", "op", "pid", "count", "stored")
    if not file.has(table, *names):
        return
    condition = "count > stored AND bucket BETWEEN 0 AND 4000000000000000000"
    for rows in file.integers(table, names, "bucket", condition):
        bucket, pid = rows["bucket"][0], rows["pid"][0]
        words = [
            operations.get((source, op))
            for source, op in zip(rows["source"][0].tolist(), rows["op"][0].tolist(), strict=True)
        ]
        yield make_batch(
            LOSS,
            {
                "time_ns": np.minimum(bucket + _BUCKET_NS, _LAST_NS if end_ns is None else end_ns),
                "start_ns": np.maximum(bucket, start_ns or 0),
                "source": ["ingero"] * len(bucket),
                "reason": ["thinned"] * len(bucket),
                "n_lost": rows["count"][0] - rows["stored"][0],
                "pid": nullable(pid, (pid <= 0) | (pid >= 1 << 31)),
                "function": words,
                "detail": ["counted by the recorder and not kept"] * len(bucket),
            },
        )


def _scaled(values: list[int | None], factor: int) -> list[int | None]:
    return [
        None if value is None or not 0 <= value < 1 << 40 else value * factor for value in values
    ]


def _stack_text(frames: object) -> str | None:
    """Text of a stack, innermost frame first: ``function (file:line) < caller < ...``."""
    if not isinstance(frames, str):
        return None
    try:
        parsed = json.loads(frames)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, list):
        return None
    words = []
    for frame in parsed[:_MAX_STACK_FRAMES]:
        if not isinstance(frame, dict):
            continue
        if "pfn" in frame:
            file = PurePosixPath(str(frame.get("pf", ""))).name
            words.append(f"{frame['pfn']} ({file}:{frame.get('pl', '?')})")
        else:
            words.append(str(frame.get("s") or f"{frame.get('f', '?')}+{frame.get('i', '?')}"))
    return " < ".join(words)[:NAME_CHARACTERS] or None
