"""``tracer record`` as a person runs it: real processes, real signals, real files."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.manifest import Manifest
from analysis.timeline import open_session
from tracer.recovery import recover

TRACER = [sys.executable, "-m", "tracer"]
#: Longest wait for a recorder to come up on a busy machine, in s.
PATIENCE_S = 60.0


def tracer(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [*TRACER, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


class Running:
    """A recorder in the background whose standard error is read line by line."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [*TRACER, "record", *map(str, arguments)],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        while not any(line.startswith("Recording ") for line in self.lines):
            line = self.process.stderr.readline()
            assert line, f"the recorder ended: {self.lines}"
            self.lines.append(line)

    def end(self, number: int) -> float:
        """Send a signal; return after how many s the files were closed, as it says itself."""
        self.process.send_signal(number)
        text = self.process.stderr.read()
        self.process.wait(PATIENCE_S)
        match = re.search(r"Files closed after ([\d.]+) s", text)
        assert match, text
        return float(match.group(1))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def target() -> Iterator[subprocess.Popen]:
    process = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(0.01)"])
    yield process
    process.kill()
    process.wait()


def test_a_process_for_a_time(tmp_path, target):
    session = tmp_path / "s.tracer"
    done = tracer("record", "--pid", target.pid, "--duration", "2s", "-o", session)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", "nothing but the session is made"
    assert done.stderr.splitlines()[-1] == f"Next: tracer analyze {session}"
    opened = open_session(session)
    assert opened.manifest.end_reason == "duration"
    assert 2 <= opened.duration_ns / 1e9 < 10
    assert [item.pid for item in opened.manifest.targets] == [target.pid]
    rows = opened.table("process_sample").to_pylist()
    assert len(rows) >= 2 and {row["pid"] for row in rows} == {target.pid}
    assert {row["tid"] for row in opened.table("thread_second").to_pylist()} == {target.pid}
    assert opened.table("host_sample").num_rows >= 2
    for source in opened.manifest.sources:
        assert source.state in ("ok", "degraded", "unavailable"), source
        assert source.state != "unavailable" or ";" in source.note, "a reason and a remedy"


def test_an_existing_session_is_not_overwritten(tmp_path, target):
    session = tmp_path / "s.tracer"
    arguments = ("record", "--pid", target.pid, "--duration", "100ms", "-o", session)
    assert tracer(*arguments).returncode == 0
    before = (session / "manifest.json").read_bytes()
    done = tracer(*arguments)
    assert done.returncode == 6 and "--force" in done.stderr
    assert (session / "manifest.json").read_bytes() == before
    assert tracer(*arguments, "--force").returncode == 0


def test_a_process_that_is_not_there(tmp_path):
    done = tracer("record", "--pid", 4194304, "-o", tmp_path / "s")
    assert done.returncode == 5
    assert "Traceback" not in done.stderr and not (tmp_path / "s").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_closes_the_files_in_two_seconds_and_spares_the_target(tmp_path, target, number):
    running = Running("--pid", target.pid, "-o", tmp_path / "s")
    time.sleep(0.5)
    assert running.end(number) < 2.0
    assert running.process.returncode == 0
    assert target.poll() is None
    reason = {signal.SIGTERM: "terminated", signal.SIGINT: "interrupted"}[number]
    assert Manifest.read(tmp_path / "s").end_reason == reason


def test_a_target_that_vanishes_ends_the_recording(tmp_path, target):
    running = Running("--pid", target.pid, "-o", tmp_path / "s")
    time.sleep(0.3)
    target.kill()
    text = running.process.stderr.read()
    assert running.process.wait(PATIENCE_S) == 0
    assert "the target ended" in text
    manifest = Manifest.read(tmp_path / "s")
    assert manifest.end_reason == "target_ended"
    assert manifest.targets[0].end_ns is not None


@pytest.mark.parametrize(("script", "code"), [("sleep 0.2; exit 7", 7), ("kill -9 $$", 137)])
def test_the_status_of_a_command_is_passed_on(tmp_path, script, code):
    done = tracer("record", "-o", tmp_path / "s", "--", "sh", "-c", script)
    assert done.returncode == code, done.stderr
    expected = f"exit status {code}" if code < 128 else "ended by signal 9"
    assert expected in done.stderr
    assert Manifest.read(tmp_path / "s").end_reason == "target_ended"


