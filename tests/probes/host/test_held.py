"""Files kept open tell what their paths name now."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from probes.host.held import HeldFiles
from probes.host.process import ProcessProbe
from probes.host.threads import ThreadProbe


class Targets:
    def __init__(self, *pids: int) -> None:
        self._pids = set(pids)

    def pids(self) -> set[int]:
        return self._pids


def test_it_reads_what_is_new_without_opening_again():
    files = HeldFiles()
    first = files.read("/proc/self/schedstat")
    time.sleep(0.01)
    second = files.read("/proc/self/schedstat")
    assert first and second and int(second.split()[0]) > int(first.split()[0])
    assert len(files) == 1
    files.close()
    assert len(files) == 0


def test_a_file_longer_than_a_page_is_whole():
    files = HeldFiles()
    whole = files.read("/proc/self/smaps")
    assert whole is not None and len(whole) > 4096
    assert whole.rstrip().splitlines()[-1].startswith(b"VmFlags")
    files.close()


def test_a_process_that_ended_has_no_file():
    child = subprocess.Popen(["sleep", "60"])
    files = HeldFiles()
    path = f"/proc/{child.pid}/stat"
    assert files.read(path) is not None
    child.kill()
    child.wait()
    assert files.read(path) is None
    assert len(files) == 0


def test_small_files_are_read_together_whatever_became_of_one():
    child = subprocess.Popen(["sleep", "60"])
    files = HeldFiles()
    paths = [f"/proc/{pid}/schedstat" for pid in (child.pid, "self")]
    times = iter(range(100))
    group = files.group(paths)
    for first in (0, 2, 4):
        read = group.read(lambda: next(times))
        assert [time_ns for _, time_ns in read] == [first, first + 1]
        assert all(data is not None and len(data.split()) == 3 for data, _ in read)
    child.kill()
    child.wait()
    [(gone, _), (data, _)] = group.read(lambda: 0)
    assert gone is None and data is not None
    assert len(files) == 1
    files.sweep()
    files.sweep()
    assert len(files) == 0


def test_a_group_never_reads_a_file_that_took_the_number_of_a_closed_one(tmp_path: Path):
    for name in "ab":
        (tmp_path / name).write_text(name)
    files = HeldFiles()
    group = files.group([str(tmp_path / "a")])
    assert [group.read(lambda: 0) for _ in range(2)] == [[(b"a", 0)]] * 2
    files.sweep()
    files.sweep()  # it was not read in between
    assert len(files) == 0
    assert files.read(str(tmp_path / "b")) == b"b"
    assert group.read(lambda: 0) == [(b"a", 0)]
    for _ in range(3):
        files.sweep()
        assert group.read(lambda: 0) == [(b"a", 0)]
    assert len(files) == 1
    files.close()


def test_a_replaced_process_file_is_opened_anew(tmp_path: Path):
    """As when a pid is used again: the old file refuses, the path has another."""
    link = tmp_path / "stat"
    child = subprocess.Popen(["sleep", "60"])
    link.symlink_to(f"/proc/{child.pid}/stat")
    files = HeldFiles()
    assert files.read(str(link)) is not None
    child.kill()
    child.wait()
    link.unlink()
    link.symlink_to("/proc/self/stat")
    data = files.read(str(link))
    assert data is not None and int(data.split()[0]) == os.getpid()
    files.close()


def test_the_limit_and_the_sweep(tmp_path: Path):
    paths = []
    for name in "abc":
        (tmp_path / name).write_text(name)
        paths.append(str(tmp_path / name))
    files = HeldFiles(limit=2)
    assert [files.read(path) for path in paths] == [b"a", b"b", b"c"]
    assert len(files) == 2
    files.sweep()
    files.read(paths[0])
    files.sweep()
    assert len(files) == 1
    files.close()


def test_probes_close_their_files():
    before = len(list(Path("/proc/self/fd").iterdir()))
    for probe in (ProcessProbe(Targets(os.getpid())), ThreadProbe(Targets(os.getpid()))):
        probe.start()
        list(probe.drain(time.monotonic_ns()))
        list(probe.stop())
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_at_a_fast_rate_the_costly_columns_are_null_in_between():
    probe = ProcessProbe(Targets(os.getpid()), interval_ns=1_000_000, hold_ns=0)
    rows = []
    for now_ns in (10**9, 10**9 + 10**8, 10**9 + 2 * 10**8, 2 * 10**9):
        for batch in probe.drain(now_ns):
            rows.extend(batch.rows.to_pylist())
    list(probe.stop())
    assert [row["n_fds"] is not None for row in rows] == [True, False, False, True]
    assert [row["swap_bytes"] is not None for row in rows] == [True, False, False, True]
    for row in rows:
        assert row["rss_bytes"] > row["rss_anon_bytes"] > 0
        assert row["cpu_user_ns"] > 0 and row["n_threads"] >= 1


def test_threads_born_between_two_looks_are_found():
    code = (
        "import threading, time\n"
        "input()\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "print('born', flush=True)\n"
        "time.sleep(60)\n"
    )
    child = subprocess.Popen(
        ["python3", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        probe = ThreadProbe(Targets(child.pid), interval_ns=1, hold_ns=0)
        probe.start()
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "born\n"
        tids: set[int] = set()
        for _ in range(2):
            for batch in probe.drain(time.monotonic_ns()):
                tids |= set(batch.rows.column("tid").to_pylist())
        list(probe.stop())
        assert len(tids) == 2
    finally:
        child.kill()
        child.wait()
