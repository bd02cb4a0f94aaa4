"""Where the launching thread runs."""

from __future__ import annotations

from analysis.causes.declaration import Cause, Needs
from analysis.causes.unbound import find_placement

CAUSES = (
    Cause(
        "launch.placement",
        "the launching thread runs in the wrong place",
        "Wrong NUMA node, shrunk affinity mask or deep idle states slow every launch.",
        "Affinity mask, node of the thread against node of the GPU, long wakes with an idle CPU.",
        "CPU contention.",
        "Record process samples: tracer record --pid PID.",
        "Widen or correct the affinity of the launching process.",
        Needs(("process_sample", "engine_sample")),
        find_placement,
    ),
)
