"""The README: its links lead somewhere, its commands exist, its steps work as they are printed."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.analysis.builder import S, Service
from tracer.cli import cli

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(section: str) -> list[list[str]]:
    """Lines of each shell block of one section of the README."""
    text = (ROOT / "README.md").read_text()
    part = re.search(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert part is not None
    return [block.strip().splitlines() for block in re.findall(r"```sh\n(.*?)```", part[1], re.S)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page: Path):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    for link in links:
        if "://" not in link:
            assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_that_is_shown_exists(page: Path):
    context = click.Context(cli)
    for text in re.findall(r"\btracer ([a-z][a-z-]+\b[^\n`]*)", page.read_text()):
        name = text.split()[0].rstrip(".,:;")
        if not re.search(r" (--|-o|SESSION|[\w$(]+\.tracer)", f" {text}"):
            continue  # a sentence, not a command line
        command = cli.get_command(context, name)
        assert command is not None, text
        known = {option for item in command.params for option in item.opts} | {"--help"}
        own = re.sub(r"\$\([^)]*\)?", "", text).split(" -- ")[0].split("|")[0].split(";")[0]
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", own):
            assert option in known, f"tracer {name} has no {option}"


def test_the_two_commands_come_first():
    text = (ROOT / "README.md").read_text()
    assert text.index("make demo") < text.index("make test") < text.index("## Your own first")


def test_the_notebook_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("duckdb", reason="pip install duckdb")
    service = Service(seed=1)
    service.decode_until(service.start + 2 * S)
    service.session(tmp_path / "incident.tracer")
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert code is not None
    names: dict[str, object] = {}
    exec(code[1], names)
    assert len(names["calls"]) == names["session"].n_rows("cuda_call")  # type: ignore[arg-type, attr-defined]


@pytest.mark.root
def test_a_newcomer_gets_from_a_running_service_to_its_report(tmp_path: Path):
    """The steps of "Your own first recording", with this environment in the place of .venv."""
    first, second = blocks("Your own first recording")
    assert first[0] == second[0] == "source .venv/bin/activate"
    scripts = tmp_path / ".venv" / "bin"
    scripts.mkdir(parents=True)
    command = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tracer "$@"\n'
    (scripts / "tracer").write_text(command)
    (scripts / "tracer").chmod(0o755)
    (scripts / "activate").write_text(f'PATH={shlex.quote(str(scripts))}:"$PATH"\n')
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    service = subprocess.Popen(
        ["bash", "-ec", "; ".join((*first[:-1], f"exec {first[-1]}"))],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert service.stderr is not None
    try:
        said = next(line for line in service.stderr if "runs on as pid" in line)
        pid = re.search(r"pid (\d+)", said)
        assert pid is not None
        # Another test's service may run beside this one: its pid is what pgrep would find alone.
        lines = [line.replace("$(pgrep -nf simulated.server)", pid[1]) for line in second]
        assert lines != second
        # The doctor says with 4 that something is missing here, such as NVML.
        lines = [f"{line} || test $? = 4" if " doctor " in line else line for line in lines]
        done = subprocess.run(
            ["bash", "-e", "-c", "\n".join(lines)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        assert "launch.cpu_delay" in done.stdout and "What proves it:" in done.stdout
        page = (tmp_path / "first.html").read_text(errors="replace")
        assert "LAUNCH.CPU_DELAY" in page.upper() and "simulated" in page
    finally:
        service.send_signal(signal.SIGINT)
        service.wait(60)
        service.stderr.close()
