"""A training loop that reads a number back after every second kernel."""

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.training import start_training

SCENARIO = Scenario(
    name="syncing_training",
    summary="A training loop that reads the loss back after every second kernel.",
    expected=Expected("host.sync_stall"),
    prepare=lambda stage: start_training(stage, load_ns=25_000_000, sync_every=2),
    confounders=("training", "host_bound"),
)
