"""Faults of what is recorded: sources, targets, clocks, rings."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.benchmarks.bench_probe_cost import Caller
from tests.e2e.fault_cases import Outcome, Recording, Tracer, examine, kinds, n_lost
from tracer.simulated.device import SimulatedDevice

NVML_DRIVER_NOT_LOADED = 9


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


def nvml_gone(folder: Path, n_runs: int, seed: int) -> Outcome:
    """NVML answers as without a driver, or as on a lost GPU, and is back later (simulated)."""
    outcome = Outcome("NVML gone")
    for index in range(n_runs):
        with SimulatedDevice(folder / f"machine{index}") as device:
            env = device.env()
            recording = Recording(folder / f"nvml{index}", "--nvml", env=env)
            time.sleep(4)
            gone_ns = time.monotonic_ns()
            if index % 2:
                device.set("lost", 1, 0)
            else:
                device.fail_nvml(NVML_DRIVER_NOT_LOADED)
            time.sleep(4)
            back_ns = time.monotonic_ns()
            device.set("lost", 0, 0)
            device.fail_nvml(0)
            time.sleep(13)
            until_ns = recording.end(signal.SIGTERM)
        session = examine(outcome, recording.path, until_ns)
        rows = session.table("gpu_sample", columns=["time_ns", "source"]).to_pylist()
        # What the driver kept in its own buffers meanwhile comes later, and is right.
        times = [row["time_ns"] for row in rows if row["source"] == "nvml"]
        outcome.expect(min(times) < gone_ns, "nothing was sampled before")
        outcome.expect(max(times) > back_ns, "nothing was sampled after it was back")
        n_between = sum(gone_ns + 10**9 < time_ns < back_ns for time_ns in times)
        outcome.expect(n_between == 0, f"{n_between} samples of a device that was gone")
        told = {"source_lost", "source_recovered"}
        outcome.expect(told <= kinds(session), f"of it is told {sorted(told & kinds(session))}")
    return outcome


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
