"""Pids that name nothing to record are refused with what they are."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from probes.targets import TargetTree
from tracer.errors import TargetError
from tracer.recordable import check_target


def test_a_living_process_is_accepted() -> None:
    check_target(os.getppid())


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 1, 10**20])
def test_a_pid_of_nothing_is_refused(pid: int) -> None:
    with pytest.raises(TargetError, match="there is no process"):
        check_target(pid)


def test_a_thread_of_the_kernel_is_refused() -> None:
    with pytest.raises(TargetError, match="thread of the kernel"):
        check_target(2)


def test_the_recorder_itself_is_refused() -> None:
    with pytest.raises(TargetError, match="itself"):
        check_target(os.getpid())


def test_a_thread_names_its_process() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        with pytest.raises(TargetError, match=f"give --pid {os.getpid()}$"):
            check_target(thread.native_id or 0)
    finally:
        done.set()
        thread.join()


def test_a_zombie_is_refused() -> None:
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                check_target(child.pid)
            except TargetError as error:
                assert "has ended" in str(error)
                break
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        child.wait()


def test_the_recorder_is_left_out_of_the_tree_it_was_started_from() -> None:
    child = subprocess.Popen(
        ["sh", "-c", "sleep 60 & wait"], start_new_session=True, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 20
        while len(TargetTree([child.pid]).pids()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert child.pid in TargetTree([os.getpid()]).pids()
        tree = TargetTree([os.getpid()], excluded_pids=[child.pid])
        assert os.getpid() in tree.pids()
        assert child.pid not in tree.pids()
        assert tree.note_fork(os.getpid(), child.pid, time.monotonic_ns()) is None
        assert all(change.pid != child.pid for change in tree.refresh(time.monotonic_ns()))
    finally:
        os.killpg(child.pid, 9)
        child.wait()
