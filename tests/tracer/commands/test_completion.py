"""Shell completion: the scripts, and what they would complete."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tracer import cli


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_calls_back(capsys, shell: str):
    assert cli.run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_TRACER_COMPLETE" in script and "tracer" in script


def complete(*words: str) -> list[str]:
    """What bash would offer after these words."""
    done = subprocess.run(
        [sys.executable, "-m", "tracer"],
        env={
            **os.environ,
            "_TRACER_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("tracer", *words)),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return [line.split(",", 1)[1] for line in done.stdout.splitlines()]


def test_commands_and_options_are_offered():
    assert complete("an") == ["analyze"]
    assert "--explain" in complete("analyze", "--e")
    assert complete("completion", "z") == ["zsh"]
