"""A kernel never ends, and the engine spins in its wait."""

from dataclasses import replace

from tracer.simulated.scenarios.hung_kernel import happen
from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import SERVER, serve_chats

SCENARIO = Scenario(
    name="spinning_hang",
    summary="One kernel never ends; the engine spins in its wait and looks busy.",
    expected=Expected("hang.kernel"),
    prepare=lambda stage: serve_chats(stage, replace(SERVER, wait="spin")),
    happen=happen,
    confounders=("spinning", "prefill_hogging"),
)
