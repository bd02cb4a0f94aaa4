"""``tracer cupti``: prepares programs that others start for device times on demand."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import click

from tracer.errors import UsageError


@click.command("cupti", context_settings={"ignore_unknown_options": False})
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where recorder and program meet; by default a new directory in /dev/shm.",
)
@click.option(
    "--library",
    default="",
    metavar="FILE",
    help="The libcupti to use, as the program sees it; by default it is looked for.",
)
@click.option(
    "--user",
    "owner",
    type=int,
    metavar="UID",
    help="User id that the program runs as; by default your own.",
)
def command(directory: Path | None, library: str, owner: int | None) -> int:
    """Prepare for device times of a program that a container or unit file starts.

    Prints the variables to start it with. Until somebody records with --cupti the program only
    holds a sleeping thread: CUPTI is not even loaded. The directory must be the same path inside a
    container, and stay until the program has ended.

    Example:
      tracer cupti --directory /dev/shm/engine
      docker run -v /dev/shm/engine:/dev/shm/engine -e CUDA_INJECTION64_PATH=... IMAGE
      tracer record --pid 4242 --cupti --window 2s --every 60s
    """
    from probes.cupti.rendezvous import Rendezvous

    if directory is None:
        directory = Path(f"/dev/shm/tracer-cupti-{secrets.token_hex(4)}")
    directory = directory.absolute()
    if (directory / "control").exists():
        raise UsageError(f"{directory} is prepared already; choose another --directory")
    meeting = Rendezvous.create(directory, library=library)
    try:
        meeting.add_library()
        variables = meeting.environment()
    finally:
        meeting.close(remove=False)
    if owner is not None:
        for path in (directory, *directory.iterdir()):
            os.chown(path, owner, -1)
    for name, value in variables.items():
        click.echo(f"{name}={value}")
    click.echo(
        f"Start the program with these and with {directory} at the same path; then: "
        "tracer record --pid P --cupti",
        err=True,
    )
    return 0