def test_a_command_that_runs_longer_is_ended_with_the_recording(tmp_path):
    done = tracer("record", "--duration", "500ms", "-o", tmp_path / "s", "--", "sleep", "321")
    assert done.returncode == 0, done.stderr
    assert "sleep was ended together with the recording" in done.stderr
    [pid] = [item.pid for item in Manifest.read(tmp_path / "s").targets]
    assert not Path(f"/proc/{pid}").exists()


def test_a_command_that_cannot_be_started(tmp_path):
    done = tracer("record", "-o", tmp_path / "s", "--", "/no/such/program")
    assert done.returncode == 5
    assert "No such file" in done.stderr and not (tmp_path / "s").exists()


def test_a_command_has_its_own_output_and_the_usual_signals(tmp_path):
    script = ["sh", "-c", "grep -h Sig[BI] /proc/self/status"]
    done = tracer("record", "-o", tmp_path / "s", "--", *script)
    # Some may be inherited from whoever runs the tests: a shell's background job ignores SIGQUIT.
    plain = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    masks, inherited = (
        [int(line.split()[1], 16) for line in out.splitlines()] for out in (done.stdout, plain)
    )
    blocked, ignored = (mask & ~own for mask, own in zip(masks, inherited, strict=True))
    assert (blocked, ignored) == (0, 0), "no further signal, and nothing else was printed"


def test_only_what_a_cause_needs(tmp_path, target):
    session = tmp_path / "s"
    done = tracer(
        *("record", "--pid", target.pid, "--duration", "1s", "-o", session),
        *("--for", "launch.host_bound"),
    )
    assert done.returncode == 0, done.stderr
    sources = {source.name for source in Manifest.read(session).sources}
    assert "nvml" in sources and "kernel_log" not in sources


def test_a_killed_recorder_leaves_a_readable_session(tmp_path, target):
    rng = random.Random(3)
    for index in range(2):
        session = tmp_path / f"s{index}"
        running = Running("--pid", target.pid, "-o", session)
        time.sleep(rng.uniform(0.1, 4.5))
        running.kill()
        killed_ns = time.monotonic_ns()
        opened = open_session(session)
        assert opened.manifest.end_ns is None
        recovery = recover(session)
        assert recovery.damaged == []
        recovered = open_session(session)
        assert recovered.manifest.end_reason == "crashed"
        assert killed_ns - recovered.end_ns < 6_000_000_000 or recovery.n_rows == 0
        assert target.poll() is None


def test_a_crashed_session_is_mended_when_it_is_analyzed(tmp_path, target):
    running = Running("--pid", target.pid, "-o", tmp_path / "s")
    time.sleep(3.6)
    busy = tracer("analyze", tmp_path / "s")
    assert busy.returncode == 0, busy.stderr
    assert Manifest.read(tmp_path / "s").end_reason is None, "it is still being recorded"
    running.kill()
    done = tracer("analyze", tmp_path / "s")
    assert done.returncode == 0, done.stderr
    assert "without a last word" in done.stderr
    assert Manifest.read(tmp_path / "s").end_reason == "crashed"


@pytest.mark.root
def test_a_full_disk_does_not_end_the_recording(tmp_path, target):
    mount = tmp_path / "mount"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", mount], check=True)
    try:
        running = Running("--pid", target.pid, "--min-free", "0", "-o", mount / "s")
        (mount / "filler").write_bytes(b"x" * (os.statvfs(mount).f_bavail * 4096))
        time.sleep(4)
        assert running.process.poll() is None
        (mount / "filler").unlink()
        time.sleep(1)
        running.process.send_signal(signal.SIGTERM)
        text = running.process.stderr.read()
        running.process.wait(PATIENCE_S)
        assert "No space left" in text
        opened = open_session(mount / "s")
        assert opened.manifest.end_reason == "terminated"
        losses = opened.table("loss").to_pylist()
        assert sum(row["n_lost"] for row in losses if row["source"] == "session") > 0
        assert opened.manifest.source("session").n_lost > 0
    finally:
        subprocess.run(["umount", mount], check=True)
