"""Another process works on the same device, and both are inside MPS."""

import time

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.second_process import add_neighbour
from tracer.simulated.scenarios.serving import CHATS, SERVER, SETTLE_S
from tracer.simulated.stage import Stage


def prepare(stage: Stage) -> None:
    """Serve chats beside a small job that overlaps with them."""
    stage.start_mps()
    stage.serve(SERVER, (CHATS,), in_mps=True)
    add_neighbour(stage, burst_s=2.0, pause_s=0.7, share=0.1, in_mps=True)
    time.sleep(SETTLE_S)


SCENARIO = Scenario(
    name="mps_neighbour",
    summary="A small job of another process overlaps with the service, both inside MPS.",
    expected=Expected("healthy"),
    prepare=prepare,
    confounders=("outside_mps", "second_process"),
)
