"""``tracer demo``: a simulated service with a fault, recorded for real, and the verdict."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracer.commands.parameters import SESSION_SUFFIX, parse_duration
from tracer.plain_text import plain

if TYPE_CHECKING:
    from tracer.simulated.stage import Stage

DEFAULT_SCENARIO = "cpu_contention"
#: Exit code of a demo whose verdict is not the right one.
WRONG = 1


@click.command("demo")
@click.argument("scenario", default=DEFAULT_SCENARIO)
@click.option("--list", "is_list", is_flag=True, help="List the scenarios.")
@click.option("--seed", default=0, show_default=True, help="Seed of the load.")
@click.option(
    "--duration",
    "duration_ns",
    type=parse_duration,
    default="8s",
    metavar="T",
    show_default=True,
    help="Length of the recording.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Session directory; by default demo-SCENARIO.tracer here, replaced each time.",
)
@click.option("--cupti", is_flag=True, help="Record the device's own times too.")
@click.option("--keep", is_flag=True, help="Leave the service running until Ctrl-C.")
@click.option("--json", "is_json", is_flag=True, help="Print everything as JSON.")
def command(
    scenario: str,
    is_list: bool,
    seed: int,
    duration_ns: int,
    output: Path | None,
    cupti: bool,
    keep: bool,
    is_json: bool,
) -> int:
    r"""Start a service on a simulated device with a fault, record it, and say what is wrong.

    SCENARIO is cpu_contention by default. Everything but the device is real: processes, scheduler,
    eBPF, files. The exit code is 0 only when the verdict is the fault that was staged.

    \b
    Example:
      tracer demo prefill_hogging --seed 7
    """
    from tracer.simulated.scenarios.registry import SCENARIOS, find

    if is_list:
        width = max(len(item.name) for item in SCENARIOS)
        for item in SCENARIOS:
            click.echo(f"{item.name:<{width}}  {item.summary}")
        return 0
    chosen = find(scenario)
    is_terminal = sys.stderr.isatty()
    if os.geteuid() != 0:
        click.echo(
            "Without root there is no eBPF: calls and scheduling stay unseen, and the verdict "
            "rests on NVML, /proc and the engine's metrics alone. Run it as root: sudo tracer demo",
            err=True,
        )

    def tell(text: str) -> None:
        if is_terminal:
            click.echo(text, err=True)

    tell(f"Scenario {chosen.name}: {chosen.summary}")
    from tracer.simulated.performance import RunOptions, perform

    options = RunOptions(
        session=output or Path(f"demo-{chosen.name}{SESSION_SUFFIX}"),
        seed=seed,
        duration_ns=duration_ns,
        force=output is None,
        is_terminal=is_terminal,
        has_device_times=cupti,
    )
    with _ended_by_signals():
        performance = perform(chosen, options, tell, _wait if keep else None)
    tell("Analyzing ...")
    from analysis import attribute, open_session
    from analysis.report.terminal import render
    from tracer.simulated.scenarios.judgement import judge

    attribution = attribute(open_session(performance.session))
    verdict = attribution.to_json()
    judgement = judge(chosen.expected, verdict, performance.culprits)
    if is_json:
        disturbance = performance.disturbance
        result = {
            "scenario": chosen.name,
            "seed": seed,
            "session": str(performance.session),
            "is_right": judgement.is_right,
            "cause": judgement.cause,
            "status": judgement.status,
            "confidence": judgement.confidence,
            "judgement": judgement.text,
            "waiting_share": disturbance.waiting_share,
            "stolen_share": disturbance.stolen_share,
            "foreign_share": disturbance.foreign_share,
            "is_disturbed": disturbance.excuses(chosen.has_cpu_contention),
            "analysis": verdict,
        }
        click.echo(json.dumps(result, indent=1))
    else:
        click.echo(render(attribution))
        click.echo(f"\nStaged: {chosen.summary}")
        agrees = "agrees with" if judgement.is_right else "does NOT agree with"
        click.echo(f"The verdict {agrees} what was staged: {judgement.text}.")
        if not judgement.is_right and performance.disturbance.excuses(chosen.has_cpu_contention):
            click.echo(
                "This run was disturbed: other processes of this machine, not staged, took the "
                "launching thread's CPU. Repeat it when the machine is quiet."
            )
        click.echo(f"Session: {performance.session}")
        _write_report(performance.session)
    return 0 if judgement.is_right else WRONG


def _write_report(session: Path) -> None:
    """Write the report beside the session; a demo whose report fails has still said its verdict."""
    from analysis import open_session
    from analysis.report.html import write_report

    named = session if session.name else session.absolute()
    path = named.with_name(named.name.removesuffix(SESSION_SUFFIX) + ".html")
    try:
        write_report(open_session(session), path, force=True)
    except Exception as error:  # noqa: BLE001 - whatever fails here, the verdict stands
        click.echo(plain(f"The report was not written: {error}"), err=True)
        return
    click.echo(f"Report:  {path} (opens in any browser, offline)")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the demo as Ctrl-C does, so that its service ends with it."""
    before = {
        number: signal.signal(number, lambda number, _: sys.exit(128 + number))
        for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(stage: Stage) -> None:
    """Leave the service running until Ctrl-C."""
    click.echo(
        f"The service runs on as pid {stage.target.pid}; end it with Ctrl-C. Meanwhile: "
        f"tracer record --pid {stage.target.pid} --duration 10s",
        err=True,
    )
    try:
        stage.wait()
    except KeyboardInterrupt:
        click.echo("", err=True)
