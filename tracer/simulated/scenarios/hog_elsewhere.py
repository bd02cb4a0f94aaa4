"""A process burns a CPU, but not the one that launches."""

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import serve_chats
from tracer.simulated.stage import Stage


def prepare(stage: Stage) -> None:
    """Serve chats beside a process that burns another CPU."""
    serve_chats(stage)
    stage.start_module(
        "hog",
        {
            "name": "report-gen",
            "cpus": stage.cpus.others,
            "busy_s": 0.02,
            "idle_s": 0.02,
        },
        on_device=False,
    )


SCENARIO = Scenario(
    name="hog_elsewhere",
    summary="Another process burns CPU, but not where the launching thread runs.",
    expected=Expected("healthy"),
    prepare=prepare,
    confounders=("cpu_contention",),
)
