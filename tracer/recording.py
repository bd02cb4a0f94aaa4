"""From the options of ``tracer record`` to a finished session and what to say about it."""

from __future__ import annotations

import difflib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from analysis.manifest import FILE_NAME, Manifest, Source
from probes.clocks import ClockAnchors
from probes.cuda.loading import ModuleLoading
from probes.registry import CanaryOptions, ProbeOptions, build_probes
from probes.targets import TargetTree
from tracer import __version__
from tracer.commands.parameters import SESSION_SUFFIX
from tracer.errors import SessionError, TargetError, UsageError
from tracer.long_run import LongRun, LongRunOptions
from tracer.plain_text import plain_line
from tracer.recordable import check_target
from tracer.recorder import Recorder, first_manifest, stopped_by_signals
from tracer.session import SessionWriter
from tracer.standard_files import raise_file_limit
from tracer.status import Status, status_line

if TYPE_CHECKING:
    from rich.live import Live

    from probes.cupti.probe import CuptiOptions
    from tracer.follow import Service
    from tracer.settings_file import SettingsFile

#: Removing the probes is only told where it takes longer than this.
QUIET_DETACH_S = 1.0
#: How often it is looked for a service that does not run yet.
FOLLOW_S = 1.0
#: Longest wait for probes to be gone from the target, after the files are closed.
DETACH_TIMEOUT_S = 120.0

_REASONS = {
    "duration": "the time was over",
    "target_ended": "the target ended",
    "interrupted": "it was interrupted",
    "terminated": "it was terminated",
    "hung_up": "its terminal was closed, or it got SIGHUP",
    "folder_gone": "its directory was removed or moved",
    "disk_low": "little room is left on the disk (--min-free)",
}


@dataclass(frozen=True)
class RecordOptions:
    """What to record, for how long, and where to.

    Attributes:
        pids: Processes; their children belong to them. Empty for the service that is followed.
        output: Session directory, None for a name made of the target and the time.
        duration_ns: Longest recording in ns, and longest wait for a service that is followed;
            None for no limit.
        engine_urls: Metrics pages of the engine.
        canary: Small requests to a service; None for none.
        dcgm: ``dcgmi``, or the URL of a dcgm-exporter; None to leave DCGM alone.
        causes: Record only what these causes need; empty for everything.
        cupti: When to collect device times, and how; None to collect none.
        force: Replace an existing session.
        loading: The BPF module, if its compilation was begun already.
        budget_share: CPU time that probing calls may add, as a share of the CPU time of the
            launching threads; None for no budget.
        on_ready: Called once every probe is in place.
        is_terminal: Whether to keep a status line on standard error.
        long_run: What is kept, triggers, and whom to follow.
        settings: Where part of that is read again at SIGHUP; None for nowhere.
    """

    pids: Sequence[int]
    output: Path | None = None
    duration_ns: int | None = None
    engine_urls: tuple[str, ...] = ()
    canary: CanaryOptions | None = None
    dcgm: str | None = None
    causes: tuple[str, ...] = ()
    cupti: CuptiOptions | None = None
    force: bool = False
    loading: ModuleLoading | None = None
    budget_share: float | None = None
    on_ready: Callable[[], None] | None = None
    is_terminal: bool = False
    long_run: LongRunOptions = field(default_factory=LongRunOptions)
    settings: SettingsFile | None = None


def record(options: RecordOptions) -> int:
    """Record until the end and return the exit code; what happened is told on standard error.

    Raises:
        TargetError: a process does not exist.
        SessionError: the session cannot be made, or could not be written in full.
    """
    tables = _tables_for(options.causes)
    if tables is not None and options.canary is not None:
        tables.add("request")
    if tables is not None and options.dcgm is not None:
        tables.add("gpu_sample")
    if tables is not None and options.cupti is not None:
        tables.add("gpu_activity")
    raise_file_limit()
    pids = options.pids or _wait_for(options.long_run.follow, options.duration_ns)
    tree = _open_tree(pids)
    path = options.output or _default_path(tree, pids[0])
    long_run = LongRun(options.long_run, path, _say, options.settings)
    anchors = ClockAnchors()
    asked = ProbeOptions(
        tree,
        anchors,
        options.engine_urls,
        canary=options.canary,
        dcgm=options.dcgm,
        cupti=options.cupti,
        loading=options.loading,
        budget_share=options.budget_share,
    )
    probes = build_probes(asked, tables)
    writer = SessionWriter(
        path,
        first_manifest(__version__),
        force=options.force,
        retention=long_run.retention,
    )
    display = _Display(options.is_terminal)
    watchers = long_run.watchers(writer, tree, probes)
    try:
        recorder = Recorder(
            probes,
            writer,
            tree,
            root_pids=pids,
            duration_ns=options.duration_ns,
            anchors=anchors,
            watchers=watchers,
            is_following=options.long_run.follow is not None,
            on_status=display.show if options.is_terminal else None,
        )
    except ProcessLookupError:
        for watcher in watchers:
            watcher.close()
        writer.close()
        raise TargetError("the process ended before it could be recorded; start it again") from None
    long_run.attend(recorder)
    with stopped_by_signals(recorder, long_run.hang_up):
        if options.is_terminal:
            _say("Attaching the probes ...")
        recorder.start()
        if options.on_ready is not None:
            options.on_ready()
        _tell_start(path, writer.manifest)
        with display.live():
            reason = recorder.run()
        stop_begin = time.monotonic()
        is_complete = recorder.finish()
        _tell_end(writer.manifest, reason, time.monotonic() - stop_begin)
        if not recorder.wait_detached(QUIET_DETACH_S):
            _wait_detached(recorder)
        is_there = writer.is_in_place() and (path / FILE_NAME).exists()
        if is_there:
            _say(f"Next: tracer analyze {path}")
    if not is_there:
        raise SessionError(
            f"{path} was removed or moved while it was recorded, and lacks its end; record again, "
            "or analyze what was recorded until then at its new place"
        )
    if not is_complete or writer.source().n_lost:
        raise SessionError(
            f"{path} lacks rows. {writer.problem or 'The disk does not answer.'} "
            "What was written is readable; record again into a place with room."
        )
    return 0


