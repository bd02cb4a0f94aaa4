"""The process tree: found by looking, and told by the kernel's events."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from analysis.manifest import Target
from probes import targets
from probes.host import proc
from probes.targets import TargetTree

#: Runs what it reads line by line and answers with one line each.
COMMANDED = """
import os, subprocess, sys, threading, time
children = {}
if len(sys.argv) > 2:
    print("again", flush=True)
for line in sys.stdin:
    word, *rest = line.split()
    if word == "fork":
        child = subprocess.Popen(["sleep", "60"])
        children[child.pid] = child
        print(child.pid, flush=True)
    elif word == "fork-in-thread":
        found = []
        thread = threading.Thread(target=lambda: found.append(subprocess.Popen(["sleep", "60"])))
        thread.start(); thread.join()
        children[found[0].pid] = found[0]
        print(found[0].pid, flush=True)
    elif word == "end":
        child = children.pop(int(rest[0])); child.kill(); child.wait(); print("ok", flush=True)
    elif word == "rename":
        open("/proc/self/comm", "w").write(rest[0]); print("ok", flush=True)
    elif word == "exec":
        os.execv(sys.executable, [sys.executable, "-c", sys.argv[1], sys.argv[1], "again"])
    elif word == "quit":
        [child.kill() for child in children.values()]
        [child.wait() for child in children.values()]
        break
"""


class Commanded:
    """A process that forks, ends children, renames itself or executes itself when told."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMANDED, COMMANDED],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def tell(self, command: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@contextmanager
def commanded() -> Iterator[Commanded]:
    process = Commanded()
    try:
        yield process
    finally:
        process.process.communicate("quit\n", timeout=20)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def kinds(changes: list[targets.TargetChange]) -> list[tuple[str, int]]:
    return sorted((change.kind, change.pid) for change in changes)


def test_existing_descendants_belong_to_the_tree() -> None:
    with commanded() as root:
        child, other = int(root.tell("fork")), int(root.tell("fork-in-thread"))
        tree = TargetTree([root.pid])
        assert tree.pids() == {root.pid, child, other}
        process = tree.get(child)
        assert process is not None and process.parent_pid == root.pid
        assert process.start_ns is not None and process.start_ns <= now_ns()
        assert tree.refresh(now_ns()) == []


def test_forks_and_exits_are_found_by_looking() -> None:
    with commanded() as root:
        tree = TargetTree([root.pid])
        before = now_ns()
        child = int(root.tell("fork"))
        (fork,) = [c for c in tree.refresh(now_ns()) if c.kind == "fork"]
        assert (fork.pid, fork.parent_pid) == (child, root.pid)
        assert before - 20_000_000 <= fork.time_ns <= now_ns()
        assert tree.is_alive(child)
        root.tell(f"end {child}")
        assert not tree.is_alive(child)
        assert kinds(tree.refresh(777)) == [("exit", child)]
        assert tree.pids() == {root.pid}
        ended = next(process for process in tree.targets() if process.pid == child)
        assert ended.end_ns == 777


def test_exec_of_the_same_program_is_seen_and_a_new_name_is_not_one() -> None:
    with commanded() as root:
        tree = TargetTree([root.pid])
        root.tell("rename VLLM::Engine")
        assert tree.refresh(now_ns()) == []
        process = tree.get(root.pid)
        assert process is not None and process.name == "VLLM::Engine"
        assert root.tell("exec") == "again"  # answered by the new program
        child = int(root.tell("fork"))
        changes = tree.refresh(now_ns())
        assert kinds(changes) == [("exec", root.pid), ("fork", child)]


def test_events_of_the_kernel_come_before_the_look() -> None:
    with commanded() as root:
        tree = TargetTree([root.pid])
        child = int(root.tell("fork"))
        at = now_ns()
        fork = tree.note_fork(root.pid, child, at)
        assert fork is not None and (fork.kind, fork.time_ns, fork.parent_pid) == (
            "fork",
            at,
            root.pid,
        )
        assert tree.note_fork(root.pid, child, at) is None
        assert child in tree.pids()
        assert all(change.kind != "fork" for change in tree.refresh(now_ns()))
        executed = tree.note_exec(child, at + 1)
        assert executed is not None and executed.name == "sleep"
        root.tell(f"end {child}")
        ended = tree.note_exit(child, at + 2)
        assert ended is not None and (ended.kind, ended.time_ns) == ("exit", at + 2)
        assert tree.note_exit(child, at + 3) is None
        assert tree.refresh(now_ns()) == []


def test_events_of_strangers_are_none() -> None:
    with commanded() as root, commanded() as stranger:
        tree = TargetTree([root.pid])
        child = int(stranger.tell("fork"))
        assert tree.note_fork(stranger.pid, child, now_ns()) is None
        assert tree.note_exec(stranger.pid, now_ns()) is None
        assert tree.note_exit(stranger.pid, now_ns()) is None
        assert tree.pids() == {root.pid}


def test_child_that_ended_before_the_event_was_read_is_kept() -> None:
    with commanded() as root:
        tree = TargetTree([root.pid])
        child = int(root.tell("fork"))
        root.tell(f"end {child}")
        at = now_ns()
        fork = tree.note_fork(root.pid, child, at)
        assert fork is not None and child not in tree.pids()
        ended = tree.note_exit(child, at + 5)
        assert ended is not None
        process = next(process for process in tree.targets() if process.pid == child)
        assert (process.parent_pid, process.start_ns, process.end_ns) == (root.pid, at, at + 5)


