"""The device shows a throttle reason, and nothing is slower."""

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import serve_chats
from tracer.simulated.stage import Stage

#: nvmlClocksEventReasonSwPowerCap.
POWER_CAP = 0x4


def happen(stage: Stage) -> None:
    """Show the power cap's bit, with one percent off the clock."""
    if stage.at(0.5):
        stage.device.set("clock_reasons", POWER_CAP, device=0)
        stage.device.set("clock_factor", 0.99, device=0)


SCENARIO = Scenario(
    name="throttle_flag",
    summary="The device reports a power cap, but neither clock nor kernels change to speak of.",
    expected=Expected("healthy"),
    prepare=serve_chats,
    happen=happen,
    confounders=("throttled_clock",),
)
