"""A small C library with CUDA's names, programs that call it, and a recording of them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from probes.cuda.calls import CudaCalls
from probes.probe import Probe
from probes.scheduler.offcpu import OffCpu
from probes.targets import TargetTree

TYPES = r"""
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <setjmp.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
typedef struct { unsigned x, y, z; } dim3;
typedef struct { dim3 grid, block; size_t shared; void *stream; void *attrs; unsigned n; } Config;
typedef struct {
    unsigned gx, gy, gz, bx, by, bz, shared; void *stream; void *attrs; unsigned n;
} DriverConfig;
typedef struct { size_t width, height, depth; } Extent;
typedef struct { void *ptr; size_t pitch, xsize, ysize; } Pitched;
typedef struct { size_t x, y, z; } Pos;
typedef struct {
    void *srcArray; Pos srcPos; Pitched srcPtr; void *dstArray; Pos dstPos; Pitched dstPtr;
    Extent extent; int kind;
} Parms3D;
typedef struct {
    size_t srcX, srcY; int srcType; const void *srcHost; size_t srcDevice; void *srcArray;
    size_t srcPitch, dstX, dstY; int dstType; void *dstHost; size_t dstDevice; void *dstArray;
    size_t dstPitch, width, height;
} Copy2D;
typedef struct {
    size_t srcX, srcY, srcZ, srcLod; int srcType; const void *srcHost; size_t srcDevice;
    void *srcArray, *r0; size_t srcPitch, srcHeight, dstX, dstY, dstZ, dstLod; int dstType;
    void *dstHost; size_t dstDevice; void *dstArray, *r1; size_t dstPitch, dstHeight, width,
    height, depth;
} Copy3D;
typedef struct { char bytes[128]; } UniqueId;
#define A(n) ((void *)(size_t)(n))
"""

_DECLARATIONS = """
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned sh, void *s, void **p, void **e)
int cuLaunchKernelEx_ptsz(const DriverConfig *c, void *f, void **p, void **e)
int cudaLaunchKernelExC(const Config *c, const void *f, void **a)
int cudaGraphLaunch(void *graph, void *stream)
int cudaMemcpyAsync(void *d, const void *s, size_t n, int kind, void *st)
int cudaMemcpyPeerAsync(void *d, int dd, const void *s, int sd, size_t n, void *st)
int cudaMemcpy2DAsync(void *d, size_t dp, const void *s, size_t sp, size_t w, size_t h, int k,
                      void *st)
int cudaMemcpy2DArrayToArray(void *d, size_t wd, size_t hd, void *s, size_t ws, size_t hs,
                             size_t w, size_t h, int kind)
