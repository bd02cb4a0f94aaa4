"""``tracer record --cupti`` as a person runs it: budget, exit codes, prepared programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis import attribute, open_session
from tests.probes.cupti.programs import CONTEXT
from tests.tracer.simulated.conftest import Machine
from tracer.simulated.build import BuildError, build

pytestmark = pytest.mark.root
TRACER = [sys.executable, "-m", "tracer"]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    try:
        build()
    except BuildError as error:
        pytest.skip(str(error))
    machine = Machine(tmp_path, 1)
    yield machine
    machine.close()


def record(machine: Machine, session: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TRACER, "record", "-o", str(session), *options],
        env=machine.environment(),
        capture_output=True,
        text=True,
        timeout=90,
    )


def launcher(machine: Machine, *options: str) -> list[str]:
    return ["--", str(machine.device.libraries.launcher), *options]


def test_a_command_with_both_sources_has_its_budget_from_device_times(
    machine: Machine, tmp_path: Path
) -> None:
    session = tmp_path / "s.tracer"
    options = ("launches=1500", "rate=1000", "kernel_us=300", "sync=1")
    done = record(machine, session, "--cupti", *launcher(machine, *options))
    assert done.returncode == 0, done.stderr
    opened = open_session(session)
    truth = machine.device.truth()
    rows = opened.table("gpu_activity")
    assert rows.num_rows == len(truth) == 1500
    (totals,) = attribute(opened).to_json()["budget_totals"]
    assert totals["is_timed"]
    busy = sum(int(row["end_ns"] - row["start_ns"]) for row in truth)
    assert totals["compute"] * opened.duration_ns == pytest.approx(busy, rel=0.02)
    (pid,) = {row["pid"] for row in rows.to_pylist()}
    assert not list(Path("/dev/shm").glob(f"tracer-cupti-*/ring-{pid}-*"))
    assert "CUDA_INJECTION64_PATH" not in json.dumps(opened.manifest.to_json())


def test_the_exit_status_of_a_crash_is_that_of_the_program(
    machine: Machine, tmp_path: Path
) -> None:
    session = tmp_path / "s.tracer"
    code = f"{CONTEXT}\nfor _ in range(30): launch()\nwait()\ntime.sleep(0.5)\nos.abort()"
    done = record(machine, session, "--cupti", "--", sys.executable, "-c", code)
    assert done.returncode == 128 + 6, done.stderr
    opened = open_session(session)
    assert opened.n_rows("gpu_activity") == 30


def test_a_prepared_program_is_collected_from_in_windows(machine: Machine, tmp_path: Path) -> None:
    place = tmp_path / "meeting"
    printed = subprocess.run(
        [*TRACER, "cupti", "--directory", str(place)], capture_output=True, text=True, check=True
    ).stdout
    variables = dict(line.split("=", 1) for line in printed.splitlines())
    assert Path(variables["CUDA_INJECTION64_PATH"]).parent == place
    process = machine.start("launches=0", "rate=1000", "kernel_us=100", **variables)
    session = tmp_path / "s.tracer"
    done = record(
        machine,
        session,
        *("--pid", str(process.pid), "--duration", "3s"),
        *("--cupti", "--window", "400ms", "--every", "1s"),
    )
    assert done.returncode == 0, done.stderr
    assert process.poll() is None, "the program goes on"
    opened = open_session(session)
    launches = opened.n_rows("cuda_call") / 2
    assert 0 < opened.n_rows("gpu_activity") < launches
    (totals,) = attribute(opened).to_json()["budget_totals"]
    assert totals["compute"] == pytest.approx(0.1, abs=0.04), "also between the windows"
    assert len(list(place.glob("ring-*"))) == 1, "it stays with the program for the next time"


def test_a_full_queue_is_named_as_back_pressure(machine: Machine, tmp_path: Path) -> None:
    session = tmp_path / "s.tracer"
    machine.device.set("queue_depth", 16, 0)
    command = launcher(machine, "launches=1500", "kernel_us=1000")
    done = record(machine, session, "--cupti", *command)
    assert done.returncode == 0, done.stderr
    told = attribute(open_session(session)).to_json()
    assert told["verdict"]["cause"] == "device.compute_bound"
    (finding,) = [item for item in told["findings"] if item["cause"] == "device.compute_bound"]
    (held,) = [item for item in finding["evidence"] if item["name"] == "held_by_full_queue"]
    assert held["n"] > 1000
    assert held["value"] == pytest.approx(1.5e9, rel=0.2)
    assert "back-pressure, not slow launching" in finding["summary"]


def test_a_trigger_opens_a_window_and_without_one_nothing_is_collected(
    machine: Machine, tmp_path: Path
) -> None:
    session, quiet = tmp_path / "s.tracer", tmp_path / "q.tracer"
    windows = ("--cupti", "--window", "500ms", "--trigger")
    command = launcher(machine, "launches=2500", "rate=1000", "kernel_us=100")
    done = record(machine, quiet, *windows, "rss > 900gb", *command)
    assert done.returncode == 0, done.stderr
    assert open_session(quiet).n_rows("gpu_activity") == 0
    done = record(machine, session, *windows, "rss > 1kb", *command)
    assert done.returncode == 0, done.stderr
    opened = open_session(session)
    events = opened.table("event").to_pylist()
    (fired,) = [row["time_ns"] for row in events if row["kind"] == "trigger"]
    start = opened.table("gpu_activity")["start_ns"].to_numpy()
    assert 0 < len(start) < 2500
    assert fired <= start.min()
    assert start.max() - fired < 2_000_000_000, "the window ends by itself"
