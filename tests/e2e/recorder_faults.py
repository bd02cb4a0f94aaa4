"""Faults of the recorder itself: killed, cut off from power, stopped or reloaded under load."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.bench_probe_cost import Caller
from tests.e2e.fault_cases import (
    PATIENCE_S,
    Outcome,
    Recording,
    Tracer,
    examine,
    many,
    n_lost,
)


def kill(folder: Path, n_runs: int, seed: int) -> Outcome:
    """SIGKILL (as the out-of-memory killer does) at a random instant; every tenth at once."""

    def one(index: int) -> Outcome:
        rng = random.Random(f"{seed}/{index}")
        outcome = Outcome("kill -9")
        recording = Recording(folder / f"kill{index}", "--keep-s", 3, "--max-bytes", 10**6)
        time.sleep(rng.uniform(0.0, 9.0) if index % 10 else 0.0)
        until_ns = recording.end(signal.SIGKILL)
        examine(outcome, recording.path, until_ns, is_attributed=index % 10 == 0)
        shutil.rmtree(recording.path)
        return outcome

    return many("kill -9", n_runs, one)


def power_cut(folder: Path, n_runs: int, seed: int) -> Outcome:
    """The directory copied at random moments, as a disk would hold it after a power cut."""
    rng = random.Random(seed)
    outcome = Outcome("power cut (copy)")
    recording = Recording(folder / "cut", "--keep-s", 4, "--max-bytes", 4 * 10**6)
    try:
        for index in range(n_runs):
            time.sleep(rng.uniform(0.0, 1.0))
            until_ns = time.monotonic_ns()
            copy = folder / f"copy{index}"
            with contextlib.suppress(shutil.Error):  # files that were replaced meanwhile
                shutil.copytree(recording.path, copy)
            examine(outcome, copy, until_ns)
            shutil.rmtree(copy)
    finally:
        until_ns = recording.end(signal.SIGTERM)
    examine(outcome, recording.path, until_ns)
    return outcome


@contextmanager
def memory_limit(n_bytes: int) -> Iterator[Path]:
    """A memory cgroup (v1 or v2) of so many bytes.

    Raises:
        OSError: none can be made here.
    """
    is_v1 = Path("/sys/fs/cgroup/memory").is_dir()
    root = Path("/sys/fs/cgroup/memory" if is_v1 else "/sys/fs/cgroup")
    group = root / f"tracer-fault-{time.monotonic_ns()}"
    group.mkdir()
    try:
        limit = group / ("memory.limit_in_bytes" if is_v1 else "memory.max")
        limit.write_text(f"{n_bytes}")
        yield group
    finally:
        group.rmdir()


def n_memory_kills(group: Path) -> int:
    """How many processes the kernel killed there for lack of memory."""
    counts = next(
        path for name in ("memory.oom_control", "memory.events") if (path := group / name).exists()
    )
    return sum(
        int(line.split()[1]) for line in counts.read_text().splitlines() if line[:9] == "oom_kill "
    )


def out_of_memory(folder: Path, n_runs: int, seed: int) -> Outcome:
    """The recorder grows until the kernel kills it at the limit of its cgroup."""
    outcome = Outcome("out of memory")
    rng = random.Random(seed)
    for index in range(n_runs):
        try:
            with memory_limit(rng.randrange(250, 500) << 20) as group:
                join = f'echo $$ > {group / "cgroup.procs"}; exec "$@"'
                recording = Recording(
                    folder / f"memory{index}",
                    *("--grow-bytes-per-s", 60_000_000),
                    prefix=["/bin/sh", "-c", join, "sh"],
                )
                recording.process.wait(PATIENCE_S)
                until_ns = time.monotonic_ns()
                n_kills = n_memory_kills(group)
        except OSError as error:
            outcome.seen.append(f"not done: no memory cgroup can be made here ({error.strerror})")
            return outcome
        outcome.expect(recording.process.returncode == -signal.SIGKILL, "it was not killed")
        outcome.expect(n_kills == 1, f"the kernel killed {n_kills} in its cgroup")
        reason = examine(outcome, recording.path, until_ns).manifest.end_reason
        outcome.expect(reason == "out_of_memory", f"its end is called {reason}")
    return outcome


def reloads(folder: Path, n_runs: int, seed: int) -> Outcome:
    """SIGHUP with new, wrong and missing settings while calls are made: no call is lost."""
    outcome = Outcome("reload")
    n_calls = 20_000
    for index in range(n_runs):
        work = folder / f"reload{index}"
        work.mkdir()
        config = work / "tracer.conf"
        config.write_text("keep = 10m\ntrigger = xid\n")
        caller = Caller(work)
        try:
            path = work / "s"
            tracer = Tracer("--pid", caller.pid, "-o", path, "--min-free", 0, "--config", config)
            for content in ("keep = 9m\n", "trigger = any finding\n", "kep = 9m\n", None) * 2:
                if content is None:
                    config.unlink()
                else:
                    config.write_text(content)
                caller.measure(n_calls)
                tracer.process.send_signal(signal.SIGHUP)
                caller.measure(n_calls)
                time.sleep(1.2)
            stop_s = tracer.end()
        finally:
            caller.close()
        session = examine(outcome, path, None, first_id=1)
        told = [row for row in session.table("event").to_pylist() if row["name"] == "reload"]
        n_wrong = sum("goes on as before" in row["detail"] for row in told)
        outcome.expect((len(told), n_wrong) == (8, 4), f"{len(told)}, {n_wrong} wrong, are told")
        outcome.expect(session.manifest.end_reason == "terminated", "it was ended")
        outcome.expect(n_lost(session) == 0, "rows were lost")
        n_seen = session.table("cuda_call", columns=["call_id"]).num_rows
        outcome.expect(n_seen == 16 * n_calls, f"{n_seen} of {16 * n_calls} calls are there")
        outcome.expect(stop_s < 2.0, f"files were closed after {stop_s} s")
    return outcome


def stop_in_time(folder: Path, n_runs: int, seed: int) -> Outcome:
    """SIGTERM while calls come as fast as they can."""
    outcome = Outcome("stop under load")
    worst = 0.0
    for index in range(n_runs):
        work = folder / f"stop{index}"
        work.mkdir()
        caller = Caller(work)
        try:
            tracer = Tracer("--pid", caller.pid, "-o", work / "s", "--min-free", 0)
            with ThreadPoolExecutor(1) as pool:
                calling = pool.submit(caller.measure, 2_000_000)
                time.sleep(1.5)
                stop_s = tracer.end()
                calling.result()
        finally:
            caller.close()
        worst = max(worst, stop_s)
        session = examine(outcome, work / "s", None)
        outcome.expect(session.manifest.end_reason == "terminated", "it was not finished")
        outcome.expect(stop_s < 2.0, f"files were closed after {stop_s} s")
    outcome.seen.append(f"files closed within {worst:.1f} s")
    return outcome
