"""Builds the library that the CUDA driver loads into a program, once per version of its sources."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from probes.probe import ProbeError

NATIVE = Path(__file__).parent / "native"
LIBRARY = "libtracer_cupti.so"

_FLAGS = (
    "-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-shared", "-pthread", "-w",
    "-Wl,-z,nodelete", f"-Wl,-soname,{LIBRARY}",
)  # fmt: skip


def cache_root() -> Path:
    """Folder for what is built: ``$TRACER_CACHE``, else ``tracer`` in the user's cache folder."""
    if own := os.environ.get("TRACER_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tracer"


def build_library() -> Path:
    """Return the path of the library, which is compiled first if this version never was.

    Raises:
        ProbeError: there is no compiler, it fails, or the cache folder cannot be written.
    """
    target = cache_root() / f"cupti-{_source_hash()}" / LIBRARY
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (cache_root() / "cupti.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.is_file():
                _compile(target)
    except OSError as error:
        raise ProbeError(
            f"The cache folder {cache_root()} cannot be written: {error.strerror}. "
            "Name another with the environment variable TRACER_CACHE."
        ) from error
    return target


def _source_hash() -> str:
    digest = hashlib.sha256()
    for path in [*sorted(NATIVE.glob("*.[ch]")), Path(__file__)]:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(target: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise ProbeError(
            "The library for device times is compiled at its first use and there is no C compiler "
            "here. Install one: apt-get install gcc libc6-dev."
        )
    descriptor, name = tempfile.mkstemp(dir=target.parent)
    os.close(descriptor)
    try:
        sources = [str(path) for path in sorted(NATIVE.glob("*.c"))]
        command = [compiler, *_FLAGS, *sources, "-o", name, "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.splitlines()
            first = next((line for line in lines if "error" in line), done.stderr)
            raise ProbeError(
                f"The C compiler {compiler} failed on the library for device times: "
                f"{first.strip()}. Check that it is complete: apt-get install gcc libc6-dev."
            )
        Path(name).chmod(0o755)
        Path(name).rename(target)
    finally:
        Path(name).unlink(missing_ok=True)
