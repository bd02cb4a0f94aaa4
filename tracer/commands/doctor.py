"""``tracer doctor``: what can be recorded here, and what mends the rest."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tracer.plain_text import plain_line

if TYPE_CHECKING:
    from probes.probe import Requirement
    from tracer.doctor_target import TargetCheck

#: Exit code when something is missing.
MISSING = 4
#: Raised when a reader of the JSON would misread it.
SCHEMA_VERSION = 1


@click.command("doctor")
@click.option("--pid", type=int, metavar="P", help="Look at this process and its children too.")
@click.option("--json", "is_json", is_flag=True, help="Print everything as JSON.")
def command(pid: int | None, is_json: bool) -> int:
    """Check what can be recorded here, what is lost without it, and what mends it.

    The exit code is 4 when something that a source needs is missing.

    Example:
      tracer doctor --pid 4242
    """
    from tracer.doctor import can_record, machine_requirements, report_lines
    from tracer.doctor_target import check_target

    target = check_target(pid) if pid is not None else None
    machine = machine_requirements()
    possible = can_record(machine)
    if is_json:
        click.echo(json.dumps(_as_json(machine, possible, target), indent=1))
    else:
        for line in report_lines(machine):
            click.echo(line)
        if target is not None:
            click.echo(f"\nProcess {pid} and its children:")
            _print_target(target)
        click.echo()
        for name, is_possible in possible.items():
            click.echo(f"{'can' if is_possible else 'CANNOT':6} record {name.replace('_', ' ')}")
        click.echo(f"Next: tracer record --pid {pid if pid is not None else 'PID'}")
    missing = [*machine, *(target.requirements if target is not None else [])]
    return 0 if all(item.is_met for item in missing) else MISSING


def _as_json(
    machine: list[Requirement], possible: dict[str, bool], target: TargetCheck | None
) -> dict[str, object]:
    result: dict[str, object] = {
        "schema_version": SCHEMA_VERSION,
        "requirements": [asdict(item) for item in machine],
        "can_record": possible,
    }
    if target is not None:
        result["target"] = {
            "requirements": [asdict(item) for item in target.requirements],
            "libraries": target.libraries,
            "processes": target.facts,
        }
    return result


def _print_target(target: TargetCheck) -> None:
    from tracer.doctor import report_lines

    for fact in target.facts:
        places = ", ".join(fact["own_namespaces"])
        _say(
            f"pid {fact['pid']} ({fact['name']}): seccomp {fact['seccomp']}"
            + (f", container {fact['container'][:12]}" if fact["container"] else "")
            + (f", own namespaces {places}" if places else "")
        )
    for library in target.libraries:
        layers = "+".join(library["layers"]) or "no functions"
        version = f" {library['version']}" if library["version"] else ""
        _say(
            f"{library['path']}: {layers}{version}, {library['n_functions']} functions"
            + (", linked statically" if library["is_static"] else "")
        )
        if library["problem"]:
            _say(f"  {library['problem']}")
    for line in report_lines(target.requirements):
        _say(line)


def _say(text: str) -> None:
    """Print a line that may hold names and paths of the target."""
    click.echo(plain_line(text))
