"""The garbage collector stops the engine, again and again."""

import time

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import serve_chats
from tracer.simulated.stage import Stage


def prepare(stage: Stage) -> None:
    """Keep a million objects alive and collect every 25 steps."""
    serve_chats(stage)
    stage.order("collect", n_objects=1_200_000, every_steps=25)
    time.sleep(1.5)


SCENARIO = Scenario(
    name="gc_pause",
    summary="Python collects garbage among a million live objects every 25 steps.",
    expected=Expected("launch.gc_pause", statuses=("found", "undecided")),
    prepare=prepare,
    confounders=("few_objects", "gil_holder"),
)
