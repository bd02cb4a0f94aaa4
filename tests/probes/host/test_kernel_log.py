from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.schema import EVENT, LOSS
from probes.host.kernel_log import KernelLogProbe, parse_line, was_killed_for_memory
from probes.probe import ProbeError

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "kind", "name", "pid", "words"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off "
            "the bus.",
            "xid",
            "xid 79",
            None,
            "0000:3b:00",
        ),
        (
            "NVRM: Xid (PCI:0000:01:00): 31, pid=1234, name=python, Ch 00000008, intr 10000000.",
            "xid",
            "xid 31",
            1234,
            "name=python",
        ),
        ("NVRM: Xid (PCI:0000:01:00): 13, pid='77', name=x", "xid", "xid 13", 77, "Xid 13"),
        ("NVRM: Xid (PCI:0000:01:00): 45", "xid", "xid 45", None, "no text"),
        (
            "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
            "xid",
            "fallen off the bus",
            None,
            "0000:3b:00.0",
        ),
        (
            "NVRM: GPU at PCI:0000:3b:00 has fallen off the bus",
            "xid",
            "fallen off the bus",
            None,
            "fallen off the bus",
        ),
        (
            "Out of memory: Killed process 4242 (python3) total-vm:1kB, anon-rss:1kB",
            "other",
            "oom_kill",
            4242,
            "python3",
        ),
        (
            "Memory cgroup out of memory: Killed process 4243 (vllm) total-vm:1kB",
            "other",
            "oom_kill",
            4243,
            "vllm",
        ),
        (
            "INFO: task python:991 blocked for more than 120 seconds.",
            "other",
            "hung_task",
            None,
            "120 s",
        ),
    ],
)
def test_line(text: str, kind: str, name: str, pid: int | None, words: str) -> None:
    event = parse_line(text)
    assert event is not None
    assert (event["kind"], event["name"], event["pid"]) == (kind, name, pid)
    assert words in event["detail"]


@pytest.mark.parametrize(
    "text", ["", "NVRM: loading NVIDIA UNIX x86_64 Kernel Module", "eth0: link up", "Xid 79"]
)
def test_other_lines_are_nothing(text: str) -> None:
    assert parse_line(text) is None


@pytest.fixture
def log(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A pipe that stands for the kernel's log, and where to write to it."""
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    yield path, descriptor
    os.close(descriptor)


def test_lines_become_events_with_their_time(log: tuple[Path, int]) -> None:
    path, descriptor = log
    probe = KernelLogProbe(path, clock=lambda: 100 * SECOND)
    os.write(descriptor, b"4,10,40000000,-;NVRM: Xid (PCI:0000:01:00): 31, pid=5, name=x\n")
    os.write(descriptor, b"6,11,50000000,-;usb 1-1: new device\n SUBSYSTEM=usb\n")
    probe.start()
    [batch] = probe.drain(101 * SECOND)
    assert batch.table is EVENT
    [old] = batch.rows.to_pylist()
    assert old["time_ns"] == 100 * SECOND
    assert "logged 60 s before the recording began" in old["detail"]
    os.write(descriptor, b"4,12,102500000,-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off\n")
    [batch] = probe.drain(103 * SECOND)
    [new] = batch.rows.to_pylist()
    assert (new["time_ns"], new["name"]) == (102_500_000_000, "xid 79")
    assert list(probe.drain(104 * SECOND)) == []
    assert list(probe.stop()) == []
    assert probe.report().n_rows == 2


@pytest.mark.parametrize("drift_s", [-50, 0, 50])
def test_a_line_is_put_where_it_was_read_whatever_the_kernels_clock_says(
    log: tuple[Path, int], drift_s: int
) -> None:
    """The clock of the log is not corrected: it runs away from all others by seconds a month."""
    path, descriptor = log

    def write(number: int, time_s: float) -> None:
        stamp = int((time_s + drift_s) * 1e6)
        line = f"4,{number},{stamp},-;NVRM: Xid (PCI:0000:01:00): {number}, x\n"
        os.write(descriptor, line.encode())

    probe = KernelLogProbe(path, clock=lambda: 100 * SECOND)
    write(31, 98)
    probe.start()
    write(32, 100.5)
    [batch] = probe.drain(101 * SECOND)
    write(33, 109.5)
    assert list(probe.drain(110 * SECOND))
    write(34, 110.5)
    [last] = probe.drain(111 * SECOND)
    rows = [*batch.rows.to_pylist(), *last.rows.to_pylist()]
    assert [row["name"] for row in rows] == ["xid 31", "xid 32", "xid 34"]
    assert ["before the recording began" in row["detail"] for row in rows] == [True, False, False]
    assert rows[0]["time_ns"] == 100 * SECOND
    assert 100 * SECOND <= rows[1]["time_ns"] <= 101 * SECOND
    assert 110 * SECOND <= rows[2]["time_ns"] <= 111 * SECOND
    list(probe.stop())


def test_overwritten_lines_are_a_loss(log: tuple[Path, int]) -> None:
    path, descriptor = log
    probe = KernelLogProbe(path, clock=lambda: 100 * SECOND)
    probe.start()
    os.write(descriptor, b"6,10,1,-;a\n")
    os.write(descriptor, b"6,15,2,-;b\nnonsense\n6,x,3,-;c\n")
    [batch] = probe.drain(101 * SECOND)
    assert batch.table is LOSS
    [row] = batch.rows.to_pylist()
    assert (row["n_lost"], row["reason"], row["source"]) == (4, "ring_full", "kernel_log")
    assert probe.report().n_lost == 4
    list(probe.stop())


@pytest.mark.parametrize(
    ("pid", "since_s", "is_told"), [(4242, 40, True), (4242, 41, False), (424, 40, False)]
)
def test_whether_a_process_was_killed_for_memory(
    log: tuple[Path, int], pid: int, since_s: int, is_told: bool
) -> None:
    path, descriptor = log
    os.write(descriptor, b"nonsense\n6,x,40500000,-;Out of memory: Killed process 4242 (a)\n")
    os.write(descriptor, b"3,7,40500000,-;Memory cgroup out of memory: Killed process 4242 (a) x\n")
    assert was_killed_for_memory(pid, since_s * SECOND, path) is is_told
    assert not was_killed_for_memory(pid, since_s * SECOND, path.with_name("none"))


def test_a_log_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="run as root on the host"):
        KernelLogProbe(tmp_path / "none").start()


@pytest.mark.root
def test_the_real_log_is_read_without_waiting() -> None:
    probe = KernelLogProbe()
    probe.start()
    for batch in probe.drain(2**62):
        assert batch.table in (EVENT, LOSS)
    assert list(probe.drain(2**62)) == [] or probe.report().n_lost == 0
    list(probe.stop())
