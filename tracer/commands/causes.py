"""``tracer causes``: the vocabulary of verdicts."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import click

from tracer.commands.parameters import find_cause

if TYPE_CHECKING:
    from analysis.causes import Cause

_WIDTH = 88


@click.command("causes")
@click.argument("cause", required=False)
def command(cause: str | None) -> None:
    """Print the causes that a verdict can name, or what is declared about CAUSE.

    Example:
      tracer causes launch.cpu_delay
    """
    click.echo(_vocabulary() if cause is None else _declaration(find_cause(cause)))


def _vocabulary() -> str:
    from analysis.causes import CAUSES

    width = max(len(cause.slug) for cause in CAUSES)
    lines = [f"{cause.slug:<{width}}  {_title(cause)}" for cause in CAUSES]
    if any(_is_unstated(cause) for cause in CAUSES):
        lines += ["", "(*) Nothing states it yet: such time stays unknown."]
    return "\n".join(lines)


def _is_unstated(cause: Cause) -> bool:
    return not cause.is_implemented and not cause.stated_by


def _title(cause: Cause) -> str:
    return f"{cause.title} (*)" if _is_unstated(cause) else cause.title


def _declaration(cause: Cause) -> str:
    from analysis import schema

    lines = [f"{cause.slug}: {cause.title}", ""]
    for word, text in (
        ("What it is", cause.meaning),
        ("What proves it", cause.proof),
        ("Told apart from", cause.confused_with),
        ("What settles a doubt", cause.settles),
        ("What to do", cause.advice),
        ("Stated by", cause.stated_by),
    ):
        if text:
            lines += textwrap.wrap(f"{word}: {text}", _WIDTH, subsequent_indent="  ")
    if _is_unstated(cause):
        lines.append("Nothing states it yet: such time stays unknown.")
    if cause.needs is None:
        return "\n".join(lines)
    lines += ["", "It reads:"]
    groups = [
        *((name, "needed") for name in cause.needs.required),
        *((" or ".join(names), "one needed") for names in cause.needs.any_of),
        *((name, "makes it surer") for name in cause.needs.optional),
    ]
    lines += [f"  {names} ({role})" for names, role in groups]
    commands = dict.fromkeys(schema.table(name).command for name in cause.needs.tables)
    lines += ["", "Recorded by:", *(f"  {text}" for text in commands)]
    lines += ["", "Record only that:", f"  tracer record --pid PID --for {cause.slug}"]
    return "\n".join(lines)
