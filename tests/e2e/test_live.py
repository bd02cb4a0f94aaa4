"""While it records: a hang is told within seconds of its proof, with its evidence; marks arrive."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from analysis.timeline import open_session
from tests.e2e.test_record import TRACER
from tracer.simulated.scenarios.serving import serve_chats
from tracer.simulated.stage import Stage

#: Longest wait for a line of a recorder on a busy machine, in s.
PATIENCE_S = 90.0
#: From the first moment at which the analyzer could prove the hang to the verdict.
MOST_LATE_S = 5.0


def read_until(process: subprocess.Popen, pattern: str) -> str:
    deadline = time.monotonic() + PATIENCE_S
    lines = []
    while time.monotonic() < deadline:
        line = process.stderr.readline()
        lines.append(line)
        if re.search(pattern, line) or not line:
            break
    assert re.search(pattern, lines[-1]), lines
    return lines[-1]


@pytest.mark.root
def test_a_hang_is_told_live_with_its_evidence(tmp_path, monkeypatch):
    told = tmp_path / "told.json"
    with Stage(seed=5, duration_s=60) as stage:
        serve_chats(stage)
        environment = {**os.environ, **stage.device.env()}
        process = subprocess.Popen(
            [
                *(*TRACER, "record", "--pid", str(stage.target.pid), "-o", tmp_path / "s"),
                *("--keep", "5m", "--on-finding", f"cat > {told}", "--metrics-port", "0"),
            ],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            read_until(process, r"^Recording ")
            time.sleep(6)
            subprocess.run([*TRACER, "mark", "-o", tmp_path / "s", "before"], check=True)
            stage.order("hang")
            hung_ns = time.monotonic_ns()
            line = read_until(process, r"^hang\.kernel: ")
            late_s = (time.monotonic_ns() - hung_ns) / 1e9
            assert f"pid {stage.target.launcher_pid}" in line
            line = read_until(process, r"% sure")
            folder = Path(re.search(r"Kept in (\S+)\.$", line.strip()).group(1))
            assert stage.target.pid and process.poll() is None
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.wait()
    evidence = json.loads((folder / "evidence.json").read_text())
    [opened] = [row for row in evidence["open_calls"] if row["depth"] == 0]
    assert opened["kind"] == "sync" and opened["tid"]
    assert evidence["last_launches"][str(opened["pid"])]
    states = {t["tid"]: t for p in evidence["processes"] for t in p["threads"]}
    assert states[opened["tid"]]["state"] in ("S", "D", "R")
    finding = json.loads(told.read_text())
    assert finding["result"]["verdict"]["cause"] == "hang.kernel"
    # The proof: the call is open for three seconds, or ten times the longest usual wait.
    [proof] = [
        item["value"] / 1e9
        for item in finding["result"]["findings"][0]["evidence"]
        if item["name"] == "longest_usual_wait_times_ten"
    ]
    assert late_s < proof + MOST_LATE_S + 2.0, f"{late_s:.1f} s after the hang, proof {proof:.1f} s"
    events = [
        (row["kind"], row["name"])
        for row in open_session(tmp_path / "s").table("event").to_pylist()
    ]
    assert ("mark", "before") in events and ("trigger", "hang.kernel") in events
