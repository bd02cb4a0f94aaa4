"""SIGHUP while the command line is still being loaded."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

#: Sends the signal as soon as the first library is looked for.
SCRIPT = """
import os, sys
class Hangs:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            print("asked", flush=True)
            os.kill(os.getpid(), 1)
sys.meta_path.insert(0, Hangs())
from tracer.__main__ import main
main()
"""
MISSING = "/nonexistent/settings"


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, "record", "--pid", str(os.getpid()), *options]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, start_new_session=True
    )


@pytest.mark.parametrize("options", [["--config", MISSING], [f"--config={MISSING}"]])
def test_a_wish_to_read_the_settings_again_does_not_end_it(options: list[str]) -> None:
    ended = run(*options)
    assert ended.stdout == "asked\n"
    assert ended.returncode == 3
    assert f"{MISSING} cannot be read" in ended.stderr


def test_without_settings_it_ends_as_ever() -> None:
    ended = run("-o", "/nonexistent/session")
    assert (ended.returncode, ended.stdout) == (-signal.SIGHUP, "asked\n")


def test_nohup_stays_nohup() -> None:
    command = [sys.executable, "-c", "import signal; signal.signal(1, signal.SIG_IGN)\n" + SCRIPT]
    ended = subprocess.run(
        [*command, "record", "--help"], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0 and ended.stdout.startswith("asked\n")


def test_a_terminal_that_was_closed_ends_it(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = (
        "import time; from pathlib import Path\n"
        "from tracer.early_hang_up import take_early_hang_up\n"
        f"take_early_hang_up(['--config', 'x']); Path({str(ready)!r}).touch(); time.sleep(60)\n"
    )
    pid, master = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", script])
    while not ready.exists():
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    os.close(master)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGHUP


def test_the_installed_command_takes_it_too() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    assert 'tracer = "tracer.__main__:main"' in project.read_text().splitlines()
