"""A kernel never ends, and the requests wait."""

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import serve_chats
from tracer.simulated.stage import Stage


def happen(stage: Stage) -> None:
    """Launch the kernel a quarter into the recording."""
    if stage.at(0.25):
        stage.order("hang")


SCENARIO = Scenario(
    name="hung_kernel",
    summary="One kernel never ends; the engine sleeps in its wait and the requests hang.",
    expected=Expected("hang.kernel"),
    prepare=serve_chats,
    happen=happen,
    confounders=("prefill_hogging", "idle"),
)
