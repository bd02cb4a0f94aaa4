"""The garbage collector runs as often, and finds little to look at."""

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import serve_chats
from tracer.simulated.stage import Stage


def prepare(stage: Stage) -> None:
    """Collect every 25 steps among few objects."""
    serve_chats(stage)
    stage.order("collect", n_objects=1_000, every_steps=25)


SCENARIO = Scenario(
    name="few_objects",
    summary="Python collects garbage every 25 steps among few objects: it costs next to nothing.",
    expected=Expected("healthy"),
    prepare=prepare,
    confounders=("gc_pause",),
)
