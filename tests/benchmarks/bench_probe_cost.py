"""What one recorded call costs the caller, against empty probes and against bpftrace.

A C program calls a function of a library in a loop and reports CPU time per call. In each of the
rounds it runs bare, with an empty perf-event uprobe and uretprobe, with an empty ``uprobe_multi``
pair, recorded (arguments, stream from the stack, target filter), and with bpftrace pairing the two
into a histogram. Figures are medians over the rounds of the added time; ratios are against the
empty perf-event pair of the same run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from probes import attach, syscalls
from probes.cuda.elf import ElfFile
from probes.cuda.loading import ModuleLoading
from probes.cuda.program import ENTRY_PROGRAM, cookie_of
from probes.cuda.tracing import Tracing

ROUNDS = 7
CALLS = 60_000

_LIBRARY = r"""
#include <stddef.h>
typedef struct { unsigned x, y, z; } dim3;
int cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t m, void *s) { return 0; }
"""
_PROGRAM = r"""
#include <stddef.h>
#include <stdio.h>
#include <time.h>
typedef struct { unsigned x, y, z; } dim3;
int cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t m, void *s);
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
int main(void) {
    long n;
    dim3 one = {1, 1, 1};
    while (scanf("%ld", &n) == 1) {
        double start = now();
        for (long i = 0; i < n; i++)
            cudaLaunchKernel((void *)16, one, one, 0, 0, (void *)8);
        printf("%f\n", (now() - start) / n);
        fflush(stdout);
    }
}
"""


class Caller:
    """The calling program; :meth:`measure` gives nanoseconds of CPU time per call."""

    def __init__(self, folder: Path) -> None:
        self.library = folder / "libcudart.so.12"
        (folder / "library.c").write_text(_LIBRARY)
        (folder / "program.c").write_text(_PROGRAM)
        compile_ = ["gcc", "-O0", "-o"]
        subprocess.run(
            [*compile_, self.library, "-shared", "-fPIC", folder / "library.c"], check=True
        )
        subprocess.run(
            [*compile_, folder / "program", folder / "program.c", self.library], check=True
        )
        self._process = subprocess.Popen(
            [folder / "program"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        with ElfFile(str(self.library)) as elf:
            (symbol,) = elf.functions(frozenset(("cudaLaunchKernel",)))
            self.offset = elf.file_offset(symbol.address) or 0

    def measure(self, calls: int = CALLS) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{calls}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def empty_pair(caller: Caller, is_multi: bool) -> Iterator[None]:
    program = syscalls.load_empty_program(syscalls.ATTACH_UPROBE_MULTI if is_multi else 0)
    attacher = attach.Attacher({"entry": program, "return": program}, "return", is_multi)
    attachment = attacher.attach(str(caller.library), [attach.Place(caller.offset, 0, "entry")])
    try:
        yield
    finally:
        attachment.close()
        os.close(program)


@contextmanager
def recorded(caller: Caller, tracing: Tracing) -> Iterator[None]:
    place = attach.Place(caller.offset, cookie_of("cudaLaunchKernel"), ENTRY_PROGRAM)
    attachment = tracing.attacher.attach(str(caller.library), [place])
    try:
        yield
    finally:
        attachment.close()
        n_entries, n_returns = len(tracing.entries.drain()), len(tracing.returns.drain())
        if n_entries != CALLS or n_returns != CALLS:
            raise SystemExit(f"recorded {n_entries} entries and {n_returns} returns of {CALLS}")


@contextmanager
def bpftrace(caller: Caller) -> Iterator[None]:
    place = f"{caller.library}:cudaLaunchKernel"
    script = (
        f"uprobe:{place} {{ @s[tid] = nsecs; }} "
        f"uretprobe:{place} {{ @h = hist(nsecs - @s[tid]); delete(@s[tid]); }} "
        'BEGIN { printf("ready\\n"); }'
    )
    process = subprocess.Popen(
        ["bpftrace", "-e", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "ready" in line:
                break
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=30)
        process.kill()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        caller = Caller(Path(name))
        stranger = Caller(Path(tempfile.mkdtemp(dir=name)))
        tracing = Tracing(ModuleLoading())
        tracing.add_target(caller.pid)
        modes = {
            "empty_perf": lambda: empty_pair(caller, False),
            "empty_multi": lambda: empty_pair(caller, True),
            "recorded": lambda: recorded(caller, tracing),
        }
        if not attach.has_uprobe_multi():
            del modes["empty_multi"]
        if shutil.which("bpftrace"):
            modes["bpftrace"] = lambda: bpftrace(caller)
        added: dict[str, list[float]] = {mode: [] for mode in modes}
        strangers = []
        caller.measure()
        for _ in range(ROUNDS):
            bare = caller.measure()
            for mode, attached in modes.items():
                with attached():
                    caller.measure(1000) if mode != "recorded" else None
                    added[mode].append(caller.measure() - bare)
            tracing.remove_target(caller.pid)
            place = attach.Place(caller.offset, cookie_of("cudaLaunchKernel"), ENTRY_PROGRAM)
            bare = stranger.measure()
            attachment = tracing.attacher.attach(str(stranger.library), [place])
            strangers.append(stranger.measure() - bare)
            attachment.close()
            tracing.add_target(caller.pid)
            time.sleep(0.05)
        empty = statistics.median(added["empty_perf"])
        figures = {
            f"{mode}_pair": [
                statistics.median(
                    value / base for value, base in zip(values, added["empty_perf"], strict=True)
                ),
                statistics.median(values),
            ]
            for mode, values in added.items()
        }
        figures["recorded_stranger_pair"] = [
            statistics.median(
                value / base for value, base in zip(strangers, added["empty_perf"], strict=True)
            ),
            statistics.median(strangers),
        ]
        for figure, (ratio, value) in figures.items():
            print(f"{figure} {value:.0f} ns {empty:.0f} {ratio:.3f}", flush=True)
        tracing.close()
        caller.close()
        stranger.close()


if __name__ == "__main__":
    main()
