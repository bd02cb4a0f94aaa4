"""Man pages of every command, from the same declarations as its help.

``python -m tracer.man_pages DIR`` writes them to DIR; ``make install-man`` does so for man(1).
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import click

from tracer import __version__
from tracer.cli import cli
from tracer.errors import EXIT_CODES

SECTION = 1
#: In click's help, lines after this keep their breaks.
_KEEP_BREAKS = "\b"


def man_pages() -> dict[str, str]:
    """Return the text of every page by file name, in man's own language (roff)."""
    context = click.Context(cli, info_name="tracer")
    pages = {f"tracer.{SECTION}": _page(cli, context, [])}
    names = cli.list_commands(context)
    for name in names:
        command = cli.get_command(context, name)
        assert command is not None
        own = click.Context(command, info_name=name, parent=context)
        pages[f"tracer-{name}.{SECTION}"] = _page(command, own, [name])
    return pages


def write(folder: Path) -> list[Path]:
    """Write every page into a directory and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in man_pages().items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def _page(command: click.Command, context: click.Context, names: list[str]) -> str:
    title = "-".join(["tracer", *names])
    paragraphs = (command.help or "").strip().split("\n\n")
    summary = " ".join(paragraphs[0].split()).rstrip(".")
    usage = " ".join(["tracer", *names, *command.collect_usage_pieces(context)])
    lines = [
        f'.TH "{title.upper()}" {SECTION} "" "tracer {__version__}" "tracer"',
        *(".SH NAME", f"{_text(title)} \\- {_text(summary)}"),
        *(".SH SYNOPSIS", f".B {_text(usage)}"),
        *(".SH DESCRIPTION", *_paragraphs(paragraphs)),
    ]
    options = [
        record
        for parameter in command.get_params(context)
        if (record := parameter.get_help_record(context)) is not None and record[1]
    ]
    if options:
        lines.append(".SH OPTIONS")
    for names_, text in options:
        lines += [".TP", f".B {_text(names_)}", _text(" ".join(text.split()))]
    if isinstance(command, click.Group):
        lines += _commands(command, context)
    lines.append(".SH EXIT STATUS")
    for code, meaning in sorted(EXIT_CODES.items()):
        lines += [".TP", f".B {code}", _text(meaning)]
    lines.append(".SH SEE ALSO")
    others = [name for name in cli.list_commands(context) if [name] != names]
    pages = (["tracer"] if names else []) + [f"tracer-{name}" for name in others]
    lines.append(", ".join(f"\\fB{_text(page)}\\fR({SECTION})" for page in pages))
    return "\n".join(lines) + "\n"


def _commands(group: click.Group, context: click.Context) -> list[str]:
    lines = [".SH COMMANDS"]
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        lines += [".TP", f"\\fBtracer-{_text(name)}\\fR({SECTION})"]
        lines.append(_text(command.get_short_help_str(limit=200)))
    return lines


def _paragraphs(paragraphs: list[str]) -> list[str]:
    lines: list[str] = []
    for paragraph in paragraphs:
        is_kept = paragraph.lstrip().startswith(_KEEP_BREAKS)
        text = paragraph.replace(_KEEP_BREAKS, "").strip("\n")
        if is_kept:
            rows = [_text(row) for row in text.splitlines() if row.strip()]
            lines += [".PP", ".nf", *rows, ".fi"]
        else:
            lines += [".PP", _text(" ".join(text.split()))]
    return lines


def _text(text: str) -> str:
    """Text with what man would take for a command of its own made harmless."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped)


def main() -> None:
    """Write the pages to the directory that the command line names."""
    parser = argparse.ArgumentParser(description="Write the man pages of tracer to a directory.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    for path in write(parser.parse_args().folder):
        print(path)


if __name__ == "__main__":
    main()
