"""NVIDIA's own libraries from their wheels, as files: symbols, attach and argument tests.

Fetched once by pip into the cache (``$TRACER_CACHE`` or ``~/.cache/tracer``), never committed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


def _cache() -> Path:
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tracer"
    return Path(os.environ.get("TRACER_CACHE", default)) / "wheels"


def unpacked(name: str, patterns: tuple[str, ...] = (".so", ".a")) -> Path:
    """Return the folder with the library files of a wheel; skip the test where pip has no way.

    Args:
        name: Distribution name, e.g. ``nvidia-cuda-runtime-cu12``.
        patterns: Parts of file names to unpack.
    """
    folder = _cache() / name
    marker = folder / ".complete"
    if marker.exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), name],
        capture_output=True,
        text=True,
        timeout=240,
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        pytest.skip(f"pip cannot fetch {name} (needs a package index): {done.stderr[-200:]}")
    with zipfile.ZipFile(wheels[-1]) as archive:
        for member in archive.namelist():
            if any(pattern in Path(member).name for pattern in patterns):
                archive.extract(member, folder)
    for wheel in wheels:
        wheel.unlink()
    marker.touch()
    return folder


def library(name: str, file_name: str) -> Path:
    """Return one file of a wheel by its file name."""
    found = sorted(unpacked(name).rglob(file_name))
    assert found, f"{name} has no {file_name}"
    return found[0]
