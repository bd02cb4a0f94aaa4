"""The pool of keys and values is too small for the requests that run."""

from dataclasses import replace

from tracer.simulated.load import Group
from tracer.simulated.scenarios.scenario import Expected, Scenario
from tracer.simulated.scenarios.serving import SERVER
from tracer.simulated.stage import Stage

LONG_ANSWERS = Group(n_clients=10, prompt_tokens=(250, 350), max_tokens=(500, 900))


def prepare(stage: Stage) -> None:
    """Serve ten requests that grow to a thousand tokens in a pool for four of them."""
    stage.serve(replace(SERVER, n_blocks=300), (LONG_ANSWERS,))


SCENARIO = Scenario(
    name="kv_preemption",
    summary="The KV pool is full: requests are evicted and computed again.",
    expected=Expected("kv.preemption", or_causes=("kv.undersized",)),
    prepare=prepare,
    confounders=("prefill_hogging", "overload"),
)
