import random

import pytest

from tracer.simulated.batching import POLICIES, Batcher, Request


def drain(batcher: Batcher) -> tuple[list[int], list[tuple[int, int]]]:
    """Run to the end: ids in the order in which they finish, and (prompt, decode) of each step."""
    finished, steps = [], []
    while batcher.has_work:
        step = batcher.schedule()
        assert step.n_tokens, "requests are left and nothing can run"
        steps.append((step.n_prefill_tokens, len(step.decodes)))
        finished += [r.id for r in batcher.complete(step) if r.n_output >= r.max_tokens]
    return finished, steps


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_ends_and_returns_its_blocks(policy):
    draw = random.Random(7)
    batcher = Batcher(64, 16, 256, 8, policy)
    for number in range(41):
        batcher.add(Request(number, draw.randint(1, 300), draw.randint(1, 60)))
    finished, _ = drain(batcher)
    assert sorted(finished) == list(range(41))
    assert batcher.usage == 0.0


def test_prompts_first_stops_decodes_and_chunks_do_not():
    for policy, stalls in (("prefill_first", True), ("chunked", False)):
        batcher = Batcher(1024, 16, 256, 8, policy)
        batcher.add(Request(1, 10, 50))
        batcher.complete(batcher.schedule())
        batcher.add(Request(2, 2560, 1))
        steps = drain(batcher)[1]
        mixed = [decodes for prompt, decodes in steps if prompt]
        assert len(mixed) >= 10
        assert (sum(mixed) == 0) is stalls, policy


def test_a_full_pool_evicts_the_newest_and_computes_it_again():
    batcher = Batcher(8, 16, 512, 8, "chunked")
    batcher.add(Request(1, 48, 40))
    batcher.add(Request(2, 48, 40))
    finished, steps = drain(batcher)
    assert batcher.n_preemptions >= 1
    assert finished == [1, 2]
    assert sum(prompt for prompt, _ in steps) > 96


def test_an_aborted_request_returns_its_blocks():
    batcher = Batcher(64, 16, 256, 8, "chunked")
    batcher.add(Request(1, 100, 100))
    batcher.complete(batcher.schedule())
    assert batcher.abort(1)
    assert not batcher.abort(1)
    assert batcher.usage == 0.0
    assert not batcher.has_work
