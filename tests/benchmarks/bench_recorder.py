"""What ``tracer record`` itself takes at 100,000 calls per second, driver calls included.

A C program launches 50,000 times a second, each launch with a driver call inside. Printed are the
recorder's CPU time as a share of one CPU and its largest memory, from the manifest, against the
goals (10 %, 200 MB), records lost, and bytes on disk per call against the goal of 8.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from analysis import open_session
from tests.benchmarks.bench_budget import Caller

LAUNCHES_PER_S = 50_000
LENGTH_S = 60


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        session_path = folder / "recorded.tracer"
        caller = Caller(folder)
        try:
            caller.begin(LAUNCHES_PER_S, LENGTH_S + 10)
            command = [sys.executable, "-m", "tracer", "record", "--pid", str(caller.pid)]
            subprocess.run(
                [*command, "--duration", f"{LENGTH_S}s", "-o", str(session_path)],
                check=True,
                capture_output=True,
            )
        finally:
            caller.close()
        session = open_session(session_path)
        manifest = session.manifest
        recorder = manifest.source("recorder")
        assert recorder is not None and recorder.cost_ns is not None
        length_s = ((manifest.end_ns or 0) - (manifest.start_ns or 0)) / 1e9
        n_calls = session.table("cuda_call", columns=["start_ns"]).num_rows
        n_lost = sum(source.n_lost for source in manifest.sources)
        for source in manifest.sources:
            if source.n_lost:
                print(f"{source.name} lost {source.n_lost}: {source.note}", file=sys.stderr)
        n_bytes = sum(path.stat().st_size for path in (session_path / "cuda_call").iterdir())
    busy = 100 * recorder.cost_ns / 1e9 / length_s
    rss_mb = recorder.details["max_rss_bytes"] / 1e6
    print(f"recorder_rate {n_calls / length_s:.0f} calls/s - -")
    print(f"recorder_cpu {busy:.1f} % 10 {busy / 10:.2f}")
    print(f"recorder_rss {rss_mb:.0f} MB 200 {rss_mb / 200:.2f}")
    print(f"recorder_lost {n_lost} records - -")
    print(f"recorder_disk {n_bytes / n_calls:.2f} bytes/call 8 {n_bytes / n_calls / 8:.2f}")


if __name__ == "__main__":
    main()
