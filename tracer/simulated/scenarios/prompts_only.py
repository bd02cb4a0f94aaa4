"""Prompts hold the device, and nobody waits for tokens: a scoring service."""

from tracer.simulated.load import Group
from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import SERVER
from tracer.simulated.stage import Stage

SCORES = Group(n_clients=1, prompt_tokens=(700, 1_500), max_tokens=(1, 1))


def prepare(stage: Stage) -> None:
    """Serve one client that sends prompts and wants one token each."""
    stage.serve(SERVER, (SCORES,))


SCENARIO = Scenario(
    name="prompts_only",
    summary="A scoring client sends prompts one by one: nothing but prefill, and nobody waits.",
    expected=Expected("healthy", or_causes=("device.compute_bound",)),
    prepare=prepare,
    confounders=("prefill_hogging",),
)
