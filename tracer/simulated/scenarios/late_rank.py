"""One rank arrives late, and the others wait in busy kernels."""

from dataclasses import replace

from tracer.simulated.scenarios.even_ranks import JOB, start_ranks
from tracer.simulated.scenarios.scenario import Expected, Scenario

SCENARIO = Scenario(
    name="late_rank",
    summary="The third of four ranks comes late to each all-reduce; the others wait, 100 % busy.",
    # The rank is late because its host works: to name that is right as well.
    expected=Expected("collective.straggler", or_causes=("launch.host_bound",)),
    prepare=lambda stage: start_ranks(stage, replace(JOB, late_rank=2, late_ns=60_000_000)),
    confounders=("even_ranks", "wedged_collective"),
    n_devices=JOB.n_ranks,
)
