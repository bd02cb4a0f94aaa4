"""Another process burns the CPU that the launching thread runs on."""

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import serve_chats
from tracer.simulated.stage import Stage

NAME = "report-gen"


def prepare(stage: Stage) -> None:
    """Serve chats beside a process that burns the launcher's CPU."""
    serve_chats(stage)
    hog = stage.start_module(
        "hog",
        {
            "name": NAME,
            "cpus": stage.cpus.launcher,
            "n_threads": 4,
            "busy_s": 1.0,
            "idle_s": 0.0,
        },
        on_device=False,
    )
    stage.culprits[NAME] = hog.pid


SCENARIO = Scenario(
    name="cpu_contention",
    summary="Another process burns the CPU of the thread that launches.",
    expected=Expected("launch.cpu_delay", names_culprit=True),
    prepare=prepare,
    confounders=("hog_elsewhere",),
    has_cpu_contention=True,
)
