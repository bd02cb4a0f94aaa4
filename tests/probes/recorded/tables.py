"""Collects what a recording yields, per table, for the tests."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pyarrow as pa

from probes.recorded import Recording, open_recording


def read_all(path: Path) -> tuple[Recording, dict[str, pa.Table]]:
    recording = open_recording(path)
    batches = defaultdict(list)
    for batch in recording.batches():
        assert batch.rows.num_rows <= 200_000
        batches[batch.table.name].append(batch.rows)
    return recording, {name: pa.Table.from_batches(rows) for name, rows in batches.items()}
