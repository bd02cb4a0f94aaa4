"""Other processes burn the CPU that the launching thread runs on."""

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import serve_chats
from tracer.simulated.stage import Stage

NAME = "report-gen"
N_PROCESSES = 5


def prepare(stage: Stage) -> None:
    """Serve chats beside processes that burn the launcher's CPU."""
    serve_chats(stage)
    config = {"name": NAME, "cpus": stage.cpus.launcher, "busy_s": 1.0, "idle_s": 0.0}
    for _ in range(N_PROCESSES):
        # Each in a session of its own: the scheduler may share a CPU by sessions first.
        stage.culprits[NAME] = stage.start_module("hog", config, on_device=False).pid


SCENARIO = Scenario(
    name="cpu_contention",
    summary="Processes of another job burn the CPU of the thread that launches.",
    expected=Expected("launch.cpu_delay", names_culprit=True),
    prepare=prepare,
    confounders=("hog_elsewhere",),
    has_cpu_contention=True,
)
