"""``tracer record``: records running processes, or a command from its first instruction."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracer.commands.cupti_options import (
    cupti_options,
    environment_for,
    parse_cupti,
    remove_place,
)
from tracer.commands.parameters import parse_duration, parse_share
from tracer.errors import TargetError, UsageError

if TYPE_CHECKING:
    from probes.cuda.loading import ModuleLoading
    from tracer.launch import LaunchedCommand


@click.command("record", context_settings={"ignore_unknown_options": False})
@click.option(
    "--pid",
    "pids",
    type=int,
    multiple=True,
    metavar="P",
    help="Process to record, its children too; may be repeated.",
)
@click.option(
    "--duration",
    "duration_ns",
    type=parse_duration,
    metavar="T",
    help="End after this time: 30s, 5m, 1h30m; by default with the target.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Session directory to make; by default NAME-PID-TIME.tracer here.",
)
@click.option(
    "--engine",
    "engine_urls",
    multiple=True,
    metavar="URL",
    help="Metrics page of the engine; by default looked for among the target's ports.",
)
@click.option(
    "--canary",
    metavar="URL",
    help="Send a small completion here every few seconds and time it (OpenAI-compatible).",
)
@cupti_options
@click.option("--model", metavar="M", help="Model that the canary asks for.")
@click.option("--against", metavar="URL2", help="Control endpoint to compare the canary with.")
@click.option(
    "--dcgm",
    metavar="dcgmi|URL",
    help="Sample through DCGM too: with the command dcgmi, or from a dcgm-exporter's page.",
)
@click.option(
    "--for",
    "causes",
    multiple=True,
    metavar="CAUSE",
    help="Record only what this cause needs, e.g. launch.cpu_delay.",
)
@click.option(
    "--budget",
    "budget_share",
    type=parse_share,
    metavar="SHARE",
    help="CPU time that probing may add to the launching threads, e.g. 1%; calls beyond it are "
    "left out, and the session says which. By default every call is recorded.",
)
@click.option("--force", is_flag=True, help="Replace an existing session.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND ...]")
def command(
    pids: tuple[int, ...],
    duration_ns: int | None,
    output: Path | None,
    engine_urls: tuple[str, ...],
    canary: str | None,
    model: str | None,
    against: str | None,
    dcgm: str | None,
    is_cupti: bool,
    window_ns: int | None,
    every_ns: int | None,
    has_graph_nodes: bool,
    causes: tuple[str, ...],
    budget_share: float | None,
    force: bool,
    arguments: tuple[str, ...],
) -> int:
    """Record the processes P and all their children, or COMMAND from its first instruction.

    Ends by Ctrl-C, SIGTERM, after T, or when the target ends; the session is readable at every
    moment. COMMAND is asked to end (SIGTERM) when the recording ends before it does; its exit
    status becomes that of tracer.

    Example:
      tracer record --pid 4242 --duration 60s -o incident.tracer
    """
    if bool(pids) == bool(arguments):
        raise UsageError(
            "give either --pid P or -- COMMAND to say what to record, e.g. tracer record --pid 4242"
        )
    if (canary is None) != (model is None) or (against is not None and canary is None):
        raise UsageError("the canary needs both --canary URL and --model M; give both or neither")
    cupti = parse_cupti(is_cupti, window_ns, every_ns, has_graph_nodes, bool(arguments))
    try:
        with environment_for(cupti):
            launched = _launch(arguments) if arguments else None
    except BaseException:
        remove_place(cupti)
        raise
    loading = None if causes else _begin_loading()
    from tracer.lean_arrow import make_arrow_lean

    make_arrow_lean()
    from probes.registry import CanaryOptions
    from tracer.recording import RecordOptions, record

    try:
        outcome = record(
            RecordOptions(
                pids=pids if launched is None else (launched.pid,),
                output=output,
                duration_ns=duration_ns,
                engine_urls=engine_urls,
                canary=CanaryOptions(canary, model, against) if canary and model else None,
                dcgm=dcgm,
                causes=causes,
                cupti=cupti,
                budget_share=budget_share,
                force=force,
                loading=loading,
                on_ready=None if launched is None else launched.release,
                is_terminal=sys.stderr.isatty(),
            )
        )
    except BaseException:
        if launched is not None:
            launched.kill()
        remove_place(cupti)
        raise
    return outcome if launched is None else _end_command(launched, arguments[0], outcome)


def _begin_loading() -> ModuleLoading | None:
    """Let the BPF programs compile while the rest is imported; None where they cannot be."""
    from probes.cuda.loading import ModuleLoading
    from probes.probe import ProbeError

    try:
        return ModuleLoading()
    except ProbeError:
        return None  # the probe tries again, and its source says why it is missing


def _launch(arguments: tuple[str, ...]) -> LaunchedCommand:
    """Start the command, held, before anything heavy is loaded."""
    from tracer.launch import LaunchedCommand

    launched = LaunchedCommand(arguments)
    if launched.status is not None:
        raise TargetError(f"{arguments[0]} ended before its first instruction; check the command")
    return launched


def _end_command(launched: LaunchedCommand, name: str, outcome: int) -> int:
    """End the command if it runs on, say how it ended and return the exit code of the whole."""
    status = launched.wait(timeout_s=0.5)
    if status is None:
        if launched.terminate(timeout_s=10.0) is None:
            click.echo(f"{name} (pid {launched.pid}) goes on: it did not end on SIGTERM.", err=True)
        else:
            click.echo(f"{name} was ended together with the recording.", err=True)
        return outcome
    if status < 0:
        click.echo(f"{name} was ended by signal {-status}.", err=True)
        return outcome or 128 - status
    click.echo(f"{name} ended with exit status {status}.", err=True)
    return outcome or status