def test_child_of_a_parent_that_ended_meanwhile_is_taken_over() -> None:
    """The look sees the parent's end before the fork's event is read."""
    with commanded() as root:
        parent = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            tree = TargetTree([root.pid])
            forked_at = now_ns()
            tree.note_fork(root.pid, parent.pid, forked_at)
            parent.kill()
            parent.wait()
            tree.refresh(now_ns())
            assert tree.pids() == {root.pid}
            assert tree.note_fork(parent.pid, child, forked_at + 1) is not None
            assert child in tree.pids()
        finally:
            subprocess.run(["kill", "-9", str(child)], check=False)
            parent.stdout.close()


def test_exit_of_the_leading_thread_alone_is_not_the_end() -> None:
    program = (
        "import ctypes, threading, time; t = threading.Thread(target=time.sleep, args=(60,));"
        "t.start(); print('ready', flush=True); ctypes.CDLL(None).pthread_exit(None)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        tree = TargetTree([process.pid])

        def leader_ended() -> bool:
            stat = proc.read_stat(process.pid)
            return stat is not None and stat.state == "Z"

        wait_until(leader_ended)
        told_ns = now_ns()
        assert tree.note_exit(process.pid, told_ns) is None
        assert tree.is_alive(process.pid) and tree.refresh(now_ns()) == []
    finally:
        process.kill()
        process.communicate()
    (change,) = tree.refresh(now_ns())
    assert (change.kind, change.time_ns) == ("exit", told_ns)


def fake_process(root: Path, pid: int, parent: int, start_ticks: int, state: str = "S") -> None:
    folder = root / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
    fields = ["0"] * 50
    fields[0:2] = [state, str(parent)]
    fields[17], fields[19] = "1", str(start_ticks)
    (folder / "stat").write_text(f"{pid} (p{pid}) {' '.join(fields)}\n")
    (folder / "cmdline").write_bytes(b"prog\0--api-key\0hidden\0")
    (folder / "cgroup").write_text(f"0::/docker/{'ab' * 32}\n")


def test_pid_used_again_is_another_process(tmp_path: Path) -> None:
    fake_process(tmp_path, 10, 1, 100)
    fake_process(tmp_path, 11, 10, 200)
    tree = TargetTree([10], root=tmp_path, boottime_offset_ns=lambda: 0)
    assert tree.pids() == {10, 11}
    fake_process(tmp_path, 11, 1, 900)  # a stranger got the pid
    assert not tree.is_alive(11)
    assert kinds(tree.refresh(5)) == [("exit", 11)]
    assert tree.pids() == {10}
    fake_process(tmp_path, 11, 10, 950)  # now a child of ours
    assert kinds(tree.refresh(6)) == [("fork", 11)]
    assert [process.pid for process in tree.targets()] == [10, 11, 11]


def test_rows_for_the_manifest_are_redacted_and_in_monotonic_time(tmp_path: Path) -> None:
    fake_process(tmp_path, 10, 1, 100)
    tree = TargetTree([10, 99], root=tmp_path, boottime_offset_ns=lambda: 30_000_000)
    (process,) = tree.targets()
    row = Target(**asdict(process))
    tick_ns = 1_000_000_000 // proc.TICKS_PER_SECOND
    assert row.start_ns == 100 * tick_ns - 30_000_000
    assert row.command_line == "prog --api-key ***"
    assert row.container == "ab" * 32 and row.cgroup == f"/docker/{'ab' * 32}"
    assert (row.pid, row.parent_pid, row.name, row.end_ns) == (10, 1, "p10", None)


@pytest.mark.parametrize("has_children_files", [True, False])
def test_both_ways_to_find_descendants_agree(tmp_path: Path, has_children_files: bool) -> None:
    for pid, parent in ((10, 1), (11, 10), (12, 11), (13, 1), (14, 13)):
        fake_process(tmp_path, pid, parent, pid)
        if has_children_files:
            (tmp_path / str(pid) / "task" / str(pid) / "children").write_text("")
    if has_children_files:
        (tmp_path / "10" / "task" / "10" / "children").write_text("11 ")
        (tmp_path / "11" / "task" / "11" / "children").write_text("12 ")
    assert TargetTree([10], root=tmp_path).pids() == {10, 11, 12}


def test_storm_of_short_processes_keeps_a_bounded_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "MAX_ENDED", 40)
    fake_process(tmp_path, 10, 1, 100)
    tree = TargetTree([10], root=tmp_path, boottime_offset_ns=lambda: 0)
    for index in range(500):
        pid = 1000 + index % 60
        assert tree.note_fork(10, pid, 2_000_000_000 + index) is not None
        assert tree.note_exit(pid, 2_000_000_001 + index) is not None
    assert len(tree.targets()) <= 41
    assert tree.n_forgotten == 501 - len(tree.targets())
    assert tree.targets()[-1].end_ns == 2_000_000_500


def test_tree_without_processes_is_empty(tmp_path: Path) -> None:
    tree = TargetTree([1 << 29], root=tmp_path)
    assert tree.pids() == set() and tree.targets() == [] and tree.refresh(1) == []
