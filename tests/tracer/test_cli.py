"""The command line: fast help, errors in one place, exit codes."""

from __future__ import annotations

import errno
import subprocess
import sys
import time

import click
import pyarrow as pa
import pytest

from analysis.manifest import ManifestError
from analysis.timeline import TimelineError
from probes.probe import ProbeError
from probes.recorded.recording import RecordingError
from tracer import cli
from tracer.errors import (
    EXIT_CODES,
    InputError,
    RequirementError,
    SessionError,
    TargetError,
    UsageError,
)


def test_commands_are_sorted_documented_and_have_an_example():
    names = [name for name, _ in cli.COMMANDS]
    assert names == sorted(names)
    context = click.Context(cli.cli)
    for name in names:
        command = cli.cli.get_command(context, name)
        assert command is not None and command.name == name
        text = command.get_help(click.Context(command, info_name=name))
        assert f"Example:\n    tracer {name}" in text, name
        assert "\\b" not in text
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.name}"


def test_help_is_fast_and_loads_nothing_heavy():
    code = (
        "import sys; from tracer.cli import run; run(['--help']); "
        "print([m for m in ('pyarrow', 'pandas', 'numpy', 'rich', 'bcc') if m in sys.modules])"
    )
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert time.monotonic() - begin < 3
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    for number, meaning in EXIT_CODES.items():
        assert f"{number}  {meaning}"[:60] in done.stdout


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("a"), 2),
        (InputError("a"), 3),
        (ManifestError("a"), 3),
        (TimelineError("a"), 3),
        (RecordingError("a"), 3),
        (RequirementError("a"), 4),
        (ProbeError("a"), 4),
        (TargetError("a"), 5),
        (SessionError("a"), 6),
    ],
)
def test_foreseeable_errors_are_one_line_and_a_code(monkeypatch, capsys, error, code):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(cli.cli, "main", fail)
    assert cli.run([]) == code
    captured = capsys.readouterr()
    assert captured.err == "tracer: a\n" and captured.out == ""


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left"), PermissionError(errno.EACCES, "Denied", "/b")],
)
def test_circumstances_of_the_system_are_one_line(monkeypatch, capsys, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(cli.cli, "main", fail)
    assert cli.run([]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("tracer: ") and captured.err.count("\n") == 1
    assert error.strerror in captured.err and ";" in captured.err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ImportError("libx.so: failed to map segment from shared object"),
        ImportError("numpy cannot be used.\n\nlibx.so: Cannot allocate memory"),
        RuntimeError("can't start new thread"),
        pa.ArrowException("Failed to launch worker thread: Resource temporarily unavailable"),
    ],
)
def test_too_little_memory_is_one_line(monkeypatch, capsys, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(cli.cli, "main", fail)
    assert cli.run([]) == 1
    told = capsys.readouterr().err
    assert told.startswith("tracer: there is too little memory") and told.count("\n") == 1
    assert "ulimit -v" in told


def test_a_defect_is_not_hidden(monkeypatch):
    monkeypatch.setattr(cli.cli, "main", lambda **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.run([])


def test_wrong_usage(capsys):
    assert cli.run(["nonsense"]) == 2
    assert cli.run(["record"]) == 2
    assert "--pid" in capsys.readouterr().err
    assert cli.run(["record", "--pid", "1", "--duration", "never"]) == 2
    assert cli.run(["record", "--pid", "1", "--for", "launch.cpu_delya"]) == 2
    assert "launch.cpu_delay" in capsys.readouterr().err


def test_a_closed_pipe_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m tracer describe cuda_call | true; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
    )
    assert done.stdout == "0\n" and done.stderr == ""
