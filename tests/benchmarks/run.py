"""Run every benchmark of this folder, print one line a figure, write bench.json.

A benchmark is a file ``bench_*.py`` that prints lines of five fields: name, value, unit, baseline
and ratio ("-" where there is none). Ratios are against a baseline measured in the same run.
Everything else it prints is passed on to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]


def parse_figure(line: str) -> dict[str, object] | None:
    """Return the figure of a line, or None if the line is not one."""
    fields = line.split()
    if len(fields) != 5:
        return None
    name, value, unit, baseline, ratio = fields
    try:
        numbers = [None if text == "-" else float(text) for text in (value, baseline, ratio)]
    except ValueError:
        return None
    return {
        "name": name,
        "value": numbers[0],
        "unit": unit,
        "baseline": numbers[1],
        "ratio": numbers[2],
    }


def main() -> int:
    """Run the benchmarks; return 1 if one failed or printed no figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", help="names without bench_ and .py; default all")
    parser.add_argument("-o", "--output", default="bench.json", type=Path)
    options = parser.parse_args()
    figures: list[dict[str, object]] = []
    failed: list[str] = []
    for path in sorted(FOLDER.glob("bench_*.py")):
        name = path.stem.removeprefix("bench_")
        if options.only and name not in options.only:
            continue
        process = subprocess.Popen(
            [sys.executable, "-m", f"tests.benchmarks.{path.stem}"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        count = 0
        for line in process.stdout:
            figure = parse_figure(line)
            if figure is None:
                sys.stderr.write(line)
                continue
            count += 1
            figures.append(figure)
            sys.stdout.write(line)
            sys.stdout.flush()
        if process.wait() or not count:
            failed.append(name)
    host = {"kernel": platform.release(), "cpus": os.cpu_count(), "python": sys.version.split()[0]}
    options.output.write_text(json.dumps({"host": host, "figures": figures}, indent=1) + "\n")
    for name in failed:
        print(f"benchmark {name} failed or printed no figure", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
