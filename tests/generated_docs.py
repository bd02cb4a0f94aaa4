"""The pages of docs/ that are generated from the declarations; a test keeps them equal.

``python -m tests.generated_docs --write`` writes them.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from analysis import attribute, open_session, schema
from analysis.attribution import Attribution
from analysis.budget import Budget
from analysis.causes import CAUSES
from analysis.compare import Change, Comparison, compare
from analysis.conclusion import Verdict
from analysis.finding import Evidence, Exclusion, Finding, Where
from analysis.json_schema import attribution_schema, comparison_schema, rounds_schema
from analysis.report.views import VIEWS
from analysis.timeline import Session
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


def json_page() -> str:
    """The JSON that commands print."""
    lines = [HEADER, "# JSON", ""]
    lines += [
        "`--json` prints one object. `schema_version` is raised when a reader of the old one would "
        "misread the new; within a version fields are only added, so pass over those that you do "
        "not know. Times are int64 ns of CLOCK_MONOTONIC, null is unknown, a field with a unit "
        "ends in it. For machines: [json-analyze.schema.json](json-analyze.schema.json), "
        "[json-by-mark.schema.json](json-by-mark.schema.json) and "
        "[json-diff.schema.json](json-diff.schema.json).",
        "",
        "For a soak run or CI the exit code of `tracer analyze --fail-on CAUSE[,...]` is enough: 7 "
        "if one of the causes is found, 8 if one could be neither found nor ruled out, 0 if all "
        "are ruled out; [commands.md](commands.md) lists the other codes.",
        "",
    ]
    shown: set[str] = set()
    for schema_ in (attribution_schema(), rounds_schema(), comparison_schema()):
        lines += [f"## {schema_['title']}", "", schema_["description"], ""]
        lines += _fields(schema_)
        for name, definition in schema_["$defs"].items():
            if name not in shown:
                lines += [f"### {name}", "", definition["description"], "", *_fields(definition)]
            shown.add(name)
    return "\n".join(lines)


def _fields(schema_: dict[str, Any]) -> list[str]:
    rows = [
        f"| `{name}` | {escaped(_kind(field))} | {escaped(field.get('description', ''))} |"
        for name, field in schema_["properties"].items()
    ]
    return ["| field | type | meaning |", "|---|---|---|", *rows, ""]


def _kind(field: dict[str, Any]) -> str:
    """The type of a JSON field in words."""
    if "$ref" in field:
        name = field["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name})"
    if "const" in field:
        return str(field["const"])
    if "enum" in field:
        return ", ".join(f"`{word}`" for word in field["enum"])
    if "anyOf" in field:
        return " or ".join(_kind(part) for part in field["anyOf"])
    if field["type"] == "array":
        return f"list of {_kind(field['items'])}"
    kinds = field["type"] if isinstance(field["type"], list) else [field["type"]]
    return " or ".join(kinds)


def schema_page(schema_: dict[str, Any]) -> str:
    """One JSON Schema, for machines."""
    return json.dumps(schema_, indent=1) + "\n"


def trigger_page() -> str:
    """What ``record --trigger`` understands."""
    from tracer.trigger_grammar import GRAMMAR, QUANTITIES

    lines = [HEADER, "# Triggers", "", "```", *GRAMMAR, "```", ""]
    lines += [
        "All conditions of a trigger must hold; one whose quantity is not known does not. TIME is "
        "a number with ms, s, m or h.",
        "",
        "| quantity | unit | what it is |",
        "|---|---|---|",
    ]
    lines += [
        f"| `{item.name}` | {', '.join(item.units) or 'none'} | {escaped(item.doc)} |"
        for item in QUANTITIES
    ]
    return "\n".join(lines) + "\n"


#: The public interface for notebooks: what it is imported from, and what it is.
PUBLIC: tuple[tuple[str, Any], ...] = (
    ("analysis", open_session),
    ("analysis.timeline", Session),
    ("analysis", attribute),
    ("analysis.attribution", Attribution),
    ("analysis.conclusion", Verdict),
    ("analysis.finding", Finding),
    ("analysis.finding", Evidence),
    ("analysis.finding", Exclusion),
    ("analysis.finding", Where),
    ("analysis.budget", Budget),
    ("analysis.compare", compare),
    ("analysis.compare", Comparison),
    ("analysis.compare", Change),
)


def python_page() -> str:
    """The public Python interface, from its docstrings."""
    lines = [HEADER, "# Python", ""]
    lines += [
        "For notebooks and scripts; [sessions.md](sessions.md) begins with examples. Times are int "
        "ns of CLOCK_MONOTONIC, shares lie in [0, 1], null is None.",
        "",
    ]
    for module, item in PUBLIC:
        lines += [f"## {item.__name__}", "", f"`from {module} import {item.__name__}`", ""]
        lines += _documented(item, item.__name__)
        if inspect.isclass(item):
            for name, member in vars(item).items():
                is_property = isinstance(member, property)
                if name.startswith("_") or not (is_property or inspect.isfunction(member)):
                    continue
                lines += [f"### {item.__name__}.{name}", ""]
                lines += _documented(member.fget if is_property else member, name, is_property)
    return "\n".join(lines)


def _documented(item: Any, name: str, is_property: bool = False) -> list[str]:
    """Signature and docstring as they are in the source."""
    signature = "" if is_property or inspect.isclass(item) else _signature(item)
    text = inspect.getdoc(item) or ""
    assert text, f"{name} has no docstring"
    head = [f"{name}{signature}", ""]
    return ["```text", *(head if signature else []), text, "```", ""]


def _signature(item: Any) -> str:
    """Parameters and types; defaults that are no plain value are left out."""
    found = inspect.signature(item)
    parameters = []
    for parameter in found.parameters.values():
        is_plain = isinstance(parameter.default, (int, float, str, bool, type(None)))
        if parameter.default is not inspect.Parameter.empty and not is_plain:
            parameter = parameter.replace(default=...)
        if parameter.name != "self":
            parameters.append(parameter)
    return str(found.replace(parameters=parameters)).replace("'", "").replace("Ellipsis", "...")


def export_page() -> str:
    """What a session becomes for other tools."""
    lines = [HEADER, "# Exports", "", "`tracer export FORMAT SESSION`", ""]
    lines += [
        "* `perfetto`: Perfetto's own format, for https://ui.perfetto.dev and its tools. A track "
        "per process and thread with its calls (the kernel is an argument of a launch), below it "
        "the time off the CPU and who had the CPU; a track per GPU and stream with the device's "
        "activities, joined to their launches by flows; counters of GPUs, threads, the host and "
        "the engine; the findings and the leading state of each window as slices.",
        "* `chrome`: the same as Chrome's JSON, about four times as large.",
        "* `csv`: a file per table, nulls as empty cells.",
        "* `duckdb`: one database with every table and column as in [tables.md](tables.md), the "
        "tables `session`, `verdict`, `finding` and `budget`, and these views:",
        "",
        "| view | a row is | reads |",
        "|---|---|---|",
    ]
    for view in VIEWS:
        reads = ", ".join(f"`{name}`" for name in view.needs or ("budget",))
        lines.append(f"| `{view.name}` | {escaped(view.row)} | {reads} |")
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "causes.md": cause_page,
    "commands.md": command_page,
    "exports.md": export_page,
    "functions.md": function_page,
    "json.md": json_page,
    "json-analyze.schema.json": lambda: schema_page(attribution_schema()),
    "json-by-mark.schema.json": lambda: schema_page(rounds_schema()),
    "json-diff.schema.json": lambda: schema_page(comparison_schema()),
    "metrics.md": metric_page,
    "python.md": python_page,
    "tables.md": table_page,
    "triggers.md": trigger_page,
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
