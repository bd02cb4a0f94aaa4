"""One rank leaves out a collective, and the others wait for ever."""

from dataclasses import replace

from tracer.simulated.scenarios.even_ranks import JOB, start_ranks
from tracer.simulated.scenarios.scenario import Expected, Scenario

SCENARIO = Scenario(
    name="wedged_collective",
    summary="One of four ranks leaves out an all-reduce, and the others wait in it for ever.",
    expected=Expected("hang.collective"),
    prepare=lambda stage: start_ranks(stage, replace(JOB, wedged_rank=1, wedge_s=3.0)),
    confounders=("late_rank", "hung_kernel"),
    n_devices=JOB.n_ranks,
)