int cudaMemcpy3DAsync(const Parms3D *p, void *st)
int cudaMemcpy3D(const Parms3D *p)
int cudaMemset3DAsync(Pitched p, int v, Extent e, void *st)
int cudaMalloc3D(Pitched *p, Extent e)
int cudaMalloc(void **p, size_t n)
int cuMemcpy2DAsync_v2(const Copy2D *c, void *st)
int cuMemcpy3D_v2(const Copy3D *c)
int cuMemcpyHtoD_v2_ptds(size_t d, const void *s, size_t n)
int cuMemsetD2D32Async(size_t d, size_t pitch, unsigned v, size_t w, size_t h, void *st)
int cudaSetDevice(int device)
int cudaStreamSynchronize(void *st)
int cudaStreamBeginCapture(void *st, int mode)
int cudaStreamEndCapture(void *st, void **graph)
int ncclAllReduce(const void *s, void *r, size_t n, int type, int op, void *comm, void *st)
int ncclCommInitRank(void **comm, int n, UniqueId id, int rank)
"""


def _split(declarations: str) -> list[str]:
    lines: list[str] = []
    for line in declarations.strip().splitlines():
        if line.startswith(" "):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return lines


#: Prototypes of the library. The return value of each stub is its place in this list.
PROTOTYPES = _split(_DECLARATIONS)

_SPECIAL = r"""
int cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t sh, void *s)
{ return cuLaunchKernel((void *)f, g.x, g.y, g.z, b.x, b.y, b.z, sh, s, a, 0); }
jmp_buf escape;
int cudaDeviceSynchronize(void)
{
    const char *how = getenv("SYNC");
    if (how && !strcmp(how, "exit")) pthread_exit(0);
    if (how && !strcmp(how, "hang")) for (;;) pause();
    if (how && !strcmp(how, "jump")) longjmp(escape, 1);
    if (how) usleep(atoi(how));
    return 0;
}
"""

HEADER = "\n".join(
    (
        TYPES,
        *(f"{prototype};" for prototype in PROTOTYPES),
        "int cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t sh, void *s);",
        "int cudaDeviceSynchronize(void); extern jmp_buf escape;",
    )
)


def build_library(folder: Path, name: str = "libcudart.so.12") -> Path:
    """Compile the stubs at -O0, so that they begin with ``push %rbp`` as the real ones do."""
    bodies = [f"{text} {{ return {code}; }}" for code, text in enumerate(PROTOTYPES)]
    source = folder / "library.c"
    source.write_text("\n".join((TYPES, *bodies, _SPECIAL)))
    path = folder / name
    subprocess.run(["gcc", "-O0", "-w", "-shared", "-fPIC", "-o", path, source], check=True)
    return path


def build_program(folder: Path, library: Path, body: str, name: str = "program") -> Path:
    """Compile a program: waits for a line, runs the body, prints ``done``, waits for a line."""
    source = folder / f"{name}.c"
    before, _, main = body.rpartition("MAIN")
    source.write_text(
        f"{HEADER}\n{before}\nint main(void) {{ dim3 g = {{1, 2, 3}}, b = {{4, 5, 6}}; getchar();"
        f'\n{main}\nputs("done"); fflush(stdout); getchar(); return 0; }}\n'
    )
    path = folder / name
    command = ["gcc", "-O0", "-w", "-o", path, source, library, "-lpthread", "-ldl"]
    subprocess.run(command, check=True)
    return path


@dataclass
class Program:
    """A started program that waits for its first line."""

    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def go(self) -> None:
        """Let it go on, without waiting."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def run(self) -> None:
        """Let it run its body."""
        self.go()
        self.wait_done()

    def wait_done(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == "done"


@contextmanager
def started(path: Path, prefix: Sequence[str] = (), **env: str) -> Iterator[Program]:
    """Run a program; it is killed at the end."""
    process = subprocess.Popen(
        [*prefix, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", **env},
    )
    try:
        deadline = time.monotonic() + 5
        while "libcud" not in _maps(process.pid) and time.monotonic() < deadline:
            time.sleep(0.005)
        yield Program(process)
    finally:
        process.kill()
        process.communicate()


def _maps(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


@dataclass
class Recording:
    """Probes under way and the rows they have delivered."""

    calls: CudaCalls
    tree: TargetTree
    offcpu: OffCpu | None = None
    batches: list[Any] = field(default_factory=list)

    @property
    def _probes(self) -> list[Probe]:
        return [probe for probe in (self.calls, self.offcpu) if probe is not None]

    def drain(self) -> None:
        for probe in self._probes:
            self.batches.extend(probe.drain(time.monotonic_ns()))

    def stop(self) -> None:
        for probe in reversed(self._probes):
            self.batches.extend(probe.stop())
        assert self.calls.wait_detached(30)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Rows of a table so far, by its order."""
        found = [batch.rows for batch in self.batches if batch.table.name == table]
        if not found:
            return []
        order = next(b.table.order for b in self.batches if b.table.name == table)
        return pa.Table.from_batches(found).sort_by(order).to_pylist()

    def named(self, function: str) -> list[dict[str, Any]]:
        """Calls of one function."""
        return [row for row in self.rows("cuda_call") if row["function"] == function]


@contextmanager
def recording(*pids: int, with_offcpu: bool = False, **options: Any) -> Iterator[Recording]:
    """Record processes until the end of the block; rows are complete after it."""
    tree = TargetTree(pids)
    calls = CudaCalls(tree, **options)
    found = Recording(calls, tree, OffCpu(calls) if with_offcpu else None)
    calls.start()
    try:
        if found.offcpu is not None:
            found.offcpu.start()
        yield found
    finally:
        found.stop()
