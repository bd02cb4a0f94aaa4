"""A module is loaded in the middle of serving."""

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import serve_chats
from tracer.simulated.stage import Stage


def prepare(stage: Stage) -> None:
    """Serve chats; modules that come later take long to load."""
    serve_chats(stage)
    stage.device.set("module_load_ns", 400e6)
    stage.device.set("function_load_ns", 60e6)


def happen(stage: Stage) -> None:
    """Bring in a module of kernels three times."""
    for number, share in enumerate((0.2, 0.45, 0.7)):
        if stage.at(share):
            stage.order("load_module", n_kernels=6, tag=f"{stage.seed}_{number}")


SCENARIO = Scenario(
    name="module_at_serving",
    summary="New batch shapes bring in modules and kernels while requests are being served.",
    expected=Expected("launch.first_use"),
    prepare=prepare,
    happen=happen,
    confounders=("cpu_contention", "gc_pause"),
)
