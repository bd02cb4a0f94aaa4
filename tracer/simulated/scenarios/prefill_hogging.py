"""Long prompts go first, and the others wait for their next token."""

from dataclasses import replace

from tracer.simulated.load import Group
from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import SERVER, serve_chats
from tracer.simulated.stage import Stage

LONG_PROMPTS = Group(n_clients=1, prompt_tokens=(14_000, 20_000), max_tokens=(4, 12), think_s=1.0)


def prepare(stage: Stage) -> None:
    """Serve chats and long prompts with a policy that computes prompts first."""
    serve_chats(stage, replace(SERVER, policy="prefill_first"), LONG_PROMPTS)


SCENARIO = Scenario(
    name="prefill_hogging",
    summary="Prompts of ten thousand tokens hold the device while the chats wait.",
    expected=Expected("prefill.hogging"),
    prepare=prepare,
    confounders=("prompts_only", "hung_kernel"),
)
