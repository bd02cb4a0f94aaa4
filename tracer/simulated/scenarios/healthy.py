"""A service that does what it should."""

from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import serve_chats

SCENARIO = Scenario(
    name="healthy",
    summary="Nothing is wrong: six clients chat with a warmed-up server.",
    expected=Expected("healthy"),
    prepare=serve_chats,
)
