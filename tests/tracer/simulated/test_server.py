"""The simulated server behaves as an LLM server does, seen from outside and by device truth."""

import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tracer.simulated.load import Group
from tracer.simulated.options import ServerOptions
from tracer.simulated.stage import Stage

#: From the engine's queue to the first token.
PHASES = ("queue", "prefill")


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage(seed=5) as stage:
        yield stage


def metrics(stage: Stage) -> dict[str, float]:
    """Samples of the page without labels; buckets and creation times left out."""
    with urllib.request.urlopen(f"{stage.target.url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {
        name.split("{")[0]: float(value)
        for name, value in samples
        if "_bucket" not in name and "_created" not in name
    }


def until(condition, timeout_s: float = 15.0) -> bool:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("runtime", [12, 13])
def test_requests_are_served_in_batches_and_counted(stage: Stage, runtime: int):
    group = Group(n_clients=4, prompt_tokens=(40, 60), max_tokens=(20, 30))
    stage.serve(ServerOptions(runtime=runtime), (group,))
    assert until(lambda: metrics(stage)["vllm:e2e_request_latency_seconds_count"] >= 8)
    page = metrics(stage)
    assert page["vllm:num_requests_running"] >= 2
    n_ended = page["vllm:e2e_request_latency_seconds_count"]
    assert 40 * n_ended <= page["vllm:prompt_tokens_total"]
    assert page["vllm:generation_tokens_total"] >= 20 * n_ended
    assert page["vllm:iteration_tokens_total_count"] < page["vllm:generation_tokens_total"]
    queued, computed = (page[f"vllm:request_{name}_time_seconds_sum"] for name in PHASES)
    assert computed > 0
    assert queued + computed < page["vllm:time_to_first_token_seconds_sum"]
    name = Path(f"/proc/{stage.target.launcher_pid}/comm").read_text().strip()
    assert name == "VLLM::EngineCor"
    libraries = Path(f"/proc/{stage.target.launcher_pid}/maps").read_text()
    assert f"libcudart.so.{runtime}" in libraries
    assert "libcuda.so.1" in libraries


def test_a_hang_freezes_the_counters_but_not_the_page(stage: Stage):
    stage.serve(ServerOptions(), (Group(n_clients=3),))
    assert until(lambda: metrics(stage)["vllm:num_requests_running"] == 3)
    stage.order("hang")
    time.sleep(1.0)
    before = metrics(stage)
    time.sleep(0.5)
    after = metrics(stage)
    assert after["vllm:generation_tokens_total"] == before["vllm:generation_tokens_total"]
    assert after["vllm:num_requests_running"] == 3


def test_a_held_server_makes_no_launch_until_it_may(stage: Stage):
    stage.serve(replace(ServerOptions(), is_held=True, is_warmed_up=False), (Group(),))
    time.sleep(0.3)
    assert metrics(stage)["vllm:generation_tokens_total"] == 0
    stage.order("go")
    assert until(lambda: metrics(stage)["vllm:generation_tokens_total"] > 10)


def test_a_client_that_hangs_up_is_an_abort(stage: Stage):
    impatient = Group(n_clients=1, max_tokens=(3000, 3000), timeout_s=0.6)
    stage.serve(ServerOptions(), (impatient,))
    assert until(lambda: metrics(stage)["vllm:request_success_total"] >= 0)
    aborts = 'finished_reason="abort"'

    def n_aborts() -> float:
        with urllib.request.urlopen(f"{stage.target.url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith("vllm:request_success_total") and aborts in line
        )

    assert until(lambda: n_aborts() >= 1)


def test_a_closed_stage_leaves_no_process_and_no_file():
    with Stage(seed=5) as stage:
        service = stage.serve(ServerOptions(), (Group(),))
        folder = stage.folder
    assert not folder.exists()
    assert until(lambda: not Path(f"/proc/{service.launcher_pid}").exists(), 5.0)
    assert not Path(f"/proc/{service.pid}").exists()


STAGED = """
import shutil, time
from tracer.simulated.load import Group
from tracer.simulated.options import ServerOptions
from tracer.simulated.stage import Stage
stage = Stage(seed=5)
service = stage.serve(ServerOptions(), (Group(n_clients=2),))
time.sleep(0.5)
stage.order("hang")
print(service.pid, service.launcher_pid, stage.folder, flush=True)
time.sleep(60)
"""


def test_the_service_ends_with_a_killed_stage_also_when_its_kernel_hangs():
    with subprocess.Popen(
        [sys.executable, "-c", STAGED], stdout=subprocess.PIPE, text=True
    ) as child:
        pid, engine_pid, folder = child.stdout.readline().split()
        child.kill()
    shutil.rmtree(folder, ignore_errors=True)
    assert until(lambda: not Path(f"/proc/{pid}").exists(), 10.0)
    assert until(lambda: not Path(f"/proc/{engine_pid}").exists(), 10.0)
