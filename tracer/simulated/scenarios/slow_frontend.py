"""The API process cannot prepare requests as fast as they come."""

from dataclasses import replace

from tracer.simulated.load import Group
from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import SERVER
from tracer.simulated.stage import Stage

ARRIVALS = Group(n_clients=10, prompt_tokens=(300, 500), max_tokens=(2, 4))


def prepare(stage: Stage) -> None:
    """Serve clients whose prompts take longer to prepare than to compute."""
    stage.serve(replace(SERVER, frontend_token_ns=500_000), (ARRIVALS,))


SCENARIO = Scenario(
    name="slow_frontend",
    summary="The API process tokenises in one thread's time, and the engine waits for requests.",
    expected=Expected("queue.frontend"),
    prepare=prepare,
    confounders=("idle", "overload"),
)
