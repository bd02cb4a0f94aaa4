"""Where processes run: an affinity mask that leaves CPUs idle, or no node at all."""

from __future__ import annotations

from analysis.causes.affinity import find_narrow_mask
from analysis.causes.declaration import Cause, Needs
from analysis.causes.unbound import PLACEMENT, suspect_unbound
from analysis.facts import Facts
from analysis.finding import Finding, Status


def find_placement(facts: Facts) -> Finding:
    """Return whether the service is slow for where it runs: its mask, else its node."""
    narrow = find_narrow_mask(facts)
    if narrow.status in (Status.FOUND, Status.UNDECIDED):
        return narrow
    return suspect_unbound(facts) or narrow


CAUSES = (
    Cause(
        PLACEMENT,
        "the service runs in the wrong place",
        "A shrunk affinity mask, the wrong NUMA node or deep idle states slow it.",
        "Threads of a process that may use few CPUs wait for them while other CPUs are idle, and "
        "another process of the service may use more; a tail of first tokens in a service bound "
        "to none of several nodes makes it no more than suspected.",
        "CPU contention: there no CPU is idle; a cpuset that is meant.",
        "Record process samples, threads and the host: tracer record --pid PID.",
        "Widen or correct the affinity of the process; try it in place, several runs each.",
        Needs(
            ("process_sample",),
            optional=("thread_second", "host_sample", "gpu_sample", "engine_sample"),
        ),
        find_placement,
    ),
)
