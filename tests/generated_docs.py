"""The pages of docs/ that are generated from the declarations; a test keeps them equal.

``python -m tests.generated_docs --write`` writes them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click

from analysis import schema
from analysis.causes import CAUSES
from probes.cuda.functions import FUNCTIONS
from probes.engine.names import VOCABULARY

DOCS = Path(__file__).resolve().parents[1] / "docs"
HEADER = "<!-- Generated from the sources by `make docs`; do not edit. -->\n"


def escaped(text: str) -> str:
    """Return text that fits one cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def table_page() -> str:
    """Every recorded table and column."""
    lines = [HEADER, "# Tables of a session", ""]
    lines += [
        "One folder of Parquet files a table. Times are int64 nanoseconds of CLOCK_MONOTONIC; "
        "unknown is null; a column with a unit ends in it.",
        "",
    ]
    for table in schema.TABLES:
        lines += [f"## {table.name}", "", f"A row is {table.row}.", ""]
        lines += ["| column | type | unit | null | meaning |", "|---|---|---|---|---|"]
        lines += [
            f"| `{c.name}` | {c.type} | {c.unit or ''} | {'yes' if c.nullable else ''} "
            f"| {escaped(c.doc)} |"
            for c in table.columns
        ]
        lines.append("")
    return "\n".join(lines)


def cause_page() -> str:
    """The vocabulary of verdicts."""
    lines = [HEADER, "# Causes", "", "What a verdict can say, and what it takes to say it.", ""]
    for cause in CAUSES:
        lines += [f"## `{cause.slug}`", "", f"**{escaped(cause.title)}.** {escaped(cause.meaning)}"]
        lines += ["", f"* Proof: {escaped(cause.proof)}"]
        if cause.confused_with:
            lines.append(f"* Told apart from: {escaped(cause.confused_with)}")
        if cause.settles:
            lines.append(f"* Settles a doubt: {escaped(cause.settles)}")
        lines.append(f"* What to do: {escaped(cause.advice)}")
        if cause.stated_by:
            lines.append(f"* Stated by: {escaped(cause.stated_by)}")
        elif not cause.is_implemented:
            lines.append("* No analyzer states it yet: such time stays `unknown`.")
        lines.append("")
    return "\n".join(lines)


def function_page() -> str:
    """The functions that are probed."""
    lines = [HEADER, "# Probed functions", ""]
    lines.append("| function | layer | kind | also exported as | arguments recorded |")
    lines.append("|---|---|---|---|---|")
    for function in FUNCTIONS:
        roles = dict.fromkeys(field.role for field in function.fields)
        columns = ", ".join(f"`{role}`" for role in roles)
        others = ", ".join(name for name in function.symbols if name != function.name)
        lines.append(
            f"| `{function.name}` | {function.layer} | {function.kind} | {others} | {columns} |"
        )
    return "\n".join(lines) + "\n"


def metric_page() -> str:
    """The common vocabulary of engine metrics."""
    lines = [HEADER, "# Engine metrics", ""]
    lines += ["| metric | unit | kind | meaning |", "|---|---|---|---|"]
    lines += [f"| `{m.name}` | {m.unit} | {m.kind} | {escaped(m.doc)} |" for m in VOCABULARY]
    return "\n".join(lines) + "\n"


def command_page() -> str:
    """Help of every command, as a shell shows it."""
    from tracer.cli import cli

    lines = [HEADER, "# Command line", "", "```", help_text(), "```", ""]
    for name in cli.list_commands(click.Context(cli)):
        lines += [f"## tracer {name}", "", "```", help_text(name), "```", ""]
    return "\n".join(lines)


def help_text(*command: str) -> str:
    """Return what ``tracer COMMAND --help`` prints on a terminal of 80 columns."""
    done = subprocess.run(
        [sys.executable, "-m", "tracer", *command, "--help"],
        cwd=DOCS.parent,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.rstrip()


PAGES: dict[str, Callable[[], str]] = {
    "causes.md": cause_page,
    "commands.md": command_page,
    "functions.md": function_page,
    "metrics.md": metric_page,
    "tables.md": table_page,
}


def main() -> None:
    """Write the pages, or list those that differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if not path.exists() or path.read_text() != text:
            print(("wrote " if options.write else "differs: ") + name)
            if options.write:
                path.write_text(text)


if __name__ == "__main__":
    main()
