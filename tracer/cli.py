"""The command line: one list of commands, and the one place where errors become exit codes."""

from __future__ import annotations

import errno
import importlib
import inspect
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from tracer import __version__
from tracer.errors import EXIT_CODES, TracerError
from tracer.plain_text import plain
from tracer.standard_files import ensure_standard_files, write_in_any_encoding

#: Every command and the module that defines it; loaded when it is needed. Keep this list sorted.
COMMANDS: tuple[tuple[str, str], ...] = (
    ("analyze", "tracer.commands.analyze"),
    ("causes", "tracer.commands.causes"),
    ("completion", "tracer.commands.completion"),
    ("cupti", "tracer.commands.cupti"),
    ("demo", "tracer.commands.demo"),
    ("describe", "tracer.commands.describe"),
    ("diff", "tracer.commands.diff"),
    ("doctor", "tracer.commands.doctor"),
    ("export", "tracer.commands.export"),
    ("import", "tracer.commands.import_"),
    ("kv-budget", "tracer.commands.kv_budget"),
    ("mark", "tracer.commands.mark"),
    ("mps", "tracer.commands.mps"),
    ("record", "tracer.commands.record"),
    ("recover", "tracer.commands.recover"),
    ("report", "tracer.commands.report"),
    ("top", "tracer.commands.top"),
)

#: Foreseeable errors of the other packages and their exit codes; named so that nothing is imported.
FOREIGN_ERRORS: dict[str, int] = {
    "analysis.kv.KvError": 3,
    "analysis.manifest.ManifestError": 3,
    "analysis.report.files.LibraryError": 4,
    "analysis.report.files.OutputError": 6,
    "analysis.rounds.RoundsError": 3,
    "analysis.timeline.TimelineError": 3,
    "probes.probe.ProbeError": 4,
    "probes.recorded.recording.RecordingError": 3,
}

#: Errors of the system that no command expects at that place and that are no defect: what mends
#: them.
_CIRCUMSTANCES: dict[int | None, str] = {
    errno.EACCES: "repeat as root or as the owner",
    errno.EPERM: "repeat as root or as the owner",
    errno.EROFS: "choose another place",
    errno.ENOSPC: "make room where it was to be written",
    errno.EDQUOT: "make room where it was to be written",
    errno.EFBIG: "raise the limit of a file's size: ulimit -f unlimited",
    errno.EIO: "look at the disk or terminal, e.g. with dmesg",
    errno.EMFILE: "raise the limit of open files: ulimit -n 65536",
    errno.ENFILE: "raise the system's limit of open files: sysctl fs.file-max",
    errno.ENOMEM: "free memory and repeat",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ELOOP: "give the path without links",
}
#: Exit code of those.
EXIT_OS = 1

#: How libraries and the interpreter word that no memory, or no thread, is to be had.
_SHORTAGES = (
    "failed to map segment",
    "cannot allocate memory",
    "can't start new thread",
    "failed to launch worker thread",
)

#: Exit code after Ctrl-C before anything was recorded.
INTERRUPTED = 130

_EPILOG = "\b\nExit codes:\n" + "\n".join(
    f"  {code}  {meaning}" for code, meaning in sorted(EXIT_CODES.items())
)


def keep_example(text: str) -> str:
    """Return help text whose paragraph ``Example:`` click leaves as it is written."""
    return re.sub(r"\n\n(?:\\b\n)?Example:", "\n\n\b\nExample:", inspect.cleandoc(text))


class LazyGroup(click.Group):
    """A group whose commands are imported one by one, so that each starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, sorted."""
        return [name for name, _ in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; a broken one raises its own error."""
        module_name = dict(COMMANDS).get(cmd_name)
        if module_name is None:
            return None
        command = importlib.import_module(module_name).command
        assert isinstance(command, click.Command)
        command.help = keep_example(command.help or "")
        return command


@click.command(
    cls=LazyGroup,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 88},
)
@click.version_option(__version__, prog_name="tracer")
def cli() -> None:
    """Says what a GPU service's device was waiting for, second by second, and why.

    Example:
      tracer record --pid 4242 --duration 60s -o incident.tracer
      tracer analyze incident.tracer
    """


cli.help = keep_example(cli.help or "")


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    try:
        result = cli.main(
            args=None if arguments is None else list(arguments),
            prog_name="tracer",
            standalone_mode=False,
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except SystemExit:
        # click ends only this way when the reader of the output (head, less) went away: no error.
        return 0
    except TracerError as error:
        return _fail(str(error), error.exit_code)
    except OSError as error:
        if error.errno not in _CIRCUMSTANCES:
            raise
        place = f"{error.filename}: " if error.filename is not None else ""
        fact = f"{place}{error.strerror or error}"
        return _fail(f"{fact}; {_CIRCUMSTANCES[error.errno]}", EXIT_OS)
    except Exception as error:
        code = _foreign_code(error)
        if code is not None:
            return _fail(str(error), code)
        shortage = _shortage(error)
        if shortage is None:
            raise
        return _fail(
            f"there is too little memory, or too few threads are allowed ({shortage}); free "
            "memory, or raise the limits (ulimit -v, ulimit -u), and repeat",
            EXIT_OS,
        )
    return result if isinstance(result, int) else 0


def main() -> NoReturn:
    """Run the command line of this process."""
    ensure_standard_files()
    write_in_any_encoding()
    sys.exit(run())


def _foreign_code(error: Exception) -> int | None:
    """Exit code of a foreseeable error of another package, None for a defect."""
    for kind in type(error).__mro__:
        code = FOREIGN_ERRORS.get(f"{kind.__module__}.{kind.__qualname__}")
        if code is not None:
            return code
    return None


def _shortage(error: Exception) -> str | None:
    """What the error says of memory or threads that were not given; None where it is another."""
    for line in str(error).splitlines():
        if any(sign in line.lower() for sign in _SHORTAGES):
            return line.strip()[:200]
    return str(error)[:200] or "no more is given" if isinstance(error, MemoryError) else None


def _fail(message: str, code: int) -> int:
    click.echo(plain(f"tracer: {message}"), err=True)
    return code
