"""What a recording costs the simulated service at 20,000 calls per second, in its own throughput.

The service launches kernel by kernel for clients that always ask. It runs in turns without and with
``tracer record`` (once recording every call, once with ``--budget 1%``); each pair of neighbouring
turns gives one ratio of tokens per second. Printed are the mean loss and its 95 % confidence
interval (Student's t over the pairs), in percent of the throughput without a recorder.
"""

from __future__ import annotations

import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from analysis.timeline import open_session
from tracer.simulated.load import Group
from tracer.simulated.options import ServerOptions
from tracer.simulated.stage import Stage

PAIRS = int(os.environ.get("TRACER_BENCH_PAIRS", "10"))
TURN_S = float(os.environ.get("TRACER_BENCH_TURN_S", "8"))
SETTLE_S = 2.0
#: A decode step of 16 layers is about 170 calls, which take the device about 8 ms.
SERVER = ServerOptions(is_eager=True, weights_ns=7_200_000, host_work_ns=200_000)
CLIENTS = Group(n_clients=8, max_tokens=(400, 600))
#: Two-sided 95 % quantiles of Student's t by degrees of freedom.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)


def tokens(url: str) -> float:
    """Tokens that the service has generated so far."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    return sum(map(float, re.findall(r"^vllm:generation_tokens_total\S* (\S+)$", page, re.M)))


def rate(url: str) -> float:
    """Tokens per second over one turn."""
    begin, before = time.monotonic(), tokens(url)
    time.sleep(TURN_S)
    return (tokens(url) - before) / (time.monotonic() - begin)


def recorded_rate(stage: Stage, session: Path, options: tuple[str, ...]) -> tuple[float, float]:
    """Tokens and calls per second over one turn with a recorder attached."""
    url = stage.target.url
    assert url is not None
    recorder = subprocess.Popen(
        [
            *(sys.executable, "-m", "tracer", "record", "--pid", str(stage.target.pid)),
            *("-o", str(session), "--engine", f"{url}/metrics", *options),
        ],
        env={**os.environ, **stage.device.env()},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert recorder.stderr is not None
    try:
        for line in recorder.stderr:
            if line.startswith("Recording "):
                break
        time.sleep(SETTLE_S)
        found = rate(url)
    finally:
        recorder.send_signal(signal.SIGTERM)
        recorder.communicate(timeout=120)
    opened = open_session(session)
    source = opened.manifest.source("cuda")
    assert source is not None
    n_calls = opened.n_rows("cuda_call") + source.n_lost
    return found, n_calls / max(opened.duration_ns / 1e9, 1e-9)


def interval(values: list[float]) -> tuple[float, float, float]:
    """Mean and 95 % confidence interval."""
    mean = statistics.fmean(values)
    half = _T[min(len(values) - 2, len(_T) - 1)] * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def main() -> None:
    """Run the pairs and print the figures."""
    with Stage(seed=1, duration_s=3600) as stage, tempfile.TemporaryDirectory() as folder:
        stage.serve(SERVER, (CLIENTS,))
        url = stage.target.url
        assert url is not None
        time.sleep(2 * SETTLE_S)
        for name, options in (("unshed", ()), ("budget", ("--budget", "1%"))):
            losses, calls, plain = [], [], []
            for index in range(PAIRS):
                session = Path(folder) / f"{name}{index}"
                # Which comes first changes from pair to pair, so that a drift cancels out.
                if index % 2:
                    with_it, n_calls = recorded_rate(stage, session, options)
                    time.sleep(SETTLE_S)
                    without = rate(url)
                else:
                    without = rate(url)
                    with_it, n_calls = recorded_rate(stage, session, options)
                    time.sleep(SETTLE_S)
                losses.append(100 * (1 - with_it / without))
                calls.append(n_calls)
                plain.append(without)
            mean, low, high = interval(losses)
            print(f"service_loss_{name} {mean:.2f} pct - -", flush=True)
            print(f"service_loss_{name}_low {low:.2f} pct - -", flush=True)
            print(f"service_loss_{name}_high {high:.2f} pct - -", flush=True)
            n_calls = statistics.median(calls)
            print(f"service_recorded_calls_{name} {n_calls:.0f} 1/s - -", flush=True)
            print(f"service_tokens_{name} {statistics.median(plain):.0f} 1/s - -", flush=True)


if __name__ == "__main__":
    main()
