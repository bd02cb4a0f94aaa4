"""A compiler runs in the middle of serving, and the engine waits for it."""

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import serve_chats
from tracer.simulated.stage import Stage


def happen(stage: Stage) -> None:
    """Compile a new kernel's host code once, with a real compiler."""
    if stage.at(0.3):
        stage.order("compile", n_lines=700, tag=f"fused_{stage.seed}")


SCENARIO = Scenario(
    name="compile_at_serving",
    summary="The engine starts a compiler for a new kernel and waits for it.",
    expected=Expected("launch.first_use", statuses=("found", "undecided")),
    prepare=serve_chats,
    happen=happen,
    confounders=("cpu_contention", "hung_kernel"),
)
