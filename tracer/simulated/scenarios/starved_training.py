"""A training loop that waits for its batches."""

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.training import start_training

SCENARIO = Scenario(
    name="starved_training",
    summary="A training loop whose DataLoader needs three times as long as a step.",
    expected=Expected("host.input_starvation"),
    prepare=lambda stage: start_training(stage, load_ns=130_000_000),
    confounders=("training", "syncing_training"),
)
