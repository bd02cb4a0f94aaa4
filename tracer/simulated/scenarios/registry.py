"""Every scenario, sorted by name."""

from __future__ import annotations

import difflib

from tracer.errors import UsageError
from tracer.simulated.scenarios import (
    cgroup_quota,
    cold_start,
    compile_at_serving,
    cpu_contention,
    even_ranks,
    few_objects,
    gc_pause,
    gil_holder,
    graph_fallback,
    hang_precedes_attach,
    healthy,
    heavy_requests,
    hog_elsewhere,
    host_bound,
    hung_kernel,
    idle,
    idle_neighbour,
    kv_preemption,
    late_rank,
    module_at_serving,
    mps_neighbour,
    outside_mps,
    overload,
    prefill_hogging,
    prompts_only,
    quota_unused,
    retry_storm,
    second_process,
    shared_core,
    slow_frontend,
    slow_link,
    spinning,
    spinning_hang,
    starved_training,
    stopped_engine,
    syncing_training,
    throttle_flag,
    throttled_clock,
    training,
    wedged_collective,
)
from tracer.simulated.scenarios.scenario import Scenario

#: Keep this list sorted.
SCENARIOS: tuple[Scenario, ...] = (
    cgroup_quota.SCENARIO,
    cold_start.SCENARIO,
    compile_at_serving.SCENARIO,
    cpu_contention.SCENARIO,
    even_ranks.SCENARIO,
    few_objects.SCENARIO,
    gc_pause.SCENARIO,
    gil_holder.SCENARIO,
    graph_fallback.SCENARIO,
    hang_precedes_attach.SCENARIO,
    healthy.SCENARIO,
    heavy_requests.SCENARIO,
    hog_elsewhere.SCENARIO,
    host_bound.SCENARIO,
    hung_kernel.SCENARIO,
    idle.SCENARIO,
    idle_neighbour.SCENARIO,
    kv_preemption.SCENARIO,
    late_rank.SCENARIO,
    module_at_serving.SCENARIO,
    mps_neighbour.SCENARIO,
    outside_mps.SCENARIO,
    overload.SCENARIO,
    prefill_hogging.SCENARIO,
    prompts_only.SCENARIO,
    quota_unused.SCENARIO,
    retry_storm.SCENARIO,
    second_process.SCENARIO,
    shared_core.SCENARIO,
    slow_frontend.SCENARIO,
    slow_link.SCENARIO,
    spinning.SCENARIO,
    spinning_hang.SCENARIO,
    starved_training.SCENARIO,
    stopped_engine.SCENARIO,
    syncing_training.SCENARIO,
    throttle_flag.SCENARIO,
    throttled_clock.SCENARIO,
    training.SCENARIO,
    wedged_collective.SCENARIO,
)


def find(name: str) -> Scenario:
    """Return the scenario of that name.

    Raises:
        UsageError: there is none; the text names one like it or says how to list them.
    """
    for scenario in SCENARIOS:
        if scenario.name == name:
            return scenario
    close = difflib.get_close_matches(name, [scenario.name for scenario in SCENARIOS], n=1)
    hint = f"did you mean {close[0]}?" if close else "list them with: tracer demo --list"
    raise UsageError(f"there is no scenario '{name}'; {hint}")
