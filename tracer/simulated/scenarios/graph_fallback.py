"""Decodes run without graphs in the middle of serving."""

from dataclasses import replace

from tracer.simulated.load import Group
from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import SERVER, serve_chats
from tracer.simulated.stage import Stage


def happen(stage: Stage) -> None:
    """Raise the batch above the largest captured size."""
    if stage.at(0.4):
        stage.add_load((Group(n_clients=12, prompt_tokens=(64, 96), max_tokens=(300, 400)),))


SCENARIO = Scenario(
    name="graph_fallback",
    summary="The batch outgrows the captured graphs, and every step is launched kernel by kernel.",
    expected=Expected("launch.graph_fallback"),
    prepare=lambda stage: serve_chats(
        stage,
        replace(
            SERVER,
            largest_graph=8,
            launch_work_ns=40_000,
            weights_ns=3_000_000,
            prefill_token_ns=20_000,
        ),
    ),
    happen=happen,
    confounders=("host_bound", "cpu_contention"),
)
