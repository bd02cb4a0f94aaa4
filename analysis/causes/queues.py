"""Causes before the device - queues and caches - that are named but not yet found."""

from __future__ import annotations

from analysis.causes.declaration import Cause

_ENGINE = "Record the engine's metrics: tracer record --pid PID --engine URL."

CAUSES = (
    Cause(
        "queue.frontend",
        "the front end is the limit",
        "Tokenising or preprocessing saturates one thread.",
        "A front-end thread is saturated, the engine waits for nothing, the device is low.",
        "Overload of the engine.",
        _ENGINE,
        "Run more front-end workers.",
    ),
    Cause(
        "queue.head_of_line",
        "admission is blocked though memory is free",
        "One request at the head keeps others out.",
        "Requests wait with KV well below full, running below its limit, no preemption.",
        "A full KV cache.",
        _ENGINE,
        "Change the admission policy or the token budget.",
    ),
    Cause(
        "queue.remote_wait",
        "slots are held for transfers that do not come",
        "Requests wait for remote KV.",
        "KV nearly empty, nothing admitted, sockets idle.",
        "Head-of-line blocking.",
        _ENGINE,
        "Look at the transfer layer; free slots by timeout.",
    ),
    Cause(
        "queue.imbalance",
        "one replica or rank is hot",
        "The load balancer sends too much to one place.",
        "Spread of waiting, KV and power over engines.",
        "Overload of all.",
        _ENGINE,
        "Balance by tokens, not by requests.",
    ),
    Cause(
        "queue.retry_storm",
        "time-outs send the work again",
        "Clients give up and repeat.",
        "Repeated prompt lengths, many aborts, prompt tokens up while successes fall.",
        "Real growth.",
        _ENGINE,
        "Mend the cause of the time-outs; back off.",
    ),
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
        "kv.pool_growth",
        "latency follows a growing pool",
        "A pool grows over hours and latency with it.",
        "Monotone resident memory with TTFT p95 following it.",
        "A leak.",
        "Record for hours with --engine URL.",
        "Bound the pool.",
    ),
    Cause(
        "regression",
        "the same load is slower than before",
        "Something changed between two recordings.",
        "Differences beyond noise at like load.",
        "More load.",
        "Record the same load before and after.",
        "Bisect what changed.",
    ),
    Cause(
        "telemetry.suspect",
        "sources contradict each other",
        "A gauge is frozen, stale or wrong.",
        "Utilisation 100 with no engine activity, stale scrapes, processes that do not exist.",
        "A hang: counters are frozen there too, but calls are open.",
        "Record the same quantity from a second source.",
        "Mend the source before acting on it.",
    ),
)
