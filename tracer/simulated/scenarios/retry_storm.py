"""Clients give up and send again, and the server does the work twice."""

from dataclasses import replace

from tracer.simulated.load import Group
from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import SERVER
from tracer.simulated.stage import Stage

IMPATIENT = Group(
    n_clients=24,
    prompt_tokens=(400, 400),
    max_tokens=(150, 200),
    timeout_s=1.2,
    n_retries=20,
)


def prepare(stage: Stage) -> None:
    """Serve clients that wait less long than an answer takes under their own load."""
    stage.serve(replace(SERVER, max_running=12), (IMPATIENT,))


SCENARIO = Scenario(
    name="retry_storm",
    summary="Clients give up after 1.2 s and send the same again; few ever get an answer.",
    expected=Expected("queue.retry_storm", or_causes=("queue.overload",)),
    prepare=prepare,
    confounders=("overload", "heavy_requests"),
)
