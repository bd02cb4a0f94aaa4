"""Somebody stopped the engine's process with a signal."""

import os
import signal

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import serve_chats
from tracer.simulated.stage import Stage


def happen(stage: Stage) -> None:
    """Stop the process a third into the recording."""
    if stage.at(0.33):
        os.kill(stage.target.launcher_pid, signal.SIGSTOP)


SCENARIO = Scenario(
    name="stopped_engine",
    summary="The engine was stopped by a signal: nothing moves, and no kernel is to blame.",
    expected=Expected("unknown", statuses=("none", "undecided")),
    prepare=serve_chats,
    happen=happen,
    confounders=("hung_kernel", "idle"),
)
