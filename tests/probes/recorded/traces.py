"""Small traces made for the tests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any


def event(category: str, name: str, start: Any, duration: Any, **more: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 100,
        "tid": 101,
        "ts": start,
        "dur": duration,
        **more,
    }


def launch(correlation: int, start: Any, duration: Any = 5, name: str = "cudaLaunchKernel"):
    return event("cuda_runtime", name, start, duration, args={"correlation": correlation})


def kernel(correlation: int, start: Any, duration: Any = 10, name: str = "gemm", **args: Any):
    args = {"device": 0, "stream": 7, "correlation": correlation, **args}
    return event("kernel", name, start, duration, args=args)


def write_trace(path: Path, events: Any, **header: Any) -> Path:
    text = json.dumps({"schemaVersion": 1, **header, "traceEvents": events}, indent=1)
    data = text.encode("utf-8", "surrogatepass")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
