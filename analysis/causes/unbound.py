"""Processes that may run on any CPU of a host of several nodes, where first tokens have a tail."""

from __future__ import annotations

import numpy as np

from analysis import engine as words
from analysis.engine import EngineSeries
from analysis.facts import Facts
from analysis.finding import Evidence, Finding, Status
from analysis.first_tokens import late_first_tokens

PLACEMENT = "launch.placement"

#: Share of the scrapes in which requests may wait for a place, and of the most running requests
#: that may be missing: beyond, the load explains the tail.
SELDOM = 0.05
STEADY = 0.5


def suspect_unbound(facts: Facts) -> Finding | None:
    """Return that a tail of first tokens at a steady load may be work on the wrong NUMA node, for a
    process that is bound to none; None where it is bound, the host has one node or the load tells
    the tail. Never more than suspected: where its threads and memory were is not told.
    """
    engine = facts.engine
    nodes, n_cpus = facts.manifest.host.get("n_numa_nodes"), facts.manifest.host.get("n_cpus")
    if engine is None or not isinstance(nodes, int) or not isinstance(n_cpus, int) or nodes < 2:
        return None
    tail = late_first_tokens(engine)
    if tail is None or not _is_unbound(facts, n_cpus) or not _is_steady(engine):
        return None
    return Finding(
        PLACEMENT,
        Status.UNDECIDED,
        confidence=0.3,
        start_ns=facts.start_ns,
        end_ns=facts.end_ns,
        lost_share=0.01,
        lost_ns=int(0.01 * facts.demand_ns),
        evidence=[
            Evidence("first_token_p90", round(tail.p90, 2), "s", tail.n, "engine_sample"),
            Evidence("first_token_p99", round(tail.p99, 2), "s", tail.n, "engine_sample"),
            Evidence("numa_nodes", nodes, "", None, "manifest"),
            Evidence("cpus_allowed", n_cpus, "CPUs", None, "process_sample"),
        ],
        undecided_because=f"one first token in a hundred took {tail.p99:.1f} s, nine in ten at "
        f"most {tail.p90:.2f} s, at a steady load, and its processes may run on any of {n_cpus} "
        f"CPUs of {nodes} nodes; whether late requests were handled on another node than that of "
        "the GPU or the network card is not recorded, and long prompts look the same",
        settled_by="the node of the threads and their memory (numastat -p PID) against that of "
        "the GPU and the network card (nvidia-smi topo -m), or the same load with numactl "
        "--cpunodebind, several runs each",
    )


def _is_unbound(facts: Facts, n_cpus: int) -> bool:
    """Whether every process whose affinity is known may run on all CPUs."""
    if not facts.session.has("process_sample"):
        return False
    allowed = facts.session.table("process_sample", columns=["time_ns", "n_cpus_allowed"])
    known = allowed["n_cpus_allowed"].drop_null().to_numpy()
    return len(known) > 0 and bool((known >= n_cpus).all())


def _is_steady(engine: EngineSeries) -> bool:
    """Whether requests hardly waited, none was preempted and about as many ran all the time."""
    running, waiting = engine.gauge(words.RUNNING), engine.gauge(words.WAITING)
    preempted = engine.counter(words.PREEMPTIONS)
    if running is None or float(np.min(running.value)) < STEADY * float(np.max(running.value)):
        return False
    if waiting is not None and float((waiting.value > 0).mean()) > SELDOM:
        return False
    return preempted is None or float(preempted.increase().sum()) == 0
