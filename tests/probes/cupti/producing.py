"""Builds the producer that plays CUPTI (producer.c), and a library that names ranges (ranges.c)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from probes.cupti.build import NATIVE
from tests.real_libraries import unpacked


def build_producer(folder: Path) -> Path:
    """Return the compiled program."""
    program = folder / "producer"
    own = ("transport.c", "buffers.c")
    sources = [Path(__file__).with_name("producer.c"), *(NATIVE / name for name in own)]
    command = ["cc", "-std=gnu11", "-O2", "-w", f"-I{NATIVE}", *map(str, sources)]
    subprocess.run([*command, "-o", str(program), "-pthread"], check=True)
    return program


def nvtx_headers() -> Path:
    """Folder to include NVIDIA's own header of NVTX from."""
    found = sorted(unpacked("nvidia-nvtx-cu12", (".h",)).rglob("nvToolsExt.h"))
    return found[0].parents[1]


def build_ranges(folder: Path) -> Path:
    """Return a compiled library that names ranges with NVIDIA's own header."""
    target = folder / "libranges.so"
    command = ["cc", "-std=gnu11", "-O1", "-fPIC", "-shared", f"-I{nvtx_headers()}"]
    source = Path(__file__).parent / "ranges.c"
    subprocess.run([*command, str(source), "-o", str(target), "-ldl"], check=True)
    return target


def figures(line: str) -> dict[str, float]:
    """Return what the producer printed."""
    return {key: float(value) for key, value in (pair.split("=") for pair in line.split())}
