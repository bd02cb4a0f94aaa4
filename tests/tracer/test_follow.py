"""Following a service: by name, cgroup or port; what is not it; restarts as events."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probes.targets import TargetTree
from tracer.errors import SessionError, UsageError
from tracer.follow import Follower, Service
from tracer.free_space import FreeSpace
from tracer.watching import Moment

S = 1_000_000_000


@pytest.fixture
def program(tmp_path):
    """A program of a name that nothing else has."""
    path = tmp_path / f"svc{os.getpid() % 100_000}"
    shutil.copy(shutil.which("sleep"), path)
    return path


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("vllm", "name", "vllm"),
        ("8000", "port", "8000"),
        ("08000", "port", "8000"),
        ("/system.slice/vllm.service", "cgroup", "system.slice/vllm.service"),
        ("vllm.service", "cgroup", "vllm.service"),
    ],
)
def test_what_a_text_names(text, kind, value):
    assert Service.parse(text) == Service(kind, value)


@pytest.mark.parametrize("text", ["", "  ", "0", "000", "70000", "9" * 5000])
def test_what_names_nothing(text):
    with pytest.raises(UsageError):
        Service.parse(text)


def test_by_name_its_topmost_process(program):
    child = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess; subprocess.run(['{program}', '60'])"],
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 20
        while not (found := Service("name", program.name).find()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert len(found) == 1 and found[0] != child.pid
    finally:
        os.killpg(child.pid, 9)
        child.wait()
    assert Service("name", "no-such-program").find() == []


def test_by_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        code = "import socket,sys,time; s=socket.socket(fileno=int(sys.argv[1])); time.sleep(60)"
        fd = server.fileno()
        child = subprocess.Popen([sys.executable, "-c", code, str(fd)], pass_fds=[fd])
        try:
            assert Service("port", str(port)).find() == [child.pid]
        finally:
            child.kill()
            child.wait()


def fake_process(root: Path, pid: int, name: str, cgroup: str, command: bytes = b"x\0") -> None:
    folder = root / str(pid)
    folder.mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} ({name}) S 1 " + "0 " * 48)
    (folder / "cgroup").write_text(f"0::{cgroup}\n")
    (folder / "cmdline").write_bytes(command)


def test_by_cgroup_and_never_a_recorder(tmp_path):
    fake_process(tmp_path, 10, "python", "/system.slice/vllm.service")
    fake_process(tmp_path, 11, "python", "/system.slice/vllm.service/worker")
    fake_process(tmp_path, 12, "python", "/system.slice/not-vllm.service")
    recorder = b"python\0/usr/bin/tracer\0record\0--follow\0vllm.service\0"
    fake_process(tmp_path, 13, "tracer", "/system.slice/vllm.service", recorder)
    assert Service.parse("vllm.service").find(tmp_path) == [10, 11]
    assert Service.parse("/system.slice/vllm.service/worker").find(tmp_path) == [11]


def test_each_restart_is_taken_in_and_told(program):
    roots: list[int] = []
    first = subprocess.Popen([program, "60"])
    tree = TargetTree([first.pid])
    roots.append(first.pid)

    def add(pid: int) -> bool:
        roots.append(pid)
        return True

    follower = Follower(Service("name", program.name), tree, lambda: roots, add)

    def look(second: int) -> list[dict]:
        moment = Moment(second * S, lambda: None, lambda reason: None)
        return [row for batch in follower.look(moment) for row in batch.rows.to_pylist()]

    second = None
    try:
        assert look(1) == []
        first.kill()
        first.wait()
        tree.refresh(2 * S)
        roots.clear()
        assert look(2) == []
        second = subprocess.Popen([program, "60"])
        [row] = look(9)
        assert (row["kind"], row["pid"]) == ("restart", second.pid)
        assert "after 7 s without any" in row["detail"]
        assert tree.pids() == {second.pid} and roots == [second.pid]
        assert look(10) == [] and follower.n_restarts == 1
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()
                process.wait()


def test_little_room_ends_the_recording(tmp_path, monkeypatch):
    from tracer import free_space

    free = [10**9]
    monkeypatch.setattr(free_space, "free_bytes", lambda path: free[0])
    watcher = FreeSpace(tmp_path / "not" / "yet", 10**8)
    reasons = []
    moment = Moment(S, lambda: None, reasons.append)
    watcher.look(moment)
    assert reasons == []
    free[0] = 10**8 - 1
    watcher.look(moment)
    assert reasons == ["disk_low"]
    with pytest.raises(SessionError, match="only 100 MB are free"):
        FreeSpace(tmp_path, 10**8)
    free[0] = None
    watcher.look(moment)
    assert reasons == ["disk_low"], "a disk that does not tell ends nothing"
