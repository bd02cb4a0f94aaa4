"""``tracer top``: what it shows, that it leaves nothing behind, and that its target goes on."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from analysis.live import LAG_NS, SPAN_NS, Look, look
from analysis.manifest import FILE_NAME, Source
from analysis.timeline import open_session
from tests.analysis.builder import MS, S, Service
from tracer.simulated.load import Group
from tracer.simulated.options import ServerOptions
from tracer.simulated.stage import Stage
from tracer.top_screen import line, screen


def running(path: Path, *, is_delayed: bool) -> Service:
    """A recording that goes on: its manifest has no end yet."""
    service = Service(seed=1)
    while service.now < service.start + 40 * S:
        if is_delayed:
            service.preempt(20 * MS)
        service.decode_step()
    builder = service.builder(path)
    builder.manifest.end_ns = None
    neighbours = [
        {
            "time_ns": service.now - i * S,
            "device": 0,
            "pid": 77,
            "name": "trainer\x1b[31m",
            "sm_util_pct": 12.0,
            "is_target": False,
        }
        for i in range(3)
    ]
    builder.add("gpu_process", neighbours).write()
    return service


def looked(path: Path, *, is_delayed: bool) -> tuple[Look, Service]:
    service = running(path, is_delayed=is_delayed)
    found = look(open_session(path), service.now)
    assert found is not None
    return found, service


def test_a_look_is_about_the_last_half_minute_that_is_on_the_disk(tmp_path: Path):
    found, service = looked(tmp_path / "s", is_delayed=True)
    assert found.end_ns == service.now - LAG_NS
    assert found.end_ns - found.start_ns == SPAN_NS
    assert found.verdict.cause == "launch.cpu_delay"
    assert sum(found.budgets[0].shares.values()) == pytest.approx(1)
    assert found.launches is not None and found.launches.median is not None
    assert found.launches.median.value == pytest.approx(8_000, rel=0.1)
    assert found.service is not None and found.service.running == 4
    # A step of 28.7 ms gives four tokens.
    assert found.service.tokens_per_s == pytest.approx(4 / 0.0287, rel=0.05)
    assert [(item.pid, item.what) for item in found.neighbours] == [(77, "GPU 0"), (99, "CPU")]
    assert found.devices[0].power_mw == 300_000


def test_the_first_second_has_no_look(tmp_path: Path):
    service = running(tmp_path / "s", is_delayed=False)
    assert look(open_session(tmp_path / "s"), service.start + LAG_NS) is None


def test_the_screen_and_the_line_say_the_same(tmp_path: Path):
    found, service = looked(tmp_path / "s", is_delayed=True)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(screen(found, "tracer top: process 4000", service.now))
    text = console.export_text()
    in_pipe = line(found, 61 * S)
    assert in_pipe.startswith("01:01 launch.cpu_delay (")
    assert "\n" not in in_pipe
    for part in ("stress-ng (pid 99)", "4 running", "300 W", "launches/s", "trainer?[31m"):
        assert part in text and part in in_pipe
    assert "LAUNCH.CPU_DELAY: the launching thread waited for a CPU" in text
    assert "\x1b[31m" not in in_pipe


def test_what_is_not_recorded_is_said(tmp_path: Path):
    found, _service = looked(tmp_path / "s", is_delayed=False)
    bare = replace(found, launches=None, devices=[], service=None, neighbours=[], n_lost=7)
    assert "no call seen yet" in line(bare, 0) and "lost 7" in line(bare, 0)
    blind = replace(bare, missing=[Source("cuda", "unavailable", note="no bcc")])
    assert "calls are not recorded" in line(blind, 0)
    assert line(None, 0) == "00:00 recording the first seconds"


@pytest.fixture
def service() -> Iterator[Stage]:
    with Stage(seed=5) as stage:
        stage.serve(ServerOptions(), (Group(n_clients=3),))
        yield stage


def top(pid: int, *options: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tracer", "top", "--pid", str(pid), *options],
        env={**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in path.read_text().split()]


@pytest.mark.root
def test_in_a_pipe_it_prints_lines_and_leaves_nothing_behind(service: Stage, tmp_path: Path):
    pid = service.target.pid
    process = top(pid, folder=tmp_path)
    assert process.stdout is not None
    lines = []
    deadline = time.monotonic() + 60
    for text in process.stdout:
        lines.append(text)
        if "launches/s" in text and "tokens/s" in text:
            break
        assert time.monotonic() < deadline, lines
    assert list(tmp_path.glob("tracer-top-*/top.tracer/" + FILE_NAME))
    recorders = children_of(process.pid)
    process.send_signal(signal.SIGINT)
    _out, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "simulated device" in lines[-1]
    assert not list(tmp_path.glob("tracer-top-*"))
    assert recorders and not any(Path(f"/proc/{child}").exists() for child in recorders)
    assert Path(f"/proc/{pid}").exists()


@pytest.mark.root
def test_it_ends_with_its_target_and_its_reader(service: Stage, tmp_path: Path):
    process = top(service.target.pid, "--duration", "60s", folder=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("00:0")
    process.stdout.close()
    process.stdout = None
    process.communicate(timeout=60)
    assert not list(tmp_path.glob("tracer-top-*"))


def test_a_process_that_is_not_there_is_one_line():
    done = subprocess.run(
        [sys.executable, "-m", "tracer", "top", "--pid", "4194303"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tempfile.gettempdir(),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    assert done.returncode == 5
    assert "Traceback" not in done.stderr and "4194303" in done.stderr
