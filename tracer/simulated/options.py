"""The settings of the simulated server: its configuration file, its engine's first message."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

#: How a synchronising call waits.
WAITS = ("sleep", "spin")


@dataclass(frozen=True)
class ServerOptions:
    """Settings of one simulated LLM server.

    The model is described by what a token costs on the device: ``prefill_token_ns`` of compute
    per prompt token, ``weights_ns`` of memory traffic per step, ``context_token_ns`` of memory
    traffic per token that attention reads. The defaults are those of an 8-billion-parameter model
    in 16 bits on a device of 2 TB/s and 160 TFLOP/s of sustained arithmetic.

    Batches above ``largest_graph`` are launched kernel by kernel, all of them with ``is_eager``.
    ``host_work_ns`` is the CPU time the engine spends in Python per step besides its launches,
    ``launch_work_ns`` that between two launches of a step without a graph, ``frontend_token_ns``
    that of the API process per prompt token.
    """

    port: int = 0
    model_name: str = "meta-llama/Llama-3.1-8B-Instruct"
    runtime: int = 12
    device: int = 0
    seed: int = 0
    n_blocks: int = 4096
    block_tokens: int = 16
    step_tokens: int = 2048
    max_running: int = 32
    policy: str = "chunked"
    wait: str = "sleep"
    is_warmed_up: bool = True
    is_held: bool = False
    is_eager: bool = False
    largest_graph: int = 32
    n_layers: int = 16
    prefill_token_ns: int = 100_000
    weights_ns: int = 8_000_000
    context_token_ns: int = 65
    sample_ns: int = 120_000
    host_work_ns: int = 400_000
    launch_work_ns: int = 0
    frontend_token_ns: int = 0
    engine_cpus: tuple[int, ...] = ()
    server_cpus: tuple[int, ...] = ()

    def to_json(self) -> str:
        """Return the settings as JSON text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ServerOptions:
        """Return the settings of JSON text.

        Raises:
            TypeError: it names a setting that does not exist.
        """
        data = json.loads(text)
        for name in ("engine_cpus", "server_cpus"):
            data[name] = tuple(data.get(name, ()))
        return cls(**data)

    @classmethod
    def read(cls, path: Path) -> ServerOptions:
        """Return the settings of a configuration file."""
        return cls.from_json(path.read_text(encoding="utf-8"))
