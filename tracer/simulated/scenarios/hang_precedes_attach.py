"""The kernel hangs since before the recording began."""

import time

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import serve_chats
from tracer.simulated.stage import Stage


def prepare(stage: Stage) -> None:
    """Hang the device, then wait until nothing moves any more."""
    serve_chats(stage)
    stage.order("hang")
    time.sleep(1.0)


SCENARIO = Scenario(
    name="hang_precedes_attach",
    summary="A kernel hangs since before the recording: no call is seen to be entered.",
    expected=Expected("hang.kernel"),
    prepare=prepare,
    confounders=("idle",),
)
