"""Another process holds a context on the device and does nothing with it."""

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.second_process import add_neighbour
from tracer.simulated.scenarios.serving import serve_chats
from tracer.simulated.stage import Stage


def prepare(stage: Stage) -> None:
    """Serve chats beside a process that only holds memory."""
    serve_chats(stage)
    add_neighbour(stage, burst_s=1.0, pause_s=1.0, start_s=3600.0)


SCENARIO = Scenario(
    name="idle_neighbour",
    summary="Another process has memory on the device but launches nothing.",
    expected=Expected("healthy"),
    prepare=prepare,
    confounders=("second_process",),
)
