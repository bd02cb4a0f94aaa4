"""A training loop whose workers keep up."""

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.stage import Stage
from tracer.simulated.training import TrainingOptions


def start_training(
    stage: Stage, load_ns: int = 25_000_000, sync_every: int = 0, batch_bytes: int = 4 << 20
) -> None:
    """Start the loop: one worker that needs ``load_ns`` of CPU per batch."""
    options = TrainingOptions(
        n_workers=1,
        load_ns=load_ns,
        sync_every=sync_every,
        batch_bytes=batch_bytes,
        host_kernel_ns=100_000,
        main_cpus=stage.cpus.launcher,
        worker_cpus=stage.cpus.others,
    )
    stage.start_training(options.to_json())


SCENARIO = Scenario(
    name="training",
    summary="A training loop whose DataLoader is faster than its steps.",
    expected=Expected("healthy", or_causes=("device.compute_bound",)),
    prepare=start_training,
    confounders=("starved_training", "syncing_training"),
)
