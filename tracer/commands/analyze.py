"""``tracer analyze``: the verdict about a session."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from tracer.commands.parameters import find_cause, parse_duration
from tracer.commands.ranges import open_detailed
from tracer.errors import UsageError
from tracer.plain_text import plain, plain_line

if TYPE_CHECKING:
    from analysis.attribution import Attribution

#: More windows than this would fill the memory, and nobody reads them.
MAX_WINDOWS = 1_000_000
#: What ``--fail-on`` may name besides causes: any cause at all.
ANY = "any"
#: Exit codes of ``--fail-on``, as in :data:`tracer.errors.EXIT_CODES`.
EXIT_FOUND = 7
EXIT_UNTOLD = 8


@click.command("analyze")
@click.argument("session", type=click.Path())
@click.option(
    "--window",
    "window_ns",
    type=parse_duration,
    default="1s",
    metavar="T",
    show_default=True,
    help="Length of one window of the budget of time.",
)
@click.option(
    "--explain", "explained", metavar="CAUSE", help="Print the whole chain of evidence of a cause."
)
@click.option(
    "--fail-on",
    "fail_on",
    metavar="CAUSE[,...]",
    help="Exit with 7 if one of these causes is found, with 8 if one could be neither found nor "
    "ruled out. 'any' stands for all: 7 for any that is found, 8 for a verdict of unknown.",
)
@click.option(
    "--by-mark",
    "is_by_mark",
    is_flag=True,
    help="Print one line a round instead, from each mark (tracer mark) to the next: throughput, "
    "latencies, memory, findings, and how often each finding came.",
)
@click.option("--json", "is_json", is_flag=True, help="Print everything as JSON.")
def command(
    session: str,
    window_ns: int,
    explained: str | None,
    fail_on: str | None,
    is_by_mark: bool,
    is_json: bool,
) -> int:
    """Say what the device of SESSION was waiting for, and why.

    SESSION@BEGIN..END is a range of it, in times since its begin; either may be left out. Times in
    the answer are then since the begin of the range.

    Example:
      tracer analyze incident.tracer --explain launch.cpu_delay
    """
    if explained is not None and is_json:
        raise UsageError("--explain is for reading; --json has the same facts: give one of them")
    if is_by_mark and (explained is not None or fail_on is not None):
        raise UsageError("--by-mark compares rounds; give it without --explain and --fail-on")
    asked = find_cause(explained) if explained is not None else None
    watched = _watched(fail_on)
    from tracer.lean_arrow import make_arrow_lean

    make_arrow_lean()
    from analysis import attribute

    opened = open_detailed(session)
    if is_by_mark:
        from analysis import rounds

        told = rounds.rounds_of(opened)
        text = json.dumps(rounds.to_json(told), indent=1) if is_json else rounds.render(told)
        click.echo(plain(text))
        return 0
    if opened.duration_ns > MAX_WINDOWS * window_ns:
        least_s = opened.duration_ns // (MAX_WINDOWS * 1_000_000_000) + 1
        raise UsageError(
            f"the session has more than {MAX_WINDOWS:,} windows of that length; "
            f"give a longer one, e.g. --window {least_s}s"
        )
    attribution = attribute(opened, window_ns=window_ns)
    if is_json:
        click.echo(json.dumps(attribution.to_json(), indent=1))
    elif asked is not None:
        from analysis.report.explain import explain

        click.echo(plain(explain(attribution, opened, asked)))
    else:
        from analysis.report.terminal import render

        click.echo(plain(render(attribution)))
    return _exit_code(attribution, watched) if watched else 0


def _watched(fail_on: str | None) -> set[str]:
    """Causes that ``--fail-on`` names; outcomes of the verdict may be named too.

    Raises:
        UsageError: one is not in the vocabulary.
    """
    if fail_on is None:
        return set()
    slugs = {slug.strip() for slug in fail_on.split(",") if slug.strip()}
    if not slugs:
        raise UsageError("--fail-on names no cause; give e.g. --fail-on hang.kernel,launch.gil")
    for slug in slugs - {ANY}:
        find_cause(slug)
    return slugs


def _exit_code(attribution: Attribution, watched: set[str]) -> int:
    """The exit code of ``--fail-on``, said on standard error too."""
    from analysis.causes import CAUSES
    from analysis.finding import Status

    statuses: dict[str, set[Status]] = {}
    for item in [*attribution.checked, *attribution.findings]:
        statuses.setdefault(item.cause, set()).add(item.status)
    implemented = {cause.slug for cause in CAUSES if cause.is_implemented}
    slugs = watched | implemented if ANY in watched else watched
    found = [slug for slug in sorted(slugs) if Status.FOUND in statuses.get(slug, ())]
    outcome = {attribution.verdict.cause} & watched - implemented
    if found or outcome:
        names = ", ".join([*found, *outcome])
        click.echo(plain_line(f"--fail-on: found {names}."), err=True)
        return EXIT_FOUND
    # Nothing wrong was found, and it is not known that nothing is.
    untold = {ANY} if ANY in watched and attribution.verdict.cause == "unknown" else set()
    for slug in slugs & implemented:
        # Among all causes some always lack their sources; one that was named must be looked for.
        is_looked_for = statuses.get(slug, set()) == {Status.NOT_FOUND}
        is_doubted = Status.UNDECIDED in statuses.get(slug, ())
        if is_doubted or (slug in watched and not is_looked_for):
            untold.add(slug)
    if untold:
        names = ", ".join(sorted(untold))
        click.echo(plain_line(f"--fail-on: neither found nor ruled out: {names}."), err=True)
        return EXIT_UNTOLD
    return 0
