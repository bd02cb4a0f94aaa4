"""Continuous batching over a paged KV pool: which tokens of which requests a step computes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

#: Scheduling policies: prompts share a step with decodes, or prompts go first and alone.
POLICIES = ("chunked", "prefill_first")


@dataclass(slots=True)
class Request:
    """One generation request: what it asks for and how far it is.

    ``n_computed`` tokens have their keys and values in the pool; ``n_output`` tokens were
    generated. After a preemption ``n_computed`` is 0 and everything is computed again.
    ``queued_at`` is when the scheduler got it, in seconds of CLOCK_MONOTONIC.
    """

    id: int
    prompt_tokens: int
    max_tokens: int
    n_samples: int = 1
    queued_at: float = 0.0
    n_computed: int = 0
    n_output: int = 0
    n_preempted: int = 0
    is_scheduled: bool = False
    blocks: list[int] = field(default_factory=list)

    @property
    def n_known(self) -> int:
        """Tokens that exist so far: the prompt and what was generated."""
        return self.prompt_tokens + self.n_output


@dataclass(slots=True)
class Step:
    """What one engine step computes.

    ``prefills`` holds (request, tokens) of prompts, ``decodes`` the requests that get one token
    each. ``n_context`` is the sum of the tokens that attention reads for the decodes.
    """

    prefills: list[tuple[Request, int]] = field(default_factory=list)
    decodes: list[Request] = field(default_factory=list)
    n_prefill_tokens: int = 0
    n_context: int = 0

    @property
    def n_tokens(self) -> int:
        """Tokens that go through the model in this step."""
        return self.n_prefill_tokens + len(self.decodes)


class Batcher:
    """The scheduler of an engine: waiting and running requests over one KV pool.

    Args:
        n_blocks: Blocks of the pool.
        block_tokens: Tokens per block.
        step_tokens: Most tokens in one step.
        max_running: Most requests that run at once.
        policy: One of ``POLICIES``.
    """

    def __init__(
        self, n_blocks: int, block_tokens: int, step_tokens: int, max_running: int, policy: str
    ) -> None:
        if policy not in POLICIES:
            raise ValueError(f"unknown policy '{policy}'; one of {', '.join(POLICIES)}")
        self.n_blocks = n_blocks
        self.block_tokens = block_tokens
        self.step_tokens = step_tokens
        self.max_running = max_running
        self.policy = policy
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.n_preemptions = 0
        self._free = list(range(n_blocks))

    @property
    def usage(self) -> float:
        """Share of the pool in use, 0 to 1."""
        return 1.0 - len(self._free) / self.n_blocks

    @property
    def has_work(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self.running or self.waiting)

    def add(self, request: Request) -> None:
        """Queue a request at the end."""
        self.waiting.append(request)

    def abort(self, request_id: int) -> bool:
        """Drop an unfinished request; False when there is none of that id."""
        for queue in (self.running, self.waiting):
            for request in queue:
                if request.id == request_id:
                    queue.remove(request)
                    self._release(request)
                    return True
        return False

    def schedule(self) -> Step:
        """Return the next step; an empty one when nothing can run."""
        step = Step()
        budget = self.step_tokens
        if self.policy == "prefill_first":
            budget = self._schedule_prompts(step, budget)
            if not step.prefills:
                self._schedule_decodes(step, budget)
        else:
            budget = self._schedule_decodes(step, budget)
            self._schedule_prompts(step, budget)
        return step

    def complete(self, step: Step) -> list[Request]:
        """Account a computed step; return the requests that got a token in it.

        A request gets its first token in the step that computes the last of its prompt.
        Finished requests leave the batch and return their blocks.
        """
        got_token = list(step.decodes)
        for request, n_tokens in step.prefills:
            request.n_computed += n_tokens
            if request.n_computed == request.n_known:
                got_token.append(request)
        for request in step.decodes:
            request.n_computed += 1
        for request in got_token:
            request.n_output += 1
            if request.n_output >= request.max_tokens:
                self.running.remove(request)
                self._release(request)
        return got_token

    def _schedule_decodes(self, step: Step, budget: int) -> int:
        """Give one token to each running request whose prompt is done, while the budget lasts."""
        for request in list(self.running):
            if budget <= 0:
                break
            is_prompt_left = request.n_computed < request.n_known - 1 or request.n_output == 0
            if is_prompt_left or request not in self.running:
                continue
            if not self._grow(request, request.n_computed + 1, may_preempt=True):
                continue
            step.decodes.append(request)
            step.n_context += request.n_computed + 1
            budget -= request.n_samples
        step.decodes = [request for request in step.decodes if request.blocks]
        return budget

    def _schedule_prompts(self, step: Step, budget: int) -> int:
        """Continue prompts that are under way, then admit waiting ones."""
        for request in self.running:
            n_left = request.n_known - request.n_computed
            if request.n_output and n_left <= 1:
                continue
            budget = self._schedule_prompt(step, request, min(n_left, budget), budget)
        while self.waiting and budget > 0 and len(self.running) < self.max_running:
            request = self.waiting[0]
            if not self._grow(request, request.n_known, may_preempt=False):
                break
            self.waiting.popleft()
            self.running.append(request)
            request.is_scheduled = True
            n_left = request.n_known - request.n_computed
            budget = self._schedule_prompt(step, request, min(n_left, budget), budget)
        return budget

    def _schedule_prompt(self, step: Step, request: Request, n_tokens: int, budget: int) -> int:
        if n_tokens <= 0:
            return budget
        step.prefills.append((request, n_tokens))
        step.n_prefill_tokens += n_tokens
        return budget - n_tokens

    def _grow(self, request: Request, n_tokens: int, may_preempt: bool) -> bool:
        """Give the request blocks for that many tokens, evicting the newest others if allowed."""
        n_missing = -(-n_tokens // self.block_tokens) - len(request.blocks)
        while n_missing > len(self._free):
            if not may_preempt or not self._preempt_newest(request):
                return False
        if n_missing > 0:
            request.blocks.extend(self._free[-n_missing:])
            del self._free[-n_missing:]
        return True

    def _preempt_newest(self, keep: Request) -> bool:
        """Evict the newest running request; False when that is the one to keep."""
        victim = self.running[-1]
        if victim is keep and len(self.running) == 1:
            return False
        self.running.remove(victim)
        self._release(victim)
        victim.n_computed = 0
        victim.n_preempted += 1
        self.n_preemptions += 1
        self.waiting.appendleft(victim)
        return victim is not keep

    def _release(self, request: Request) -> None:
        self._free.extend(request.blocks)
        request.blocks = []
