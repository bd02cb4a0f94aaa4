"""Fault injection: ``python -m tests.e2e.faults [--short] [--fault NAME]``.

Each fault is done to a recorder that runs; what it leaves must open, miss at most the last five
seconds (of what it was still able to write), and say what is missing. Prints one line a fault:
runs, sessions that could not be read, the most seconds missing, and what else was seen. Exits with
1 when a session was unreadable, missed more, or did not say what was lost.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from analysis.attribution import attribute
from analysis.schema import TABLES
from analysis.timeline import Session, open_session
from tests.benchmarks.bench_probe_cost import Caller
from tracer.recovery import recover_crashed

#: What may be missing at the end of what a recorder wrote, in s.
MOST_MISSING_S = 5.0
ROOT = Path(__file__).resolve().parents[2]
PARALLEL = 3
PATIENCE_S = 60.0


@dataclass
class Outcome:
    """What one fault left, over its runs."""

    name: str
    n_runs: int = 0
    n_unreadable: int = 0
    missing_s: float = 0.0
    wrong: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        self.n_runs += other.n_runs
        self.n_unreadable += other.n_unreadable
        self.missing_s = max(self.missing_s, other.missing_s)
        self.wrong += other.wrong
        self.seen = sorted({*self.seen, *other.seen})

    @property
    def is_good(self) -> bool:
        return not self.n_unreadable and not self.wrong and self.missing_s <= MOST_MISSING_S

    def line(self) -> str:
        more = "; ".join([*self.wrong, *self.seen])
        mark = "ok " if self.is_good else "BAD"
        return (
            f"{mark} {self.name:<20} {self.n_runs:>4} {self.n_unreadable:>10} "
            f"{self.missing_s:>9.1f}  {more}"
        ).rstrip()

    def expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.wrong.append(otherwise)


class Recording:
    """A stand-in recorder in a process of its own."""

    def __init__(self, path: Path, *options: object) -> None:
        self.path = path
        command = [sys.executable, "-m", "tests.e2e.fault_recorder", path, *options]
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "up\n":
            raise RuntimeError(f"the recorder did not come up: {self.process.communicate()[1]}")

    def end(self, number: int) -> int:
        """Send a signal; return CLOCK_MONOTONIC in ns of that moment."""
        self.process.send_signal(number)
        now_ns = time.monotonic_ns()
        self.process.wait(PATIENCE_S)
        return now_ns


def examine(
    outcome: Outcome, path: Path, until_ns: int | None, is_attributed: bool = False
) -> Session:
    """Open a session as a person would, read all of it, and note what is wrong with it.

    Args:
        outcome: Where it is noted.
        path: The session.
        until_ns: Until when it was recorded; None where that does not matter.
        is_attributed: Whether the analyzers must answer, too.
    """
    outcome.n_runs += 1
    recover_crashed(path)
    session = open_session(path)
    try:
        for table in TABLES:
            if session.has(table.name):
                session.table(table.name)
        if is_attributed:
            attribute(session)
    except Exception as error:  # whatever it is, this session is not readable
        outcome.n_unreadable += 1
        outcome.wrong.append(f"{type(error).__name__}: {error}")
        return session
    if session.problems:
        outcome.n_unreadable += 1
        outcome.wrong.append(session.problems[0])
    if session.has("cuda_call"):
        rows = session.table("cuda_call", columns=["start_ns", "call_id"])
        ids, starts = rows["call_id"].to_pylist(), rows["start_ns"].to_pylist()
        outcome.expect(len(set(ids)) == len(ids), "a call is there twice")
        if until_ns is not None and starts:
            outcome.missing_s = max(outcome.missing_s, (until_ns - starts[-1]) / 1e9)
        if session.has("call_second") and session.manifest.end_reason == "terminated":
            n = sum(session.table("call_second")["n_calls"].to_pylist())
            outcome.expect(n == max(ids) + 1, f"{n} calls counted of {max(ids) + 1}")
    elif session.has("call_second"):  # all detail was dropped for want of room
        last = max(session.table("call_second")["start_ns"].to_pylist()) + 1_000_000_000
        if until_ns is not None:
            outcome.missing_s = max(outcome.missing_s, (until_ns - last) / 1e9)
    elif until_ns is not None:
        outcome.missing_s = max(outcome.missing_s, (until_ns - session.start_ns) / 1e9)
    return session


def kinds(session: Session) -> set[str]:
    return set(session.table("event")["kind"].to_pylist()) if session.has("event") else set()


def n_lost(session: Session) -> int:
    return sum(session.table("loss")["n_lost"].to_pylist()) if session.has("loss") else 0


def many(name: str, n_runs: int, one: Callable[[int], Outcome]) -> Outcome:
    """Run a fault many times, a few at once."""
    total = Outcome(name)
    with ThreadPoolExecutor(PARALLEL) as pool:
        for outcome in pool.map(one, range(n_runs)):
            total.add(outcome)
    return total


def kill(folder: Path, n_runs: int, seed: int) -> Outcome:
    """SIGKILL (as the out-of-memory killer does) at a random instant."""

    def one(index: int) -> Outcome:
        rng = random.Random(f"{seed}/{index}")
        outcome = Outcome("kill -9")
        recording = Recording(folder / f"kill{index}", "--keep-s", 3, "--max-bytes", 10**6)
        time.sleep(rng.uniform(0.0, 9.0))
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
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    mount = folder / f"disk{time.monotonic_ns()}"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", mount], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", "-l", mount], check=True)


def disk_full(folder: Path, n_runs: int, seed: int) -> Outcome:
    """The disk fills up, and stays full."""

    def one(index: int) -> Outcome:
        outcome = Outcome("disk full")
        with small_disk(folder, f"{300 + 40 * index}k") as disk:
            recording = Recording(disk / "s", "--calls-per-s", 20_000)
            time.sleep(5)
            filler = disk / "filler"
            with contextlib.suppress(OSError):
                filler.write_bytes(b"x" * (os.statvfs(disk).f_bavail * 4096))
            time.sleep(7)
            recording.end(signal.SIGTERM)
            session = examine(outcome, recording.path, None)
            # What was held back may have room for all that waited.
            code = 6 if n_lost(session) else 0
            outcome.expect(recording.process.returncode == code, "its exit code does not say it")
            outcome.expect(session.manifest.end_reason != "crashed", "it did not say why it ended")
            del session
            filler.unlink(missing_ok=True)
        return outcome

    return many("disk full", n_runs, one)


def min_free(folder: Path, n_runs: int, seed: int) -> Outcome:
    """The disk fills up: the recording ends before, cleanly."""
    outcome = Outcome("little disk left")
    for _ in range(n_runs):
        with small_disk(folder, "1m") as disk:
            recording = Recording(disk / "s", "--calls-per-s", 20_000, "--min-free", 600_000)
            recording.process.wait(PATIENCE_S)
            until_ns = time.monotonic_ns()
            left = os.statvfs(disk).f_bavail * 4096
            session = examine(outcome, recording.path, until_ns)
            outcome.expect(session.manifest.end_reason == "disk_low", "it did not say why it ended")
            outcome.expect(n_lost(session) == 0, "rows were lost")
            outcome.expect(left > 300_000, f"only {left} bytes were left")
    return outcome


def read_only(folder: Path, n_runs: int, seed: int) -> Outcome:
    """The file system becomes read-only for a while."""

    def one(index: int) -> Outcome:
        outcome = Outcome("read-only remount")
        with small_disk(folder, "16m") as disk:
            recording = Recording(disk / "s")
            time.sleep(4)
            subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
            time.sleep(7)
            if index % 2:
                recording.end(signal.SIGTERM)
                examine(outcome, recording.path, None)
                return outcome
            subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
            time.sleep(8)
            until_ns = recording.end(signal.SIGTERM)
            session = examine(outcome, recording.path, until_ns)
            outcome.expect(n_lost(session) > 0, "what was lost is not told")
            outcome.expect("source_recovered" in kinds(session), "its return is not told")
        return outcome

    return many("read-only remount", n_runs, one)


def clock_step(folder: Path, n_runs: int, seed: int) -> Outcome:
    """The wall clock jumps back by ten seconds."""
    outcome = Outcome("clock step")
    for index in range(n_runs):
        recording = Recording(folder / f"step{index}", "--step-clock")
        time.sleep(12)
        until_ns = recording.end(signal.SIGTERM)
        session = examine(outcome, recording.path, until_ns)
        outcome.expect("clock_step" in kinds(session), "the step is not told")
    return outcome


def source_gone(folder: Path, n_runs: int, seed: int) -> Outcome:
    """A source (NVML) fails in the middle."""
    outcome = Outcome("source gone")
    for index in range(n_runs):
        recording = Recording(folder / f"gone{index}", "--lose-source")
        time.sleep(4)
        until_ns = recording.end(signal.SIGTERM)
        session = examine(outcome, recording.path, until_ns)
        source = session.manifest.source("nvml")
        outcome.expect(source is not None and source.state == "lost", "it is not called lost")
        outcome.expect("source_lost" in kinds(session), "no event tells it")
    return outcome


class Tracer:
    """The real command, in the background."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tracer", "record", *map(str, arguments)],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line)
            if line.startswith("Recording "):
                return
        raise RuntimeError(f"tracer record did not come up: {''.join(said)}")

    def end(self) -> float:
        """Stop it; return after how many s its files were closed, as it says itself."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        words = errors.split("Files closed after ")
        return float(words[1].split()[0]) if len(words) > 1 else float("inf")


_TARGET = (
    "import os, sys, time\n"
    "time.sleep(8)\n"
    "if len(sys.argv) < 2: os.execv(sys.executable, [sys.executable, __file__, 'again'])\n"
    "time.sleep(4)\n"
)


def restarts(folder: Path, n_runs: int, seed: int) -> Outcome:
    """The target calls exec, ends and is started again, and again."""
    outcome = Outcome("target restarts")
    script = folder / f"service{seed}.py"
    script.write_text(_TARGET)

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(script)])

    for index in range(n_runs):
        target = start()
        path = folder / f"restart{index}"
        tracer = Tracer("--follow", script.name, "-o", path, "--min-free", 0)
        for _ in range(2):
            target.wait()
            time.sleep(1.5)
            target = start()
        time.sleep(3)
        tracer.end()
        target.kill()
        target.wait()
        session = examine(outcome, path, None, is_attributed=True)
        rows = session.table("event").to_pylist()
        counts = {
            kind: sum(row["kind"] == kind for row in rows) for kind in ("exec", "exit", "restart")
        }
        outcome.expect(counts["restart"] >= 2, f"{counts['restart']} of 2 restarts are told")
        outcome.expect(counts["exit"] >= 2, f"{counts['exit']} of 2 ends are told")
        outcome.expect(counts["exec"] >= 1, "no exec is told")
    return outcome


_ENDPOINT = (
    "import http.server, sys, threading, time\n"
    "class H(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        body = b'# TYPE vllm:num_requests_running gauge\\n'\n"
    "        body += b'vllm:num_requests_running 3\\n'\n"
    "        self.send_response(200); self.end_headers(); self.wfile.write(body)\n"
    "    def log_message(self, *a): pass\n"
    "s = http.server.HTTPServer(('127.0.0.1', 0), H)\n"
    "print(s.server_port, flush=True)\n"
    "threading.Thread(target=s.serve_forever, daemon=True).start()\n"
    "sys.stdin.readline()\n"
    "s.shutdown(); s.server_close()\n"
    "time.sleep(60)\n"
)


def endpoint_gone(folder: Path, n_runs: int, seed: int) -> Outcome:
    """The engine's metrics page goes away."""
    outcome = Outcome("endpoint gone")
    for index in range(n_runs):
        target = subprocess.Popen(
            [sys.executable, "-c", _ENDPOINT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert target.stdin is not None and target.stdout is not None
        url = f"http://127.0.0.1:{target.stdout.readline().strip()}/metrics"
        path = folder / f"endpoint{index}"
        try:
            tracer = Tracer("--pid", target.pid, "--engine", url, "-o", path, "--min-free", 0)
            time.sleep(4)
            target.stdin.write("\n")
            target.stdin.flush()
            time.sleep(6)
            tracer.end()
        finally:
            target.kill()
            target.wait()
        session = examine(outcome, path, None, is_attributed=True)
        source = session.manifest.source("engine")
        outcome.expect(session.has("engine_sample"), "nothing was scraped before")
        outcome.expect(
            source is not None and (bool(source.note) or source.n_lost > 0), "it is not told"
        )
    return outcome


def ring_overflow(folder: Path, n_runs: int, seed: int) -> Outcome:
    """The recorder is stopped while calls come as fast as they can: the ring overflows."""
    outcome = Outcome("ring overflow")
    for index in range(n_runs):
        work = folder / f"ring{index}"
        work.mkdir()
        caller = Caller(work)
        path = work / "s"
        try:
            tracer = Tracer("--pid", caller.pid, "-o", path, "--min-free", 0)
            caller.measure(1000)
            tracer.process.send_signal(signal.SIGSTOP)
            caller.measure(3_000_000)
            tracer.process.send_signal(signal.SIGCONT)
            time.sleep(3)
            stop_s = tracer.end()
        finally:
            caller.close()
        session = examine(outcome, path, None)
        outcome.expect(n_lost(session) > 0, "no loss is told")
        outcome.expect(stop_s < 2.0, f"it stopped in {stop_s} s")
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


#: Every fault, how often in the long form, and in the short one.
FAULTS: Sequence[tuple[Callable[[Path, int, int], Outcome], int, int]] = (
    (kill, 200, 6),
    (power_cut, 100, 8),
    (disk_full, 8, 1),
    (min_free, 3, 1),
    (read_only, 6, 2),
    (clock_step, 2, 0),
    (source_gone, 3, 0),
    (restarts, 3, 0),
    (endpoint_gone, 3, 0),
    (ring_overflow, 3, 0),
    (stop_in_time, 5, 0),
)


def run(fault: Callable[[Path, int, int], Outcome], n_runs: int, seed: int) -> Outcome:
    """Do one fault in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="tracer-faults-"))
    try:
        return fault(folder, n_runs, seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--short", action="store_true", help="the few runs that CI does")
    parser.add_argument("--fault", action="append", help="only these, by the name of the function")
    parser.add_argument("--runs", type=int, help="so many of each")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(
        f"    {'fault':<20} {'runs':>4} {'unreadable':>10} {'missing s':>9}  seed {arguments.seed}"
    )
    is_good = True
    for fault, n_long, n_short in FAULTS:
        if arguments.fault and fault.__name__ not in arguments.fault:
            continue
        n_runs = arguments.runs or (n_short if arguments.short else n_long)
        if n_runs:
            outcome = run(fault, n_runs, arguments.seed)
            print(outcome.line(), flush=True)
            is_good &= outcome.is_good
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
