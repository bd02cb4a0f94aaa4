"""A thread of the engine holds the interpreter."""

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import serve_chats
from tracer.simulated.stage import Stage


def prepare(stage: Stage) -> None:
    """Serve chats beside a thread that polls in Python."""
    serve_chats(stage)
    stage.order("hold_interpreter", busy_ns=30_000_000, idle_ns=4_000_000)


SCENARIO = Scenario(
    name="gil_holder",
    summary="A polling thread of the engine holds the interpreter that the launches need.",
    expected=Expected("launch.gil", statuses=("found", "undecided")),
    prepare=prepare,
    confounders=("cpu_contention", "gc_pause"),
    has_cpu_contention=True,
)
