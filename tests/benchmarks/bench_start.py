"""From the start of ``tracer record --pid`` to the first recorded call.

The target has 100 mapped libraries besides CUDA's and 200 threads, and calls without rest. The
time is from before the command is started to the begin of the first call in the session, on one
clock. Baseline is the goal, one second. ``start_small`` is the same for a target with neither.
Those with ``_first`` are the first recording since the boot, which runs the compiler; the others
load what it left.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.compute as pc

from analysis import open_session
from probes import program_store
from tests.probes.traced import build_library, build_program, started

ROUNDS = 5
GOAL_MS = 1000.0
_BODY = r"""
#include <dlfcn.h>
void *sleeps(void *x) { for (;;) pause(); }
MAIN
char path[4096];
for (int i = 0; i < atoi(getenv("LIBRARIES")); i++) {
    snprintf(path, sizeof path, "%s/libother%d.so", getenv("FOLDER"), i);
    if (!dlopen(path, RTLD_NOW)) return 3;
}
pthread_t t;
for (int i = 0; i < atoi(getenv("THREADS")); i++) if (pthread_create(&t, 0, sleeps, 0)) return 4;
puts("done"); fflush(stdout);
for (;;) { cudaLaunchKernel(A(16), g, b, 0, 0, 0); usleep(200); }
"""


def first_call_ms(pid: int, session: Path) -> float:
    """Milliseconds from starting the command to the first call that it recorded."""
    begin_ns = time.monotonic_ns()
    command = [sys.executable, "-m", "tracer", "record", "--pid", str(pid), "--duration", "2s"]
    subprocess.run([*command, "-o", str(session)], check=True, capture_output=True)
    rows = open_session(session).table("cuda_call", columns=["start_ns"])
    first_ns = pc.min(rows["start_ns"]).as_py()
    return float(first_ns - begin_ns) / 1e6


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build_program(folder, build_library(folder), _BODY)
        (folder / "other.c").write_text("int other(int x) { return x; }")
        command = ["gcc", "-shared", "-fPIC", "-o", folder / "libother0.so", folder / "other.c"]
        subprocess.run(command, check=True)
        for index in range(1, 100):
            (folder / f"libother{index}.so").write_bytes((folder / "libother0.so").read_bytes())
        for figure, libraries, threads in (("start_small", 0, 0), ("start_large", 100, 200)):
            env = {"FOLDER": name, "LIBRARIES": str(libraries), "THREADS": str(threads)}
            with started(program, **env) as target:
                target.run()
                for name_of_case, is_first in ((figure, False), (f"{figure}_first", True)):
                    times = []
                    for index in range(ROUNDS + 1):
                        if is_first:
                            program_store.forget()
                        session = folder / f"{name_of_case}-{index}.tracer"
                        times.append(first_call_ms(target.pid, session))
                    median = statistics.median(times[1:])  # the first one filled caches
                    print(
                        f"{name_of_case} {median:.0f} ms {GOAL_MS:.0f} {median / GOAL_MS:.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