def _wait_for(service: Service | None, most_ns: int | None) -> list[int]:
    """The processes of a service, once it has any; None waits without end.

    Raises:
        UsageError: no service was named.
        TargetError: it had none for so long.
    """
    if service is None:
        raise UsageError("nothing says what to record; give --pid P or --follow NAME")
    deadline = math.inf if most_ns is None else time.monotonic() + most_ns / 1e9
    pids = service.find()
    if not pids:
        _say(f"Waiting for {service} ...")
    while not pids:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TargetError(
                f"no process of {service} came within the --duration; start it, or leave out "
                "--duration to wait for it"
            )
        time.sleep(min(FOLLOW_S, left_s))
        pids = service.find()
    return pids


def _open_tree(pids: Sequence[int]) -> TargetTree:
    """The tree below some processes.

    Raises:
        TargetError: one of them cannot be recorded.
    """
    for pid in pids:
        check_target(pid)
    tree = TargetTree(pids, excluded_pids=[os.getpid()])
    for pid in pids:
        if tree.get(pid) is None:
            raise TargetError(f"process {pid} ended before it could be recorded; start it again")
    return tree


def _tables_for(causes: Sequence[str]) -> set[str] | None:
    """Tables that some causes need, None for all.

    Raises:
        UsageError: one is not a cause, or nothing can find it.
    """
    if not causes:
        return None
    from analysis.causes import CAUSES

    declared = {cause.slug: cause for cause in CAUSES}
    tables: set[str] = set()
    for slug in causes:
        cause = declared.get(slug)
        if cause is None:
            close = difflib.get_close_matches(slug, declared, n=1)
            hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(declared)}"
            raise UsageError(f"there is no cause {slug}; {hint}")
        if cause.needs is None:
            raise UsageError(f"no analyzer states {slug} yet; record without --for")
        tables.update(cause.needs.tables)
    return tables


def _default_path(tree: TargetTree, pid: int) -> Path:
    """NAME-PID-TIME.tracer in the present directory."""
    target = tree.get(pid)
    raw = target.name if target is not None and target.name else "process"
    name = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in raw)
    return Path(f"{name}-{pid}-{time.strftime('%Y%m%d-%H%M%S')}{SESSION_SUFFIX}")


def _say(text: str) -> None:
    """Tell it, if there is still somebody to tell: a recording outlives its terminal."""
    with suppress(OSError):
        click.echo(plain_line(text), err=True)


def _missing(manifest: Manifest) -> list[Source]:
    return [source for source in manifest.sources if source.state in ("unavailable", "lost")]


def _tell_start(path: Path, manifest: Manifest) -> None:
    for source in _missing(manifest):
        _say(f"without {source.name}: {source.note}")
    names = ", ".join(f"{target.pid} ({target.name})" for target in manifest.targets[:5])
    more = f" and {len(manifest.targets) - 5} more" if len(manifest.targets) > 5 else ""
    _say(f"Recording {names}{more} into {path}. End it with Ctrl-C.")


def _tell_end(manifest: Manifest, reason: str, stop_s: float) -> None:
    start_ns, end_ns = manifest.start_ns or 0, manifest.end_ns or 0
    n_rows = sum(source.n_rows for source in manifest.sources if source.name == "session")
    _say(
        f"Recorded {(end_ns - start_ns) / 1e9:.1f} s, {n_rows:,} rows; {_REASONS[reason]}. "
        f"Files closed after {stop_s:.1f} s."
    )
    for source in manifest.sources:
        if source.n_lost:
            _say(f"{source.name} lost {source.n_lost:,} records. {source.note}".rstrip())
        elif source.state == "lost":
            _say(f"{source.name} failed: {source.note}")


def _wait_detached(recorder: Recorder) -> None:
    _say("Probes are still being removed from the target; please wait ...")
    begin = time.monotonic()
    if recorder.wait_detached(DETACH_TIMEOUT_S):
        _say(f"Probes were gone {time.monotonic() - begin:.1f} s later.")
    else:
        _say("Probes are not gone yet; they end with this process.")


class _Display:
    """The status line on a terminal; nothing anywhere else."""

    def __init__(self, is_terminal: bool) -> None:
        self._live: Live | None = None
        self._is_terminal = is_terminal

    @contextmanager
    def live(self) -> Iterator[None]:
        """A context in which the line is shown."""
        if self._is_terminal:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            with suppress(OSError):
                self._live.start()
        try:
            yield
        finally:
            if self._live is not None:
                with suppress(OSError):
                    self._live.stop()

    def show(self, status: Status) -> None:
        """Replace the line."""
        from rich.text import Text

        if self._live is not None:
            with suppress(OSError):
                self._live.update(Text(plain_line(status_line(status))), refresh=True)
