"""The engine's own threads share the one CPU that its affinity leaves it."""

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import serve_chats
from tracer.simulated.stage import Stage


def prepare(stage: Stage) -> None:
    """Serve chats while five threads of the engine compute on its only CPU."""
    serve_chats(stage)
    stage.order("spawn_threads", n_threads=5)


SCENARIO = Scenario(
    name="shared_core",
    summary="The engine's affinity is one CPU, and threads of its own burn it; others are idle.",
    expected=Expected("launch.placement", or_causes=("launch.cpu_delay",)),
    prepare=prepare,
    confounders=("cpu_contention", "gil_holder"),
    has_cpu_contention=True,
)
