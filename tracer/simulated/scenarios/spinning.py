"""The engine spins in its waits, as CUDA does by default, and all is well."""

from dataclasses import replace

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import SERVER, serve_chats

SCENARIO = Scenario(
    name="spinning",
    summary="Nothing is wrong: the engine uses a whole CPU because its waits spin.",
    expected=Expected("healthy"),
    prepare=lambda stage: serve_chats(stage, replace(SERVER, wait="spin")),
    confounders=("spinning_hang", "cpu_contention"),
)
