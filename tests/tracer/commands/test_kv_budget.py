from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.analysis.test_kv import LLAMA_70B
from tests.probes.engine.serving import page, serving
from tracer.cli import cli, run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_70B))
    return path


def answer(*arguments: object) -> dict:
    result = CliRunner().invoke(cli, ["kv-budget", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_the_declared_case(config: Path):
    found = answer(config, "--pool-tokens", "2.42m", "--max-model-len", "1M")
    assert found["budget"]["token_bytes"] == 327_680
    assert found["budget"]["n_sequences"] == pytest.approx(2.308, abs=0.001)
    text = CliRunner().invoke(
        cli, ["kv-budget", str(config), "--pool-tokens", "2.42m", "--max-model-len", "1m"]
    )
    assert "320.0 KiB" in text.output and "2.42 fit" in text.output


def test_weights_are_read_beside_the_configuration(config: Path):
    index = {"metadata": {"total_size": 8 << 30}, "weight_map": {}}
    (config.parent / "model.safetensors.index.json").write_text(json.dumps(index))
    found = answer(config.parent, "--tensor-parallel", 8, "--gpu-memory", "10GiB")
    assert found["settings"]["weights_bytes"] == 1 << 30
    assert found["budget"]["pool_bytes"] == 8 << 30


def test_the_pool_of_a_running_engine(shared_data: Path, config: Path):
    text = (shared_data / "metrics/vllm-0.32.0-cpu-recorded/metrics_idle.txt").read_text()
    with serving(page(text)) as server:
        host = f"127.0.0.1:{server.port}"
        found = answer("--engine", host, "--max-model-len", 256)
        both = answer(config, "--engine", host, "--max-model-len", 256)
        assert [line.split()[1] for line in server.requests[:2]] == ["/metrics", "/v1/models"]
    told = found["engine"]
    assert told["engine"] == "vllm" and told["pool_tokens"] > 0
    assert found["budget"]["n_sequences"] == pytest.approx(told["pool_tokens"] / 256)
    assert both["budget"]["pool_bytes"] == told["pool_tokens"] * both["budget"]["token_bytes"]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", 3),
        (b"\xff\xfe\x00", 3),
        (b"[" * 200_000, 3),
        (b"[]", 3),
        (b"{}", 3),
        (b'{"num_hidden_layers": 1e999}', 3),
    ],
)
def test_a_bad_file_is_an_error_without_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, code: int
):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    assert run(["kv-budget", str(path)]) == code
    shown = capsys.readouterr().err
    assert shown.startswith("tracer: ") and shown.count("\n") == 1


def test_wrong_usage(config: Path, tmp_path: Path):
    assert run(["kv-budget"]) == 2
    assert run(["kv-budget", str(tmp_path / "none.json")]) == 3
    assert run(["kv-budget", str(config), "--tensor-parallel", "0"]) == 3
    assert run(["kv-budget", str(config), "--kv-type", "int3"]) == 3
    assert run(["kv-budget", str(config), "--max-model-len", "many"]) == 2
    assert run(["kv-budget", str(config), "--gpu-memory", "80"]) == 2
    assert run(["kv-budget", "--engine", "http://127.0.0.1:1"]) == 4
