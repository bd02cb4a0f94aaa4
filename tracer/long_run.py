"""What a recording over days needs besides the probes, put together from the options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from probes.probe import LookingCloser, Probe
from probes.targets import TargetTree
from tracer.captures import CaptureOptions, Captures
from tracer.control import Control
from tracer.free_space import FreeSpace
from tracer.place import PlaceWatch
from tracer.recorder import Recorder
from tracer.retention import Retention
from tracer.session import SessionWriter
from tracer.trigger_grammar import Trigger
from tracer.triggers import Triggers
from tracer.watching import Watcher

if TYPE_CHECKING:
    from tracer.follow import Service
    from tracer.metrics_page import MetricsPage
    from tracer.settings_file import SettingsFile


@dataclass(frozen=True)
class LongRunOptions:
    """How a recording lasts.

    Attributes:
        keep_ns: Full detail is kept for so long; None for ever.
        max_bytes: Most bytes of the session; None without bound.
        min_free_bytes: The recording ends when less is free on its disk; 0 for no such end.
        triggers: When to keep the detail and make a verdict.
        captures: How.
        follow: Service whose restarts are followed; None for none.
        metrics_port: Port of the page of the recorder's health; None for none.
    """

    keep_ns: int | None = None
    max_bytes: int | None = None
    min_free_bytes: int = 0
    triggers: tuple[Trigger, ...] = ()
    captures: CaptureOptions = field(default_factory=CaptureOptions)
    follow: Service | None = None
    metrics_port: int | None = None

    def retention(self) -> Retention | None:
        """Return a rule of what is kept; None for everything."""
        if self.keep_ns is None and self.max_bytes is None:
            return None
        return Retention(self.keep_ns, self.max_bytes)


class LongRun:
    """The watchers of one recording.

    Args:
        options: What was asked for.
        path: The session's directory.
        say: Tells the person one line.
        settings: Where the options are read again at SIGHUP; None for nowhere.

    Raises:
        SessionError: too little is free on the disk.
        UsageError: the port of the metrics page cannot be had.
    """

    def __init__(
        self,
        options: LongRunOptions,
        path: Path,
        say: Callable[[str], None],
        settings: SettingsFile | None = None,
    ) -> None:
        self._options = options
        self._path = path
        self._say = say
        self._settings = settings
        has_least = options.min_free_bytes or settings is not None
        self._free = FreeSpace(path, options.min_free_bytes) if has_least else None
        self._retention = options.retention()
        self._captures: Captures | None = None
        self._triggers: Triggers | None = None
        self._recorder: Recorder | None = None
        self._page: MetricsPage | None = None
        if options.metrics_port is not None:
            from tracer.metrics_page import MetricsPage

            self._page = MetricsPage(options.metrics_port)
            say(f"Metrics of the recorder: http://127.0.0.1:{self._page.port}/metrics")

    @property
    def retention(self) -> Retention | None:
        """The rule of what is kept; None for everything."""
        return self._retention

    def watchers(
        self, writer: SessionWriter, tree: TargetTree, probes: Sequence[Probe] = ()
    ) -> Sequence[Watcher]:
        """Return everything that looks at the recording.

        Args:
            writer: What is written.
            tree: Processes that are recorded.
            probes: Those of them that can look closer do so around each capture.

        Raises:
            UsageError: the port of the metrics page cannot be had.
        """
        closer = [probe.look_closer for probe in probes if isinstance(probe, LookingCloser)]
        captures = Captures(
            self._path, self._options.captures, tree.pids, writer.pin, self._say, closer
        )
        control = Control(self._path)
        control.start()
        if control.problem:
            self._say(f"without marks: {control.problem}.")
        triggers = Triggers(self._options.triggers, captures, writer.flush_soon)
        self._captures, self._triggers = captures, triggers
        found: list[Watcher] = [
            control,
            triggers,
            PlaceWatch(self._path, writer.is_in_place, self._say),
        ]
        if self._free is not None:
            found.append(self._free)
        if self._options.follow is not None:
            from tracer.follow import Follower

            found.append(Follower(self._options.follow, tree, self._roots, self._add_root))
        if self._page is not None:
            self._page.captures = captures
            found.append(self._page)
        if self._settings is not None:
            from tracer.settings_file import Reload

            found.append(Reload(self._settings, self._options, self._change, self._say))
        return found

    def hang_up(self) -> bool:
        """Take SIGHUP as the wish to read the settings again; False where it is to end it.

        May be called from a signal handler.
        """
        return self._settings is not None and self._settings.ask()

    def _change(self, options: LongRunOptions) -> Sequence[str]:
        """Go on by other options; return a sentence on each that cannot be had any more."""
        if self._triggers is not None:
            self._triggers.change(options.triggers)
        if self._captures is not None:
            self._captures.change(options.captures)
        if self._free is not None:
            self._free.change(options.min_free_bytes)
        if self._retention is not None:
            self._retention.change(options.keep_ns, options.max_bytes)
        elif options.retention() is not None:
            return ["keep and max-size hold only from the start of a recording: start it again."]
        return ()

    def attend(self, recorder: Recorder) -> None:
        """Say which recorder it is about."""
        self._recorder = recorder

    def _roots(self) -> Sequence[int]:
        return self._recorder.root_pids if self._recorder is not None else ()

    def _add_root(self, pid: int) -> bool:
        return self._recorder is not None and self._recorder.add_root(pid)
