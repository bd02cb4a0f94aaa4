"""A service nobody asks."""

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import SERVER

SCENARIO = Scenario(
    name="idle",
    summary="The server is warmed up and nobody sends a request.",
    expected=Expected("no_demand"),
    prepare=lambda stage: stage.serve(SERVER),
    confounders=("hang_precedes_attach",),
)
