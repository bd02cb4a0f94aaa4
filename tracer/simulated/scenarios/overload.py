"""More work arrives than the service can do."""

from dataclasses import replace

from tracer.simulated.load import Group
from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import SERVER
from tracer.simulated.stage import Stage

ARRIVALS = Group(rate_per_s=14.0, prompt_tokens=(200, 400), max_tokens=(120, 240))


def prepare(stage: Stage) -> None:
    """Serve at most eight requests at once, of three times as many."""
    stage.serve(replace(SERVER, max_running=8), (ARRIVALS,))


SCENARIO = Scenario(
    name="overload",
    summary="Requests arrive three times as fast as the service can answer them.",
    expected=Expected("queue.overload"),
    prepare=prepare,
    confounders=("cpu_contention", "kv_preemption"),
)
