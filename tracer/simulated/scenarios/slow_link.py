"""Copies over a slow link hold up every step."""

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.training import start_training
from tracer.simulated.stage import Stage


def prepare(stage: Stage) -> None:
    """Train with batches that take as long to copy as to compute."""
    stage.device.set("link_bandwidth", 1.5e9, device=0)
    stage.device.set("link_generation", 1, device=0)
    start_training(stage, batch_bytes=64 << 20)


SCENARIO = Scenario(
    name="slow_link",
    summary="The link runs at its lowest generation: each batch takes as long to copy as to train.",
    expected=Expected("transfer.host_link"),
    prepare=prepare,
    confounders=("training", "starved_training"),
)
