"""Whether ``--budget 1%`` holds, at 1,000 to 500,000 calls per second.

A C program computes, and calls a function of the runtime (which calls the driver) at a rate. It
tells how much it computed per CPU time, so that what is added by probing shows as what is missing.
It runs in turns with and without a recording. Printed for each rate: the share that the recorder
counted (hits times measured cost) against the budget, the share that was really missing (medians
over the turns; good to about a percent on a shared machine), and the share of calls recorded.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from probes.cuda.calls import CudaCalls
from probes.targets import TargetTree

RATES = (1_000, 10_000, 100_000, 500_000)
SHARE = 0.01
TURNS = 3
TURN_S = 10.0

_LIBRARY = r"""
#include <stddef.h>
typedef struct { unsigned x, y, z; } dim3;
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned sh, void *s, void **p, void **e) { return 0; }
int cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t m, void *s)
{ return cuLaunchKernel((void *)f, g.x, g.y, g.z, b.x, b.y, b.z, m, s, a, 0); }
"""
_PROGRAM = r"""
#include <stddef.h>
#include <stdio.h>
#include <time.h>
typedef struct { unsigned x, y, z; } dim3;
int cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t m, void *s);
static double now(int clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
int main(void) {
    double rate, length;
    dim3 one = {1, 1, 1};
    while (scanf("%lf %lf", &rate, &length) == 2) {
        double cpu = now(CLOCK_THREAD_CPUTIME_ID), begin = now(CLOCK_MONOTONIC), next = begin;
        double time = begin;
        long units = 0, calls = 0;
        while (time < begin + length) {
            for (volatile int i = 0; i < 100; i++) ;
            units++;
            time = now(CLOCK_MONOTONIC);
            if (time < next) continue;
            cudaLaunchKernel((void *)16, one, one, 0, 0, (void *)8);
            calls++;
            next = next + 1 / rate < time - 0.01 ? time : next + 1 / rate;
        }
        cpu = now(CLOCK_THREAD_CPUTIME_ID) - cpu;
        printf("%ld %ld %f\n", units, calls, cpu);
        fflush(stdout);
    }
}
"""


class Caller:
    """The program; :meth:`turn` lets it run for some seconds."""

    def __init__(self, folder: Path) -> None:
        (folder / "library.c").write_text(_LIBRARY)
        (folder / "program.c").write_text(_PROGRAM)
        library = folder / "libcudart.so.12"
        subprocess.run(
            ["gcc", "-O0", "-o", library, "-shared", "-fPIC", folder / "library.c"], check=True
        )
        subprocess.run(
            ["gcc", "-O0", "-o", folder / "program", folder / "program.c", library], check=True
        )
        self._process = subprocess.Popen(
            [folder / "program"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    def begin(self, rate: int, length_s: float) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{rate} {length_s}\n")
        self._process.stdin.flush()

    def end(self) -> tuple[float, int, float]:
        """Units computed per CPU second, calls made, CPU seconds."""
        assert self._process.stdout is not None
        units, calls, cpu = self._process.stdout.readline().split()
        return int(units) / float(cpu), int(calls), float(cpu)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def recorded_turn(caller: Caller, rate: int) -> tuple[float, float, float]:
    """Units per CPU second, counted share of the CPU time, and share of the calls recorded."""
    calls = CudaCalls(TargetTree([caller.pid]), budget_share=SHARE)
    calls.start()
    try:
        caller.begin(rate, TURN_S)
        end = time.monotonic() + TURN_S
        n = 0
        while time.monotonic() < end:
            time.sleep(0.1)
            for batch in calls.drain(time.monotonic_ns()):
                if batch.table.name == "cuda_call":
                    n += batch.rows.num_rows
        speed, made, cpu = caller.end()
        for batch in calls.drain(time.monotonic_ns()):
            if batch.table.name == "cuda_call":
                n += batch.rows.num_rows
    finally:
        details = calls.report().details or {}
        calls.stop()
        calls.wait_detached(30)
    return speed, details["budget"]["spent_ns"] / 1e9 / cpu, n / 2 / made


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        caller = Caller(Path(name))
        try:
            for rate in RATES:
                counted, missing, kept = [], [], []
                for _ in range(TURNS):
                    caller.begin(rate, TURN_S / 4)
                    bare, _made, _cpu = caller.end()
                    speed, share, part = recorded_turn(caller, rate)
                    counted.append(share)
                    missing.append(1 - speed / bare)
                    kept.append(part)
                where = f"{rate // 1000}k"
                spent, lost = statistics.median(counted), statistics.median(missing)
                print(f"budget_{where}_counted {100 * spent:.2f} % 1 {spent / SHARE:.2f}")
                print(f"budget_{where}_missing {100 * lost:.2f} % 1 {lost / SHARE:.2f}")
                print(f"budget_{where}_kept {100 * statistics.median(kept):.1f} % - -", flush=True)
        finally:
            caller.close()


if __name__ == "__main__":
    main()
