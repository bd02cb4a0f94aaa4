"""The device lowers its clock for heat."""

from tracer.simulated.load import Group
from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import SERVER
from tracer.simulated.stage import Stage

#: nvmlClocksEventReasonSwThermalSlowdown.
THERMAL = 0x20
PROMPTS = Group(n_clients=3, prompt_tokens=(400, 900), max_tokens=(8, 24))


def happen(stage: Stage) -> None:
    """Lower the clock for the second half of the recording."""
    if stage.at(0.5):
        stage.device.set("clock_reasons", THERMAL, device=0)
        stage.device.set("clock_factor", 0.45, device=0)


SCENARIO = Scenario(
    name="throttled_clock",
    summary="Half-way the device halves its clock for heat, and prompts take twice as long.",
    expected=Expected("power.throttle"),
    prepare=lambda stage: stage.serve(SERVER, (PROMPTS,)),
    happen=happen,
    confounders=("throttle_flag", "prompts_only"),
)
