"""Causes on the host that are named but not yet found by an analyzer."""

from __future__ import annotations

from analysis.causes.declaration import Cause

CAUSES = (
    Cause(
        "launch.gil",
        "another thread held the interpreter",
        "The launching thread waited for Python's interpreter lock, which a sibling thread held.",
        "Short sleeps of the launching thread that a sibling's wake ends, one thread of the "
        "process on a CPU at a time.",
        "Other processes (they make it ready, not asleep), a CPU quota.",
        "Record interpreter waits: tracer record --for launch.gil --pid PID.",
        "Move the sibling's work to another process, or make it poll less often.",
    ),
    Cause(
        "launch.gc_pause",
        "Python's garbage collector stopped the world",
        "The launching thread collected garbage instead of launching.",
        "Periodic gaps on the CPU without CUDA calls that grow with the number of objects; the "
        "collector's own probes where the interpreter has them.",
        "Preemption (off the CPU), the interpreter lock (another thread runs), steal.",
        "Record the collector: tracer record --for launch.gc_pause --pid PID.",
        "Call gc.freeze() after warm-up, or collect at times that hurt nobody.",
    ),
    Cause(
        "launch.graph_fallback",
        "CUDA graphs gave way to eager launches",
        "Steps that a graph used to launch are launched kernel by kernel.",
        "Graph launches stop, plain launches per step multiply, each launch is as fast as ever.",
        "Slow launches.",
        "Record launches before and after: tracer record --pid PID.",
        "Capture graphs for the batch sizes in use, or find what switched them off.",
    ),
    Cause(
        "launch.placement",
        "the launching thread runs in the wrong place",
        "Wrong NUMA node, shrunk affinity mask or deep idle states slow every launch.",
        "Affinity mask, node of the thread against node of the GPU, long wakes with an idle CPU.",
        "CPU contention.",
        "Record process samples: tracer record --pid PID.",
        "Widen or correct the affinity of the launching process.",
    ),
    Cause(
        "launch.observer",
        "the monitoring itself",
        "A monitor holds a lock of the driver while the service launches.",
        "Driver-lock time of monitors overlaps the slow calls.",
        "First use, contention.",
        "Record with and without the monitor and compare.",
        "Poll less often, or turn the monitor off.",
    ),
    Cause(
        "host.memory_pressure",
        "the host is short of memory",
        "Swap, reclaim or page-cache misses stop the host.",
        "Memory pressure (PSI), major faults and swap at the onset.",
        "CPU contention.",
        "Record host samples: tracer record --pid PID.",
        "Give the host more memory or the processes less.",
    ),
    Cause(
        "memory.host_leak",
        "resident memory grows without bound",
        "A process keeps memory of every request.",
        "Slope of anonymous memory per request, flat when idle.",
        "A pool that grows and then stays; page cache.",
        "Record for hours: tracer record --pid PID --duration 6h.",
        "Find the container that is never emptied; restart before memory runs out.",
    ),
)
