"""``tracer import``: a recording of another tool becomes a session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from probes.recorded_formats import RECORDED_FORMATS
from tracer import __version__
from tracer.errors import SessionError

if TYPE_CHECKING:
    from analysis.manifest import Manifest
    from probes.recorded.recording import Recording
    from tracer.session import SessionWriter

#: Longest wait for the disk in s before the import gives up.
DISK_TIMEOUT_S = 600.0

_EPILOG = "\b\nFormats:\n" + "\n".join(
    f"  {name:<{max(map(len, RECORDED_FORMATS))}}  {meaning}"
    for name, meaning in RECORDED_FORMATS.items()
)


@click.command("import", epilog=_EPILOG)
@click.argument("file", metavar="FILE|DIR", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Session directory to make.",
)
@click.option(
    "--format",
    "format_name",
    metavar="NAME",
    type=click.Choice(list(RECORDED_FORMATS)),
    help="Insist on this format, one of those below.",
)
@click.option("--force", is_flag=True, help="Replace an existing session.")
def command(file: Path, output: Path, format_name: str | None, force: bool) -> None:
    """Turn FILE or DIR, a recording of another tool, into a session; its format is recognised.

    Example:
      tracer import trace.db -o old.tracer
    """
    from tracer.lean_arrow import give_memory_back, make_arrow_lean
    from tracer.lean_heap import make_heap_steady

    make_heap_steady()
    make_arrow_lean()
    give_memory_back()
    from probes.recorded.opening import open_recording
    from tracer.session import SessionWriter

    recording = open_recording(file, format_name)
    writer = SessionWriter(output, _manifest(recording), force=force)
    try:
        _copy(recording, writer)
        writer.manifest = _manifest(recording)
        writer.manifest.end_reason = "imported"
    finally:
        writer.close(DISK_TIMEOUT_S)
    if writer.problem:
        raise SessionError(f"{writer.problem} Make room and repeat with --force.")
    click.echo(f"{output}: {writer.source().n_rows:,} rows from {recording.format}", err=True)
    for problem in recording.problems:
        click.echo(f"skipped {problem.n_rows:,} rows: {problem.reason}", err=True)
    click.echo(f"Next: tracer analyze {output}", err=True)


def _manifest(recording: Recording) -> Manifest:
    """The manifest that a recording's facts make."""
    from analysis.manifest import Manifest
    from analysis.schema import FORMAT_VERSION

    facts = recording.manifest_facts()
    facts.update(tool_version=__version__, format_version=FORMAT_VERSION)
    return Manifest.from_json(json.dumps(facts))


def _copy(recording: Recording, writer: SessionWriter) -> None:
    """Write all rows; an import waits for the disk instead of dropping."""
    for batch in recording.batches():
        writer.append(batch)
        if not writer.wait_for_room(DISK_TIMEOUT_S):
            raise SessionError(f"{writer.path} takes no more rows; look at its disk and repeat")
