"""A server takes requests before it was warmed up."""

from dataclasses import replace

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import CHATS, SERVER
from tracer.simulated.stage import Stage


def prepare(stage: Stage) -> None:
    """Hold the server before its first CUDA call, with modules that take long to load."""
    stage.device.set("module_load_ns", 900e6)
    stage.device.set("function_load_ns", 120e6)
    stage.serve(replace(SERVER, is_held=True, is_warmed_up=False), (CHATS,))


def happen(stage: Stage) -> None:
    """Let the server go on once the recording runs."""
    if stage.at(0.05):
        stage.order("go")


SCENARIO = Scenario(
    name="cold_start",
    summary="Requests meet a server that loads every module and kernel at its first use.",
    expected=Expected("launch.first_use"),
    prepare=prepare,
    happen=happen,
    confounders=("cpu_contention", "healthy"),
)
