"""The recordings of other tools that can be imported; apart from what reads them, so that the
command line can list them without it.
"""

from __future__ import annotations

#: Each format by name and what it is. Keep this list sorted.
RECORDED_FORMATS: dict[str, str] = {
    "ingero": "SQLite databases of Ingero",
    "kineto": "traces of the PyTorch profiler, or a directory with one per rank",
    "nsys": "SQLite exports of Nsight Systems",
    "operations": "operation logs of training jobs in Parquet",
    "scrapes": "kept scrapes of an engine's metrics page",
}
