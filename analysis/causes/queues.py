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
    Cause(
        "regression",
        "the same load is slower than before",
        "Something changed between two recordings.",
        "Differences beyond noise at like load.",
        "More load.",
        "Record the same load before and after.",
        "Bisect what changed.",
        stated_by="tracer diff BEFORE AFTER",
    ),
)
