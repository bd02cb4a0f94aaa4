"""A few requests ask for many answers each."""

from tracer.simulated.load import Group
from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import serve_chats
from tracer.simulated.stage import Stage

MANY_ANSWERS = Group(n_clients=2, prompt_tokens=(96, 256), max_tokens=(150, 250), n_samples=128)


def happen(stage: Stage) -> None:
    """Send the requests from the middle of the recording on."""
    if stage.at(0.4):
        stage.add_load((MANY_ANSWERS,))


SCENARIO = Scenario(
    name="heavy_requests",
    summary="Two clients ask for 128 answers per request, and everybody's tokens get slow.",
    expected=Expected("request.heavy", or_causes=("launch.graph_fallback",)),
    prepare=serve_chats,
    happen=happen,
    confounders=("overload", "graph_fallback"),
)
