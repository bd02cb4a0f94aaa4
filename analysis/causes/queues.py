"""Causes before the device - queues and caches - that are named but not yet found."""

from __future__ import annotations

from analysis.causes.declaration import Cause

_ENGINE = "Record the engine's metrics: tracer record --pid PID --engine URL."

CAUSES = (
    Cause(
        "kv.undersized",
        "declared context and concurrency do not fit",
        "The pool holds fewer full sequences than are allowed to run.",
        "Pool in tokens over the context length.",
        "Fragmentation, bugs.",
        _ENGINE,
        "Lower the context length or the number of sequences.",
    ),
)
