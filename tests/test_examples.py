"""The examples of docs/examples: what they run is a command line that the program understands."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
from pathlib import Path

import click

from tracer.cli import cli
from tracer.long_run import LongRunOptions
from tracer.settings_file import SettingsFile
from tracer.trigger_grammar import parse_trigger

EXAMPLES = Path(__file__).resolve().parents[1] / "docs" / "examples"


def parsed(words: list[str]) -> dict:
    """The options of a ``tracer record`` command line."""
    command = cli.get_command(click.Context(cli), "record")
    assert words[0] == "record"
    options = command.make_context("record", words[1:]).params
    for text in options["triggers"]:
        parse_trigger(text)
    return options


def test_the_systemd_unit():
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str
    unit.read(EXAMPLES / "tracer@.service")
    service = unit["Service"]
    shell = shlex.split(service["ExecStart"])
    assert shell[:2] == ["/bin/sh", "-c"] and shell[-2:] == ["sh", "%i"]
    # What systemd and then the shell make of it.
    script = shell[2].replace("%%", "%").replace("exec /opt/tracer/bin/tracer", "printf '%s\\n'")
    done = subprocess.run(
        ["/bin/sh", "-c", script, "sh", "vllm"], capture_output=True, text=True, check=True
    )
    options = parsed(done.stdout.splitlines())
    assert options["follow"] == "vllm"
    assert re.fullmatch(r"/var/lib/tracer/vllm-\d{8}-\d{6}\.tracer", str(options["output"]))
    assert str(options["config"]) == "/etc/tracer/vllm.conf"
    assert service["StateDirectory"] == "tracer" and service["KillSignal"] == "SIGTERM"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"


def test_the_options_of_the_unit():
    options = SettingsFile(EXAMPLES / "tracer.conf", LongRunOptions()).read()
    assert (options.keep_ns, options.max_bytes) == (900 * 10**9, 2 * 10**9)
    assert options.min_free_bytes == 2 * 10**9
    assert [item.text for item in options.triggers] == ["no progress for 10s", "xid", "any finding"]


def test_the_container(tmp_path):
    script = EXAMPLES / "tracer-follow.sh"
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    docker.chmod(0o755)
    done = subprocess.run(
        [script, "vllm", "/data"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.splitlines()
    at = words.index("tracer")
    assert {"--privileged", "--pid=host", "/data:/sessions"} <= set(words[:at])
    options = parsed(words[at + 1 :])
    assert options["follow"] == "vllm" and options["metrics_port"] == 9465
    assert str(options["config"]) == "/etc/tracer/vllm.conf"
    assert "/etc/tracer:/etc/tracer:ro" in words[:at]
    assert str(options["output"]).startswith("/sessions/vllm-")
