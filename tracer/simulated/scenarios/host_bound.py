"""The device runs dry between small kernels."""

from dataclasses import replace

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import SERVER, serve_chats
from tracer.simulated.stage import Stage


def prepare(stage: Stage) -> None:
    """Serve a small model without graphs: Python between the launches takes longer than them."""
    options = replace(
        SERVER,
        is_eager=True,
        weights_ns=900_000,
        prefill_token_ns=9_000,
        context_token_ns=8,
        launch_work_ns=40_000,
    )
    serve_chats(stage, options)


SCENARIO = Scenario(
    name="host_bound",
    summary="A small model without graphs: the device waits for the next launch most of the time.",
    expected=Expected("launch.host_bound"),
    prepare=prepare,
    confounders=("healthy", "cpu_contention"),
)
