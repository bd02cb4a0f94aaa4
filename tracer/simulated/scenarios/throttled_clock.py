"""The device lowers its clock for heat."""

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.training import start_training
from tracer.simulated.stage import Stage

#: nvmlClocksEventReasonSwThermalSlowdown.
THERMAL = 0x20


def happen(stage: Stage) -> None:
    """Lower the clock for the second half of the recording."""
    if stage.at(0.5):
        stage.device.set("clock_reasons", THERMAL, device=0)
        stage.device.set("clock_factor", 0.45, device=0)


SCENARIO = Scenario(
    name="throttled_clock",
    summary="Half-way the device halves its clock for heat, and training steps take twice as long.",
    expected=Expected("power.throttle"),
    prepare=start_training,
    happen=happen,
    confounders=("throttle_flag", "training"),
)
