"""Attaching, detaching and killing recorders under load: ``python -m tests.e2e.harm --rounds 100``.

The target calls the traced library from several threads without rest. It also forks children that
call and end, ends threads inside a call, opens and closes a copy of the library, and runs another
program. It checks every return value itself. Recorders are attached and end in turn: most are
stopped, some are killed at any instant, also while they attach. At the end the target must have
found nothing wrong, and have ended as it does alone.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from probes.probe import ProbeError
from tests.probes.traced import PROTOTYPES, build_library, build_program, recording, started

ROOT = Path(__file__).parents[2]
#: Return value of the stub that the target checks.
MALLOC = next(i for i, text in enumerate(PROTOTYPES) if " cudaMalloc(" in text)

TARGET = r"""
#include <dlfcn.h>
#include <stdatomic.h>
volatile int stop;
atomic_long n_calls, n_bad, n_children, n_ended, n_opened, n_programs;
void check(int good) { if (!good) n_bad++; }
void some(int n) {
    dim3 g = {1, 1, 1};
    for (int i = 0; i < n; i++) {
        check(cudaMalloc(0, i) == MALLOC);
        check(cudaLaunchKernel(A(16), g, g, 0, 0, 0) == 0);
        n_calls += 2;
    }
}
void *call(void *x) { while (!stop) some(100); return 0; }
void *ends_inside(void *x) { some(3); cudaDeviceSynchronize(); n_bad++; return 0; }
void *ends(void *x) {
    while (!stop) {
        pthread_t t;
        check(!pthread_create(&t, 0, ends_inside, 0));
        check(!pthread_join(t, 0));
        n_ended++;
        usleep(3000);
    }
    return 0;
}
void *forks(void *x) {
    while (!stop) {
        int state = -1, child = fork();
        if (!child) { n_bad = 0; some(20); _exit(n_bad ? 1 : 42); }
        check(waitpid(child, &state, 0) == child && WIFEXITED(state) && WEXITSTATUS(state) == 42);
        n_children++;
    }
    return 0;
}
void *opens(void *x) {
    while (!stop) {
        void *h = dlopen(getenv("COPY"), RTLD_NOW | RTLD_LOCAL);
        int (*f)(void **, size_t) = h ? dlsym(h, "cudaMalloc") : 0;
        check(f && f(0, 1) == MALLOC && f(0, 2) == MALLOC);
        check(!h || !dlclose(h));
        n_opened++;
        usleep(2000);
    }
    return 0;
}
void *runs(void *x) {
    while (!stop) {
        int state = -1, child = vfork();
        if (!child) { execl(getenv("OTHER"), "other", (char *)0); _exit(9); }
        check(waitpid(child, &state, 0) == child && WIFEXITED(state) && WEXITSTATUS(state) == 7);
        n_programs++;
        usleep(10000);
    }
    return 0;
}
MAIN
void *(*work[])(void *) = {call, call, ends, forks, opens, runs};
pthread_t threads[6];
for (int i = 0; i < 6; i++) check(!pthread_create(&threads[i], 0, work[i], 0));
getchar();
stop = 1;
for (int i = 0; i < 6; i++) check(!pthread_join(threads[i], 0));
FILE *told = fopen(getenv("TOLD"), "w");
fprintf(told, "%ld %ld %ld %ld %ld %ld\n", n_calls, n_children, n_ended, n_opened, n_programs,
        n_bad);
fclose(told);
if (n_bad) return 1;
"""

_RECORDER = """
import sys, time
from probes.cuda.calls import CudaCalls
from probes.targets import TargetTree
calls = CudaCalls(TargetTree([int(sys.argv[1])]), budget_share=0.01 if sys.argv[2] == '1' else None)
calls.start()
while True:
    time.sleep(0.05)
    calls.drain(time.monotonic_ns())
"""


@dataclass(frozen=True)
class Outcome:
    """What the target did meanwhile, by its own count, and how it ended."""

    n_calls: int
    n_children: int
    n_ended_inside: int
    n_opened: int
    n_programs: int
    n_bad: int
    status: int
    n_recorded: int

    @property
    def is_unharmed(self) -> bool:
        """Whether it did all of it, found nothing wrong and ended well."""
        did = (
            self.n_calls,
            self.n_children,
            self.n_ended_inside,
            self.n_opened,
            self.n_programs,
        )
        return self.n_bad == 0 and self.status == 0 and min(did) > 0


def harass(folder: Path, rounds: int, kills: int, seed: int) -> Outcome:
    """Attach to one running target so many times; ``kills`` of the recorders are killed."""
    library = build_library(folder)
    copy = folder / "libcudart-copy.so.12"
    shutil.copy(library, copy)
    other = folder / "other"
    (folder / "other.c").write_text("int main(void) { return 7; }")
    subprocess.run(["gcc", "-o", other, folder / "other.c"], check=True, timeout=60)
    program = build_program(folder, library, TARGET.replace("MALLOC", str(MALLOC)), "harassed")
    pick = random.Random(seed)
    killed = set(pick.sample(range(rounds), kills))
    n_recorded = 0
    told = folder / "told"
    env = {"COPY": str(copy), "OTHER": str(other), "TOLD": str(told), "SYNC": "exit"}
    with started(program, **env) as target:
        target.go()
        for number in range(rounds):
            if number in killed:
                _kill_one(target.pid, pick.uniform(0.2, 1.8), with_budget=pick.random() < 0.5)
            else:
                options = {"budget_share": 0.01} if pick.random() < 0.3 else {}
                try:
                    with recording(target.pid, **options) as found:
                        for _ in range(pick.randrange(1, 4)):
                            time.sleep(pick.uniform(0, 0.1))
                            found.drain()
                except ProbeError as error:
                    print(f"round {number}: not attached: {error}", file=sys.stderr)
                    continue
                n_recorded += sum(
                    one.rows.num_rows for one in found.batches if one.table.name == "cuda_call"
                )
            if target.process.poll() is not None:
                break
        if target.process.poll() is None:
            target.go()
            target.wait_done()
            target.go()
        status = target.process.wait(timeout=60)
    counts = [int(word) for word in told.read_text().split()] if told.exists() else [0] * 6
    return Outcome(*counts, status=status, n_recorded=n_recorded)


def _kill_one(pid: int, after_s: float, *, with_budget: bool) -> None:
    """Start a recorder and kill it, wherever it is then."""
    recorder = subprocess.Popen(
        [sys.executable, "-c", _RECORDER, str(pid), str(int(with_budget))],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    time.sleep(after_s)
    recorder.send_signal(signal.SIGKILL)
    recorder.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tracer-harm-") as name:
        begin = time.monotonic()
        outcome = harass(Path(name), arguments.rounds, arguments.kills, arguments.seed)
    print(
        f"{arguments.rounds} recorders, {arguments.kills} of them killed, in "
        f"{time.monotonic() - begin:.0f} s: {outcome}"
    )
    return 0 if outcome.is_unharmed else 1


if __name__ == "__main__":
    sys.exit(main())
