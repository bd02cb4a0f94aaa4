"""MPS runs and the neighbour is inside, but the service is not."""

import time

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.second_process import add_neighbour
from tracer.simulated.scenarios.serving import CHATS, SERVER, SETTLE_S
from tracer.simulated.stage import Stage


def prepare(stage: Stage) -> None:
    """Serve chats outside of MPS beside a job that is inside."""
    stage.start_mps()
    stage.serve(SERVER, (CHATS,))
    add_neighbour(stage, burst_s=2.0, pause_s=0.7, in_mps=True)
    time.sleep(SETTLE_S)


SCENARIO = Scenario(
    name="outside_mps",
    summary="MPS runs, but the service is outside of it and takes turns with those inside.",
    expected=Expected("contention.outside_mps", or_causes=("contention.cross_process",)),
    prepare=prepare,
    confounders=("mps_neighbour", "second_process"),
)
