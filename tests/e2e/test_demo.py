"""One seed of each scenario of the first issue, from the command line to the verdict."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import DISTURBED
from tests.e2e.acceptance import run_counted, run_once

FIRST = (
    "healthy",
    "cpu_contention",
    "cold_start",
    "prefill_hogging",
    "second_process",
    "hung_kernel",
)
DURATION = "6s"


@pytest.mark.root
@pytest.mark.parametrize("scenario", FIRST)
def test_the_verdict_is_the_fault_that_was_staged(scenario: str, tmp_path: Path):
    run = run_counted(scenario, seed=11, duration=DURATION, folder=tmp_path)
    if run.is_disturbed:
        pytest.skip(f"{run.n_disturbed + 1} runs were {DISTURBED}: quiet the machine")
    assert run.is_right, run.text


@pytest.mark.root
def test_the_verdict_is_labelled_simulated_and_nothing_is_left_behind(tmp_path: Path):
    result = run_once("idle", 3, "2s", tmp_path)
    manifest = json.loads((Path(result["session"]) / "manifest.json").read_text())
    assert manifest["is_simulated"] is True
    assert "no_demand" not in (Path(result["session"]) / "manifest.json").read_text()
    left = subprocess.run(
        ["pgrep", "-f", f"tracer.simulated.*{result['session']}"], capture_output=True, check=False
    )
    assert not left.stdout


def test_the_list_names_every_scenario():
    listed = subprocess.run(
        [sys.executable, "-m", "tracer", "demo", "--list"],
        capture_output=True,
        text=True,
        check=True,
    )
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    assert names == sorted(names)
    assert set(FIRST) <= set(names)


def test_an_unknown_scenario_is_a_usage_error():
    done = subprocess.run(
        [sys.executable, "-m", "tracer", "demo", "cpu_contension"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "did you mean cpu_contention?" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_kept_service_ends_with_the_demo(tmp_path: Path):
    demo = subprocess.Popen(
        [
            *(sys.executable, "-m", "tracer", "demo", "idle", "--duration", "1s"),
            *("--keep", "-o", str(tmp_path / "s.tracer")),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert demo.stderr is not None
    line = next(line for line in demo.stderr if "runs on as pid" in line)
    pid = int(line.split("pid ")[1].split(";")[0])
    assert Path(f"/proc/{pid}").exists()
    demo.terminate()
    demo.communicate(timeout=60)
    assert not Path(f"/proc/{pid}").exists()
