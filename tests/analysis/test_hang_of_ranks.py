"""Ranks that stand still together, and a rank that hangs alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis import attribute
from analysis.attribution import Attribution
from analysis.finding import Status
from analysis.manifest import Gpu, Target
from tests.analysis.builder import MS, S, SessionBuilder
from tests.analysis.scrapes import finding

START = 1_000 * S
ALL_REDUCE, KERNEL = 0x77, 0x11
NAMES = {ALL_REDUCE: "ncclDevKernel_AllReduce_Sum_bf16", KERNEL: "gemm_kernel"}
END = START + 20 * S


def call(pid: int, time: int, length: int, function: str, kind: str, **more: Any) -> dict[str, Any]:
    return {
        "start_ns": time,
        "duration_ns": length,
        "pid": pid,
        "tid": pid,
        "function": function,
        "layer": "runtime",
        "kind": kind,
        "call_id": pid * 100_000 + time // 1_000 % 100_000_000,
        "depth": 0,
        "device": pid % 10,
        "stream": 7,
        **more,
    }


def job(
    path: Path,
    last: dict[int, int | None],
    *,
    is_named: bool = True,
    goes_on: bool = False,
    util: float = 100.0,
) -> Attribution:
    """Ranks that step together for 8 s; then each launches its last kernel (or none) and waits in
    a sync, unless it launched none.
    """
    calls, opened, samples, kernels = [], [], [], []
    for rank, kernel in last.items():
        pid = 4_000 + rank
        time = START + rank * 20_000
        until = END if goes_on and kernel is None else START + 8 * S
        while time < until:
            for handle in (KERNEL, KERNEL, ALL_REDUCE):
                calls.append(call(pid, time, 8_000, "cudaLaunchKernel", "launch", kernel=handle))
                time += 30_000
            calls.append(call(pid, time, 40 * MS, "cudaStreamSynchronize", "sync"))
            time += 40 * MS + 1 * MS
        if kernel is not None:
            calls.append(call(pid, time, 8_000, "cudaLaunchKernel", "launch", kernel=kernel))
            row = call(pid, time + 20_000, 0, "cudaStreamSynchronize", "sync")
            del row["duration_ns"], row["device"]
            opened.append(
                {**row, "time_ns": END - S // 2, "is_doubtful": False, "thread_state": "S"}
            )
        kernels += [
            {
                "time_ns": START,
                "pid": pid,
                "kernel": handle,
                "name": name if is_named else f"k{handle}",
                "source": "registration",
            }
            for handle, name in NAMES.items()
        ]
        samples += [
            {
                "time_ns": START + index * S,
                "device": rank,
                "source": "nvml",
                "sample_ns": START + index * S,
                "period_ns": S,
                "util_pct": util if kernel is not None else 0.0,
            }
            for index in range(1, 21)
        ]
    ranks = sorted(last)
    builder = SessionBuilder(
        path / "session",
        start_ns=START,
        end_ns=END,
        gpus=[Gpu(rank, "GPU") for rank in ranks],
        targets=[Target(4_000 + rank, name="rank") for rank in ranks],
    )
    builder.add("cuda_call", calls).add("open_call", opened).add("gpu_sample", samples)
    return attribute(builder.add("kernel_function", kernels).write())


@pytest.mark.parametrize("is_named", [True, False], ids=["named", "unnamed"])
def test_one_rank_leaves_a_collective_out(tmp_path: Path, is_named: bool) -> None:
    last = {0: ALL_REDUCE, 1: None, 2: ALL_REDUCE, 3: ALL_REDUCE}
    attribution = job(tmp_path, last, is_named=is_named)
    assert attribution.verdict.cause == "hang.collective"
    assert finding(attribution, "hang.collective").where.pid == 4_001


def test_all_ranks_wait_in_a_collective(tmp_path: Path) -> None:
    attribution = job(tmp_path, dict.fromkeys(range(4), ALL_REDUCE))
    assert attribution.verdict.cause == "hang.collective"


def test_unnamed_kernels_on_all_ranks_prove_no_collective(tmp_path: Path) -> None:
    attribution = job(tmp_path, dict.fromkeys(range(4), ALL_REDUCE), is_named=False)
    assert finding(attribution, "hang.collective").status is Status.UNDECIDED


def test_one_rank_hangs_alone_and_the_others_wait_for_it(tmp_path: Path) -> None:
    attribution = job(tmp_path, {0: ALL_REDUCE, 1: ALL_REDUCE, 2: KERNEL, 3: ALL_REDUCE})
    assert attribution.verdict.cause == "hang.kernel"
    assert finding(attribution, "hang.kernel").where.pid == 4_002


def test_ranks_that_go_on_do_not_hang(tmp_path: Path) -> None:
    last = {0: ALL_REDUCE, 1: None, 2: None, 3: None}
    attribution = job(tmp_path, last, goes_on=True)
    assert finding(attribution, "hang.collective").status is Status.NOT_FOUND


def test_ranks_in_different_collectives_took_different_paths(tmp_path: Path) -> None:
    calls, opened = [], []
    for rank, name in enumerate(("ncclAllReduce", "ncclAllGather", "ncclAllReduce")):
        pid = 4_000 + rank
        calls.append(call(pid, START, 8_000, "cudaLaunchKernel", "launch", kernel=KERNEL))
        calls.append(call(pid, START + MS, 9_000, name, "collective", layer="nccl"))
        row = call(pid, START + 2 * MS, 0, "cudaStreamSynchronize", "sync")
        del row["duration_ns"], row["device"]
        opened.append({**row, "time_ns": END - S // 2, "is_doubtful": False, "thread_state": "S"})
    limits = {"start_ns": START, "end_ns": END, "gpus": [Gpu(rank, "GPU") for rank in range(3)]}
    builder = SessionBuilder(tmp_path / "session", **limits)
    attribution = attribute(builder.add("cuda_call", calls).add("open_call", opened).write())
    assert attribution.verdict.cause == "hang.collective"
    assert "different" in attribution.verdict.text


def stepping(path: Path, late: int | None, by: int = 30 * MS) -> Attribution:
    """Three ranks that all-reduce after 20 ms of work and sync; one of them comes late."""
    calls = []
    time = START
    ranks = range(3)
    for step in range(200):
        slow = step % 3 if late == -1 else late
        entries = [time + 20 * MS + (by if rank == slow else rank * 10_000) for rank in ranks]
        done = max(entries) + 2 * MS
        for rank, entry in zip(ranks, entries, strict=True):
            pid = 4_000 + rank
            # The recording of one rank begins a step later.
            if rank == 1 and step == 0:
                continue
            launch = {"kernel": KERNEL, "device": rank}
            calls.append(call(pid, time, 8_000, "cudaLaunchKernel", "launch", **launch))
            calls.append(
                call(pid, entry, 9_000, "ncclAllReduce", "collective", layer="nccl", device=rank)
            )
            sync = {"device": rank}
            calls.append(
                call(pid, entry + 20_000, done - entry, "cudaStreamSynchronize", "sync", **sync)
            )
        time = done + MS
    limits = {"start_ns": START, "end_ns": time, "gpus": [Gpu(rank, "GPU") for rank in ranks]}
    return attribute(SessionBuilder(path / "session", **limits).add("cuda_call", calls).write())


def test_the_rank_that_launches_late_is_the_straggler(tmp_path: Path) -> None:
    straggler = finding(stepping(tmp_path, 1), "collective.straggler")
    assert straggler.status is Status.FOUND
    assert straggler.where.pid == 4_001
    assert straggler.lost_share == pytest.approx(30 / 53, abs=0.05)


@pytest.mark.parametrize("late", [None, -1], ids=["nobody", "another each time"])
def test_ranks_that_take_turns_are_no_stragglers(tmp_path: Path, late: int | None) -> None:
    answer = finding(stepping(tmp_path, late), "collective.straggler")
    assert answer.status is not Status.FOUND
