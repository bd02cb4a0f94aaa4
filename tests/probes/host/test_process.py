from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa

from analysis.schema import PROCESS_SAMPLE
from probes.host.process import ProcessProbe

S = 10**9


class Targets:
    def __init__(self, *pids: int) -> None:
        self.now = set(pids)

    def pids(self) -> set[int]:
        return self.now


def rows_of(probe: ProcessProbe, now_ns: int) -> list[dict[str, object]]:
    return [row for batch in probe.drain(now_ns) for row in batch.rows.to_pylist()]


def test_this_process() -> None:
    probe = ProcessProbe(Targets(os.getpid()))
    probe.start()
    block = bytearray(50_000_000)
    sum(range(2_000_000))
    before = time.monotonic_ns()
    [batch] = probe.drain(before)
    assert isinstance(batch.rows, pa.RecordBatch)
    assert batch.rows.schema.equals(PROCESS_SAMPLE.arrow_schema())
    [row] = batch.rows.to_pylist()
    assert before <= row["time_ns"] <= time.monotonic_ns()
    assert row["pid"] == os.getpid()
    assert row["rss_bytes"] >= row["rss_anon_bytes"] > len(block)
    assert row["cpu_user_ns"] > 0
    assert row["n_fds"] >= 3
    assert row["n_cpus_allowed"] == len(os.sched_getaffinity(0))
    assert probe.report().n_rows == 1


def test_affinity_and_writes_of_a_child(tmp_path: Path) -> None:
    code = (
        "import os, sys, time\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        f"f = open({str(tmp_path / 'f')!r}, 'wb'); f.write(b'x' * 1000000); f.flush()\n"
        "os.fsync(f.fileno()); print('ready', flush=True); time.sleep(30)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        [row] = rows_of(ProcessProbe(Targets(child.pid)), 0)
        assert row["n_cpus_allowed"] == 1
        assert row["cpus_allowed"] == str(min(os.sched_getaffinity(0)))
        assert row["write_bytes"] is None or int(str(row["write_bytes"])) >= 1_000_000
    finally:
        child.kill()
        child.wait()


def test_processes_that_vanish_are_skipped() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    time.sleep(0.3)  # a zombie now
    targets = Targets(child.pid, 2**22 - 1, os.getpid())
    probe = ProcessProbe(targets, hold_ns=0, interval_ns=10)
    assert [row["pid"] for row in rows_of(probe, 100)] == [os.getpid()]
    child.wait()
    targets.now = set()
    assert rows_of(probe, 200) == []


def test_sampled_once_per_interval() -> None:
    probe = ProcessProbe(Targets(os.getpid()), hold_ns=0, interval_ns=100 * S)
    times = (1000 * S, 1050 * S, 1100 * S, 1199 * S, 1200 * S)
    assert [len(rows_of(probe, now)) for now in times] == [1, 0, 1, 0, 1]


def test_fast_samples_are_handed_over_in_bulk() -> None:
    probe = ProcessProbe(Targets(os.getpid()), interval_ns=100 * S, hold_ns=1000 * S)
    counts = [len(rows_of(probe, now)) for now in range(0, 2200 * S, 100 * S)]
    assert counts == [0] * 10 + [11] + [0] * 10 + [11]
    assert sum(batch.rows.num_rows for batch in probe.stop()) == 1
    assert probe.report().n_rows == 23


def test_missing_files_are_null(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "status").write_text("Name:\tx\nThreads:\t1\n")
    numbers = " ".join(str(n) for n in range(4, 60))
    (folder / "stat").write_text(f"7 (a (b) c) S 1 {numbers}\n")
    [row] = rows_of(ProcessProbe(Targets(7), root=tmp_path), 0)
    assert row["name"] == "a (b) c"
    for name in ("rss_bytes", "swap_bytes", "n_fds", "read_bytes", "cpus_allowed", "container"):
        assert row[name] is None, name


def test_where_it_ran_and_what_its_container_is_called(tmp_path: Path) -> None:
    container = "ab" * 32
    proc, system, node = tmp_path / "proc", tmp_path / "sys", tmp_path / "node"
    (proc / "7").mkdir(parents=True)
    stat = "7 (x) S 1 7 7 0 -1 0 " + " ".join(["0"] * 29) + " 5 0 0 0 0 0\n"
    (proc / "7/stat").write_text(stat)
    (proc / "7/status").write_text("Name:\tx\nCpus_allowed_list:\t0-7\n")
    (proc / "7/cgroup").write_text(f"0::/kubepods/pod1/{container}\n")
    for number, cpus in ((0, "0-3"), (1, "4-7")):
        folder = system / f"devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    logs = node / "var/log/containers"
    logs.mkdir(parents=True)
    (logs / f"llm-0_serving_vllm-{container}.log").write_text("")
    probe = ProcessProbe(Targets(7), root=proc, system=system, filesystem=node)
    [row] = rows_of(probe, 0)
    assert (row["numa_node"], row["n_cpus_allowed"]) == (1, 8)
    assert (row["container"], row["container_name"]) == (container, "serving/llm-0/vllm")
