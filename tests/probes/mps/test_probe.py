"""The audit in a recording, on the simulated device, and asked for by the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from analysis.schema import MPS_CLIENT
from probes.gpu.contexts import ContextBoard, DeviceContexts
from probes.mps import probe as mps_probe
from probes.mps.control import known_clients
from probes.mps.look import look
from probes.mps.probe import MpsProbe
from tests.probes.mps.stand_in import daemon, pipe_folder, process
from tracer.cli import cli
from tracer.simulated.build import BuildError
from tracer.simulated.device import SimulatedDevice

pytestmark = pytest.mark.root

ROOT = Path(__file__).resolve().parents[3]


class Targets:
    def __init__(self, pids: set[int]) -> None:
        self._pids = pids

    def pids(self) -> set[int]:
        return self._pids


def rows_of(probe: MpsProbe, n: int, timeout_s: float = 5.0) -> list[dict[str, Any]]:
    """Rows of a probe, once there are so many."""
    end = time.monotonic() + timeout_s
    rows: list[dict[str, Any]] = []
    while len(rows) < n and time.monotonic() < end:
        for batch in probe.drain(time.monotonic_ns()):
            assert batch.table is MPS_CLIENT
            rows.extend(batch.rows.to_pylist())
        time.sleep(0.02)
    return rows


def now_on(*pids: int) -> DeviceContexts:
    return DeviceContexts(time.monotonic_ns(), 0, frozenset(pids), frozenset())


def test_it_stores_what_changed_and_nothing_twice():
    board = ContextBoard()
    with process() as first, process() as second:
        probe = MpsProbe(board, Targets({first}), interval_ns=60_000_000_000)
        probe.start()
        board.put(now_on(first))
        assert [row["pid"] for row in rows_of(probe, 1)] == [first]
        board.put(now_on(first))
        board.put(now_on(first, second))
        rows = rows_of(probe, 2)
        list(probe.stop())
    assert {row["pid"]: row["is_target"] for row in rows} == {first: True, second: False}
    assert probe.report().n_rows == 3


def test_it_stores_again_after_the_interval():
    board = ContextBoard()
    with process() as pid:
        probe = MpsProbe(board, Targets(set()), interval_ns=1_000_000)
        probe.start()
        board.put(now_on(pid))
        assert len(rows_of(probe, 2)) == 2
        list(probe.stop())


def test_an_audit_that_fails_is_told_and_made_again(monkeypatch: pytest.MonkeyPatch):
    board = ContextBoard()
    whole = mps_probe.audit

    def fails(*_: Any) -> None:
        monkeypatch.setattr(mps_probe, "audit", whole)
        raise ValueError("odd")

    monkeypatch.setattr(mps_probe, "audit", fails)
    monkeypatch.setattr(mps_probe, "_LOOK_NS", 20_000_000)
    with process() as pid:
        probe = MpsProbe(board, Targets(set()), interval_ns=1_000_000)
        probe.start()
        board.put(now_on(pid))
        assert len(rows_of(probe, 1)) == 1
        list(probe.stop())
    assert probe.report().note == "MPS could not be audited: ValueError: odd"


def test_old_lists_are_not_used():
    board = ContextBoard()
    probe = MpsProbe(board, Targets(set()), interval_ns=1_000_000)
    board.put(DeviceContexts(time.monotonic_ns() - 60_000_000_000, 0, frozenset({1}), None))
    probe.start()
    assert rows_of(probe, 1, timeout_s=0.3) == []
    list(probe.stop())


@contextmanager
def neighbour(
    device: SimulatedDevice, folder: Path, wrapper: list[str], pipe: Path
) -> Iterator[int]:
    """A job on the simulated device; its pid."""
    config = folder / f"job-{time.monotonic_ns()}.json"
    config.write_text(
        json.dumps(
            {
                "name": "job",
                "cpus": sorted(os.sched_getaffinity(0)),
                "runtime": 12,
                "device": 0,
                "n_kernels": 1,
                "kernel_ns": 100_000,
                "burst_s": 0.001,
                "pause_s": 0.2,
                "start_s": 0,
                "share": 1.0,
            }
        )
    )
    environment = {
        **os.environ,
        **device.env(),
        "PYTHONPATH": str(ROOT),
        "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
    }
    job = [sys.executable, "-m", "tracer.simulated.neighbour", "--config", str(config)]
    known = {client.pid for client in device.clients()}
    child = subprocess.Popen([*wrapper, *job], env=environment)
    try:
        end = time.monotonic() + 20
        while not (new := {item.pid for item in device.clients()} - known):
            assert child.poll() is None and time.monotonic() < end
            time.sleep(0.02)
        yield new.pop()
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[SimulatedDevice]:
    try:
        device = SimulatedDevice(tmp_path / "state")
    except BuildError as error:
        pytest.skip(f"the simulated device cannot be built: {error}")
    with device:
        yield device


def test_simulated_processes_inside_and_outside(
    machine: SimulatedDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A real client, and one whose container does not see the pipe, through NVML."""
    with pipe_folder() as folder, daemon(folder, 0) as stand_in:
        machine.start_mps(folder)
        time.sleep(0.05)
        with neighbour(machine, tmp_path, [], folder) as inside:
            # The library compares names, so this one keeps it from the pipe by its name too.
            hide = ["unshare", "--mount", "sh", "-ec"]
            hide += [f'mount -t tmpfs none {folder}; exec "$@"', "sh"]
            with neighbour(machine, tmp_path, hide, folder) as outside:
                machine.set_mps(outside, False)
                found = look(machine.libraries.driver, machine.env())
                clients = {client.pid: client for client in found.clients}
                assert found.inventory.is_simulated and found.is_told
                assert clients[inside].role == "client"
                assert clients[outside].role == "outside"
                assert clients[outside].reason == "not_visible"

                for name, value in machine.env().items():
                    monkeypatch.setenv(name, value)
                result = CliRunner().invoke(cli, ["mps", "--json"])
                assert result.exit_code == 0, result.output
                answer = json.loads(result.output)
                assert answer["is_simulated"] is True
                assert [item["pid"] for item in answer["daemons"]] == [stand_in.pid]
                text = CliRunner().invoke(cli, ["mps"]).output
                assert "2 processes, 1 in MPS" in text
                assert "OUTSIDE MPS" in text and f"-v {folder}:{folder}" in text


def test_the_daemon_is_asked_only_what_has_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = tmp_path / "asked"
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(
        "#!/bin/sh\nread question\n"
        f'echo "$question" >> {asked}\n'
        'case "$question" in get_server_list) echo 77;; "get_client_list 77") echo 4242;; esac\n'
    )
    program.chmod(0o755)
    with pipe_folder() as folder, daemon(folder, 0) as stand_in:
        found = [stand_in.found()]
        assert known_clients(found) is None
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        assert known_clients(found) == {4242}
    assert asked.read_text().split("\n")[:-1] == ["get_server_list", "get_client_list 77"]


@pytest.mark.parametrize("body", ["echo 'Cannot find MPS control daemon process'", "exit 1"])
def test_an_answer_of_another_form_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
):
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pipe_folder() as folder, daemon(folder, None) as stand_in:
        assert known_clients([stand_in.found()]) is None


def test_without_a_driver_it_says_what_to_check(monkeypatch: pytest.MonkeyPatch):
    from tracer.cli import run

    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this host has a driver; the test needs one without")
    assert run(["mps"]) == 4
