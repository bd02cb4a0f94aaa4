"""Builds the simulated CUDA libraries from their C sources, once per version of the sources."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NATIVE = Path(__file__).parent / "native"

# The entry points look like the real ones to a probe: they begin with `push %rbp`, which a uprobe
# emulates instead of single-stepping, and none is inlined into another.
_ENTRY_FLAGS = ("-O0", "-fno-omit-frame-pointer", "-fcf-protection=none")
_COMMON_FLAGS = ("-std=gnu11", "-fPIC", "-fvisibility=hidden", "-g0", "-w", "-U_FORTIFY_SOURCE")


_BUILT = re.compile(r"/simulated-[0-9a-f]{16}/(driver|cuda1\d)/lib[^/]+$")


class BuildError(Exception):
    """The libraries could not be built; the message says why and what mends it."""


@dataclass(frozen=True)
class Libraries:
    """Where the built libraries lie.

    Attributes:
        root: Folder of this build.
        cudart12: Folder with `libcudart.so.12` and `libcupti.so.12`.
        cudart13: Folder with `libcudart.so.13` and `libcupti.so.13`.
        driver: Folder with `libcuda.so.1`, `libnvidia-ml.so.1` and `libtracersim.so`.
        launcher: Program that launches kernels at a rate; `launcher --help` says how.
    """

    root: Path
    cudart12: Path
    cudart13: Path
    driver: Path
    launcher: Path

    @property
    def libcudart12(self) -> Path:
        """Path of the simulated `libcudart.so.12`."""
        return self.cudart12 / "libcudart.so.12"

    @property
    def libcudart13(self) -> Path:
        """Path of the simulated `libcudart.so.13`."""
        return self.cudart13 / "libcudart.so.13"

    @property
    def libcuda(self) -> Path:
        """Path of the simulated `libcuda.so.1`."""
        return self.driver / "libcuda.so.1"

    @property
    def libnvml(self) -> Path:
        """Path of the simulated `libnvidia-ml.so.1`."""
        return self.driver / "libnvidia-ml.so.1"

    @property
    def libcupti12(self) -> Path:
        """Path of the simulated `libcupti.so.12`."""
        return self.cudart12 / "libcupti.so.12"

    @property
    def libcupti13(self) -> Path:
        """Path of the simulated `libcupti.so.13`."""
        return self.cudart13 / "libcupti.so.13"

    @property
    def libtracersim(self) -> Path:
        """Path of the device core, with the interface for workloads and controllers."""
        return self.driver / "libtracersim.so"

    def library_path(self) -> str:
        """Value of `LD_LIBRARY_PATH` that finds all of them."""
        return ":".join(str(p) for p in (self.driver, self.cudart12, self.cudart13))


def cache_root() -> Path:
    """Folder for what is built: `$TRACER_CACHE`, else `tracer` in the user's cache folder."""
    if own := os.environ.get("TRACER_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tracer"


def is_simulated_library(path: str) -> bool:
    """Whether a library file, as a process maps it, is one that `build` made."""
    return _BUILT.search(path) is not None


def exported_names(library: str) -> tuple[str, ...]:
    """Names of the functions that a library exports, from its committed list.

    Args:
        library: `libcudart.so.12`, `libcudart.so.13`, `libcupti.so.12`, `libcupti.so.13`,
            `libcuda.so.1` or `libnvidia-ml.so.1`.
    """
    text = (NATIVE / "names" / f"{library}.txt").read_text(encoding="ascii")
    return tuple(n for n in text.split("\n") if n and not n.startswith("#"))


def build() -> Libraries:
    """Paths of the built libraries, which are compiled first if this version never was.

    Safe when several processes call it at once: one builds, the others wait for it.

    Raises:
        BuildError: There is no compiler, it fails, or this is not an x86-64 machine.
    """
    if platform.machine() != "x86_64":
        raise BuildError(
            f"The simulated device is written for x86-64 and this machine is {platform.machine()}. "
            "Record a real GPU process here, or run the demo on an x86-64 machine."
        )
    cache = cache_root()
    target = cache / f"simulated-{_source_hash()}"
    if not target.is_dir():
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BuildError(
                f"The cache folder {cache} cannot be made: {error.strerror}. "
                "Name another with the environment variable TRACER_CACHE."
            ) from error
        with _locked(cache / "simulated.lock"):
            if not target.is_dir():
                _build_into(cache, target)
    return Libraries(
        target, target / "cuda12", target / "cuda13", target / "driver", target / "launcher"
    )


def _source_hash() -> str:
    digest = hashlib.sha256()
    for path in [*sorted(p for p in NATIVE.rglob("*") if p.is_file()), Path(__file__)]:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_into(cache: Path, target: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise BuildError(
            "The simulated device is compiled at its first use and there is no C compiler here. "
            "Install one: apt-get install gcc libc6-dev."
        )
    work = Path(tempfile.mkdtemp(prefix="simulated.", dir=cache))
    try:
        for name in ("cuda12", "cuda13", "driver"):
            (work / name).mkdir()
        _build_core(compiler, work)
        _build_entries(compiler, work, "driver", "libcuda.so.1", "libcuda.so", ())
        _build_entries(compiler, work, "nvml", "libnvidia-ml.so.1", "libnvidia-ml.so", ())
        for version in (12, 13):
            soname = f"libcudart.so.{version}"
            flags = (f"-DRUNTIME={version}",)
            _build_entries(compiler, work, "runtime", soname, "libcudart.so", flags)
            soname = f"libcupti.so.{version}"
            _build_entries(
                compiler, work, "cupti", soname, "libcupti.so", (f"-DCUPTI={version}", "-O2")
            )
        launcher = [str(NATIVE / "launcher.c"), "-o", str(work / "launcher"), "-ldl"]
        _compile(compiler, ["-O1", "-std=gnu11", "-w", *launcher])
        work.chmod(0o755)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _sources(folder: str) -> list[str]:
    return [str(p) for p in sorted((NATIVE / folder).glob("*.c"))]


def _build_core(compiler: str, work: Path) -> None:
    out = work / "driver" / "libtracersim.so"
    flags = [*_COMMON_FLAGS, "-O2", "-fno-omit-frame-pointer", "-shared", "-pthread"]
    link = ["-Wl,-soname,libtracersim.so", "-o", str(out), "-lm"]
    _compile(compiler, [*flags, *_sources("core"), *link])


def _build_entries(
    compiler: str, work: Path, folder: str, soname: str, plain: str, flags: tuple[str, ...]
) -> None:
    """Compiles one library that exports exactly the names of its list."""
    runtime = folder == "runtime"
    place = work / (f"cuda{soname[-2:]}" if soname[-2:] in ("12", "13") else "driver")
    names = exported_names(soname)
    stubs, version_map = work / f"{soname}.c", work / f"{soname}.map"
    stubs.write_text(_stub_source(names), encoding="ascii")
    exported = "".join(f"  {name};\n" for name in names)
    node = soname + " " if runtime else ""
    version_map.write_text(f"{node}{{ global:\n{exported} local: *; }};\n", encoding="ascii")
    link = [
        "-shared", "-pthread", "-Wl,-Bsymbolic-functions", f"-Wl,-soname,{soname}",
        f"-Wl,--version-script,{version_map}", "-o", str(place / soname), "-ldl",
    ]  # fmt: skip
    if not runtime:
        link += [f"-L{work / 'driver'}", "-ltracersim"]
        link += ["-Wl,-rpath,$ORIGIN:$ORIGIN/../driver"]
    sources = [*_sources(folder), str(stubs)]
    _compile(compiler, [*_COMMON_FLAGS, *_ENTRY_FLAGS, *flags, *sources, *link])
    (place / plain).symlink_to(soname)
    stubs.unlink()
    version_map.unlink()


def _stub_source(names: tuple[str, ...]) -> str:
    """C for a weak function of every name, which the sources' own functions replace."""
    head = (
        "int refuse(const char *, int *);\n"
        '#define STUB(N) __attribute__((weak, visibility("default"))) int N(void) '
        "{ static int said; return refuse(#N, &said); }\n"
    )
    return head + "".join(f"STUB({name})\n" for name in names)


def _compile(compiler: str, arguments: list[str]) -> None:
    done = subprocess.run([compiler, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
        raise BuildError(
            f"The C compiler {compiler} failed on the simulated device: {first.strip()}. "
            "Check that it is complete: apt-get install gcc libc6-dev."
        )
