"""``tracer record``: what becomes of the command when the recording fails."""

from __future__ import annotations

import time

import pytest

from tracer import recording
from tracer.cli import run
from tracer.errors import SessionError


@pytest.fixture
def failing(monkeypatch, tmp_path):
    """Let the recording fail once its command has begun."""

    def record(options) -> int:
        options.on_ready()
        deadline = time.monotonic() + 20
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        raise SessionError("it lacks rows")

    monkeypatch.setattr(recording, "record", record)


def test_a_running_command_is_asked_to_end_and_never_killed(failing, tmp_path, capfd):
    code = f"trap 'echo > {tmp_path}/asked; exit 0' TERM; echo > {tmp_path}/begun; "
    command = ["sh", "-c", code + "while :; do sleep 0.05; done"]
    assert run(["record", "--for", "hang.hardware", "--", *command]) == 6
    assert (tmp_path / "asked").exists()
    assert "it lacks rows" in capfd.readouterr().err


def test_the_status_of_a_command_that_ended_is_told(failing, tmp_path, capfd):
    command = ["sh", "-c", f"echo > {tmp_path}/begun; exit 7"]
    assert run(["record", "--for", "hang.hardware", "--", *command]) == 6
    assert "ended with exit status 7" in capfd.readouterr().err


def test_the_duration_bounds_the_wait_for_a_service(tmp_path, capsys):
    follow = ["record", "--follow", "no-such-service-anywhere", "-o", str(tmp_path / "s")]
    assert run([*follow, "--duration", "100ms", "--for", "hang.hardware"]) == 5
    assert "no process of name no-such-service-anywhere came" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()
