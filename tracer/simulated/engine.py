"""The engine process of the simulated server: schedules, launches, waits, and reports each step.

Started by ``tracer.simulated.server`` with one end of a channel as its only argument.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from typing import Any

from tracer.simulated.batching import Batcher, Request, Step
from tracer.simulated.channel import Channel
from tracer.simulated.computing import compute
from tracer.simulated.faults import Faults
from tracer.simulated.model import Model
from tracer.simulated.options import ServerOptions
from tracer.simulated.orphan import end_with_parent

_PR_SET_NAME = 15
#: Name of the engine's process, cut to 15 letters by the kernel as vLLM's is.
NAME = b"VLLM::EngineCor"
#: Pause of an engine that has requests but cannot run any, in seconds.
_BLOCKED_S = 0.01


class Engine:
    """One engine: a scheduler, a model and the channel to the API process.

    Args:
        options: Settings of the server.
        channel: Requests and orders come in, the outputs of each step go out.
    """

    def __init__(self, options: ServerOptions, channel: Channel) -> None:
        self._options = options
        self._channel = channel
        self._model = Model(options)
        self._faults = Faults(self._model)
        self._batcher = Batcher(
            options.n_blocks,
            options.block_tokens,
            options.step_tokens,
            options.max_running,
            options.policy,
        )

    def run(self) -> None:
        """Serve until the API process goes away."""
        if self._options.is_held:
            self._hold()
        self._model.load()
        if self._options.is_warmed_up:
            self._model.warm_up()
        self._channel.send({"ready": True})
        while True:
            self._receive()
            self._faults.before_step()
            scheduled_at = time.monotonic()
            step = self._batcher.schedule()
            if step.n_tokens:
                self._prepare(step)
                self._model.run(step)
            else:
                time.sleep(_BLOCKED_S)
            self._report(step, scheduled_at)

    def _hold(self) -> None:
        """Wait, before the first CUDA call, for the order to go on."""
        self._channel.send({"held": True})
        while (message := self._channel.receive(None)) is not None:
            if message.get("order") == "go":
                return
            self._take(message)

    def _receive(self) -> None:
        """Take all messages that are there; wait for one when there is nothing to do."""
        timeout_s = 0.0 if self._batcher.has_work else None
        while (message := self._channel.receive(timeout_s)) is not None:
            self._take(message)
            timeout_s = 0.0 if self._batcher.has_work else None

    def _take(self, message: dict[str, Any]) -> None:
        if "add" in message:
            request_id, prompt_tokens, max_tokens, n_samples = message["add"]
            now = time.monotonic()
            self._batcher.add(Request(request_id, prompt_tokens, max_tokens, n_samples, now))
        elif "abort" in message:
            self._batcher.abort(message["abort"])
        elif "order" in message:
            self._faults.order(message["order"], message.get("arguments", {}))

    def _prepare(self, step: Step) -> None:
        """Build the step's inputs in Python and spend the configured CPU time."""
        tables = [[block * 16 for block in request.blocks] for request in step.decodes]
        positions = [request.n_computed for request in step.decodes]
        del tables, positions
        compute(self._options.host_work_ns)

    def _report(self, step: Step, scheduled_at: float) -> None:
        """Account the step and send its outputs with the state of the scheduler.

        The times are CLOCK_MONOTONIC in seconds, which the API process has too.
        """
        batcher = self._batcher
        started = [(request.id, request.queued_at) for request, _ in step.prefills]
        outputs = [
            (request.id, request.n_output >= request.max_tokens, request.n_preempted)
            for request in batcher.complete(step)
        ]
        self._channel.send(
            {
                "outputs": outputs,
                "started": started,
                "scheduled_at": scheduled_at,
                "ended_at": time.monotonic(),
                "running": len(batcher.running),
                "waiting": len(batcher.waiting),
                "usage": batcher.usage,
                "preemptions": batcher.n_preemptions,
            }
        )


def main() -> None:
    """Run the engine on the channel whose descriptor is the first argument."""
    channel = Channel.from_descriptor(int(sys.argv[1]))
    options = ServerOptions.from_json((channel.receive(None) or {})["options"])
    ctypes.CDLL(None).prctl(_PR_SET_NAME, NAME, 0, 0, 0)
    if options.engine_cpus:
        os.sched_setaffinity(0, options.engine_cpus)
    end_with_parent()
    try:
        Engine(options, channel).run()
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        # The API process is gone. Exit at once: a hung kernel would block an orderly end.
        os._exit(0)


if __name__ == "__main__":
    main()
