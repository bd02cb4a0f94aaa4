"""``tracer top``: what the device is waiting for right now."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import click

from tracer.commands.parameters import parse_duration

if TYPE_CHECKING:
    from analysis.live import Look
    from tracer.temporary_recording import TemporaryRecording

#: One look a second; more where looking takes longer than half of that.
_PERIOD_S = 1.0
#: The older rows are not needed: the stretch that is looked at, and what is on its way to the disk.
_KEEP = "2m"


@click.command("top")
@click.option("--pid", type=int, required=True, metavar="P", help="Process, its children too.")
@click.option("--engine", "engine_url", metavar="URL", help="Metrics page of the engine.")
@click.option(
    "--duration",
    "duration_ns",
    type=parse_duration,
    metavar="T",
    help="End after this time; by default with the target or Ctrl-C.",
)
def command(pid: int, engine_url: str | None, duration_ns: int | None) -> None:
    """Show live what the device of process P is waiting for, once a second.

    Verdict, budget of device time, launches, device, service and neighbours over half a minute,
    up to four seconds ago. On a terminal a screen, in a pipe one line a second. Nothing is kept:
    the recording it makes for that is removed at the end.

    Example:
      tracer top --pid 4242
    """
    from tracer.lean_arrow import make_arrow_lean
    from tracer.recordable import check_target
    from tracer.temporary_recording import TemporaryRecording

    check_target(pid)
    make_arrow_lean()
    arguments = ["--pid", str(pid), "--keep", _KEEP]
    if engine_url is not None:
        arguments += ["--engine", engine_url]
    with _ended_by_signals(), TemporaryRecording(arguments) as recording:
        # What is looked at is the target's; looking must not take its CPU.
        os.nice(10)
        show = _screen if sys.stdout.isatty() else _lines
        show(recording, f"tracer top: process {pid}", duration_ns)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end it as Ctrl-C does, so that the recording is removed."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _screen(recording: TemporaryRecording, title: str, duration_ns: int | None) -> None:
    from rich.live import Live

    from tracer.top_screen import screen

    with Live(screen(None, title, 0), auto_refresh=False, screen=True) as live:
        _repeat(
            recording,
            duration_ns,
            lambda look, _elapsed: live.update(
                screen(look, title, time.monotonic_ns()), refresh=True
            ),
        )


def _lines(recording: TemporaryRecording, _title: str, duration_ns: int | None) -> None:
    from tracer.top_screen import line

    def tell(look: Look | None, elapsed_ns: int) -> None:
        click.echo(line(look, elapsed_ns))
        sys.stdout.flush()

    _repeat(recording, duration_ns, tell)


def _repeat(
    recording: TemporaryRecording,
    duration_ns: int | None,
    show: Callable[[Look | None, int], None],
) -> None:
    """Look once a second until the target or the time ends."""
    from analysis.live import look
    from analysis.timeline import open_session

    begin_ns = time.monotonic_ns()
    while not recording.has_ended():
        now_ns = time.monotonic_ns()
        if duration_ns is not None and now_ns - begin_ns >= duration_ns:
            return
        found = look(open_session(recording.path), now_ns) if recording.has_begun else None
        show(found, now_ns - begin_ns)
        took_s = (time.monotonic_ns() - now_ns) / 1e9
        time.sleep(max(_PERIOD_S - took_s, took_s))
