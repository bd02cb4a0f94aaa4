"""Four ranks that arrive together."""

import time
from dataclasses import replace

from tracer.simulated.ranks import RankOptions
from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.stage import Stage

JOB = RankOptions()


def start_ranks(stage: Stage, options: RankOptions) -> None:
    """Start the job on the launcher's CPU and let it settle."""
    cpus = tuple(sorted({*stage.cpus.launcher, *stage.cpus.others}))
    stage.start_ranks(replace(options, cpus=cpus).to_json())
    time.sleep(1.0)


SCENARIO = Scenario(
    name="even_ranks",
    summary="Four data-parallel ranks train, and each arrives at the all-reduce in time.",
    expected=Expected("healthy", or_causes=("device.compute_bound",)),
    prepare=lambda stage: start_ranks(stage, JOB),
    confounders=("late_rank", "wedged_collective"),
    n_devices=JOB.n_ranks,
)
