"""Builds and starts the producer that plays CUPTI (producer.c)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from probes.cupti.build import NATIVE


def build_producer(folder: Path) -> Path:
    """Return the compiled program."""
    program = folder / "producer"
    own = ("transport.c", "buffers.c")
    sources = [Path(__file__).with_name("producer.c"), *(NATIVE / name for name in own)]
    command = ["cc", "-std=gnu11", "-O2", "-w", f"-I{NATIVE}", *map(str, sources)]
    subprocess.run([*command, "-o", str(program), "-pthread"], check=True)
    return program


def figures(line: str) -> dict[str, float]:
    """Return what the producer printed."""
    return {key: float(value) for key, value in (pair.split("=") for pair in line.split())}
