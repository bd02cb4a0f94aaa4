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
from tracer.commands.parameters import parse_bytes, parse_duration, parse_share
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
@click.option(
    "--keep",
    "keep_ns",
    type=parse_duration,
    metavar="T",
    help="Keep full detail for the last T only, and exact counts and histograms of all the rest.",
)
@click.option(
    "--max-size",
    "max_bytes",
    type=parse_bytes,
    metavar="SIZE",
    help="Drop the oldest detail when the session is larger, e.g. 2G.",
)
@click.option(
    "--min-free",
    "min_free_bytes",
    type=parse_bytes,
    default="200M",
    show_default=True,
    metavar="SIZE",
    help="End cleanly when less than this is free on the session's disk.",
)
@click.option(
    "--trigger",
    "triggers",
    multiple=True,
    metavar="WHEN",
    help="Keep the detail around it and make a verdict when e.g. 'no progress for 10s', "
    "'launch p99 > 5ms', 'gpu util > 90 and tokens/s < 10', 'rss slope > 50MB/h', 'xid' or "
    "'any finding' holds; may be repeated. A hang is watched for always.",
)
@click.option(
    "--trigger-before",
    "before_ns",
    type=parse_duration,
    default="2m",
    show_default=True,
    metavar="T",
    help="Time before a trigger whose detail is kept.",
)
@click.option(
    "--trigger-after",
    "after_ns",
    type=parse_duration,
    default="1m",
    show_default=True,
    metavar="T",
    help="Time after a trigger whose detail is kept.",
)
@click.option(
    "--max-captures",
    "per_hour",
    type=click.IntRange(min=1),
    default=6,
    show_default=True,
    metavar="N",
    help="Most triggers an hour that are acted on.",
)
@click.option(
    "--on-finding",
    metavar="CMD",
    help="Run this when a trigger fired, with the finding as JSON on its standard input.",
)
@click.option(
    "--follow",
    metavar="NAME|CGROUP|PORT",
    help="Record a service over restarts of its processes: a process name, a cgroup (with a "
    "slash, or NAME.service), or a TCP port that it listens on. --duration bounds the wait for its "
    "first process too.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve the recorder's health and its last verdict to Prometheus, on this host only.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Options of a long recording from a file, read again at SIGHUP (systemctl reload) without "
    "losing a row: lines 'NAME = VALUE' with trigger, trigger-before, trigger-after, max-captures, "
    "on-finding, keep, max-size, min-free.",
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
    keep_ns: int | None,
    max_bytes: int | None,
    min_free_bytes: int,
    triggers: tuple[str, ...],
    before_ns: int,
    after_ns: int,
    per_hour: int,
    on_finding: str | None,
    follow: str | None,
    metrics_port: int | None,
    config: Path | None,
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
    if bool(pids) + bool(arguments) + bool(follow) != 1:
        raise UsageError(
            "give one of --pid P, --follow NAME and -- COMMAND to say what to record, "
            "e.g. tracer record --pid 4242"
        )
    from tracer.trigger_grammar import parse_trigger

    parsed = tuple(parse_trigger(text) for text in triggers)
    if (canary is None) != (model is None) or (against is not None and canary is None):
        raise UsageError("the canary needs both --canary URL and --model M; give both or neither")
    cupti = parse_cupti(
        is_cupti, window_ns, every_ns, has_graph_nodes, bool(arguments), bool(triggers or config)
    )
    try:
        with environment_for(cupti):
            launched = _launch(arguments) if arguments else None
    except BaseException:
        remove_place(cupti)
        raise
    loading = None if causes else _begin_loading()
    from tracer.lean_arrow import give_memory_back, make_arrow_lean
    from tracer.lean_heap import make_heap_lean

    make_heap_lean()
    make_arrow_lean()
    give_memory_back()
    from probes.registry import CanaryOptions
    from tracer.captures import CaptureOptions
    from tracer.follow import Service
    from tracer.long_run import LongRunOptions
    from tracer.recording import RecordOptions, record

    long_run = LongRunOptions(
        keep_ns=keep_ns,
        max_bytes=max_bytes,
        min_free_bytes=min_free_bytes,
        triggers=parsed,
        captures=CaptureOptions(before_ns, after_ns, per_hour, on_finding),
        follow=None if follow is None else Service.parse(follow),
        metrics_port=metrics_port,
    )
    settings = None
    try:
        if config is not None:
            from tracer.settings_file import SettingsFile

            settings = SettingsFile(config, long_run)
            long_run = settings.read()
            settings.listen()
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
                long_run=long_run,
                settings=settings,
            )
        )
    except BaseException:
        if launched is not None and launched.is_released:
            _end_command(launched, arguments[0], 0)
        elif launched is not None:
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
