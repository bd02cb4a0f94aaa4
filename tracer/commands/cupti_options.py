"""The options of ``tracer record`` for device times, and what they prepare."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tracer.commands.parameters import parse_duration
from tracer.errors import UsageError

if TYPE_CHECKING:
    from probes.cupti.probe import CuptiOptions

_Command = TypeVar("_Command", bound=Callable[..., Any])

#: Windows that are shorter hold too little to judge by, ns.
MIN_WINDOW_NS = 100_000_000


def cupti_options(command: _Command) -> _Command:
    """Add the options ``--cupti``, ``--window``, ``--every`` and ``--graph-nodes``."""
    options = (
        click.option(
            "--cupti",
            "is_cupti",
            is_flag=True,
            help="Record true device times too, with the program's own CUPTI. Needs -- COMMAND, "
            "or a process started with the variables that tracer cupti prints.",
        ),
        click.option(
            "--window",
            "window_ns",
            type=parse_duration,
            metavar="T",
            help="Record device times for this long at a time, e.g. 2s; by default always. Needs "
            "--every or --trigger.",
        ),
        click.option(
            "--every",
            "every_ns",
            type=parse_duration,
            metavar="T",
            help="From the begin of one window to the next, e.g. 60s; without it a window comes "
            "with each trigger.",
        ),
        click.option(
            "--graph-nodes",
            "has_graph_nodes",
            is_flag=True,
            help="Device times of each node of a CUDA graph, not of the graph as a whole; costs "
            "more.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def parse_cupti(
    is_cupti: bool,
    window_ns: int | None,
    every_ns: int | None,
    has_graph_nodes: bool,
    has_command: bool,
    has_triggers: bool = False,
) -> CuptiOptions | None:
    """Return when and how to collect device times, None where it was not asked for.

    For a command the place to meet is made here.

    Raises:
        UsageError: the options contradict each other.
        ProbeError: the library cannot be built, or the place cannot be made.
    """
    if not is_cupti:
        if window_ns is not None or every_ns is not None or has_graph_nodes:
            raise UsageError("--window, --every and --graph-nodes need --cupti; add it")
        return None
    if window_ns is None and every_ns is not None:
        raise UsageError("--every T needs --window T; give both or neither")
    if window_ns is not None:
        if every_ns is None and not has_triggers:
            raise UsageError("--window T needs --every T or --trigger WHEN; say when it comes")
        if window_ns < MIN_WINDOW_NS:
            raise UsageError("a window shorter than 100ms holds too little; give e.g. --window 2s")
        if every_ns is not None and every_ns <= window_ns:
            raise UsageError("--every must be longer than --window; without both it is always on")
    from probes.cupti.probe import CuptiOptions

    if not has_command:
        return CuptiOptions(None, window_ns, every_ns, has_graph_nodes)
    from probes.cupti.rendezvous import INJECTION_VARIABLE, Rendezvous

    other = os.environ.get(INJECTION_VARIABLE)
    if other:
        raise UsageError(
            f"{INJECTION_VARIABLE} is set to {other} already, and CUDA loads only one such "
            "library; unset it, or record without --cupti"
        )
    meeting = Rendezvous.create()
    directory = meeting.directory
    meeting.close(remove=False)
    return CuptiOptions(directory, window_ns, every_ns, has_graph_nodes, is_owned=True)


@contextmanager
def environment_for(options: CuptiOptions | None) -> Iterator[None]:
    """A context in which a command is started with what makes it load the library."""
    if options is None or options.directory is None:
        yield
        return
    from probes.cupti.rendezvous import RANGES_VARIABLE, Rendezvous

    meeting = Rendezvous(options.directory)
    try:
        added = meeting.environment()
    finally:
        meeting.close(remove=False)
    if os.environ.get(RANGES_VARIABLE):
        # Somebody else reads the ranges of this program: theirs stays.
        del added[RANGES_VARIABLE]
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def remove_place(options: CuptiOptions | None) -> None:
    """Remove the place of a recording that did not begin."""
    if options is not None and options.is_owned and options.directory is not None:
        import shutil

        shutil.rmtree(options.directory, ignore_errors=True)
