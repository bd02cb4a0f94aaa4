from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis.schema import HOST_SAMPLE
from probes.host.cgroup import CgroupMount, cgroups_of, find_mounts, sample_cgroups
from probes.host.host import HostProbe, read_host
from probes.host.pressure import parse_pressure, read_pressure

PRESSURE = (
    "some avg10=1.42 avg60=0.33 avg300=1.20 total=18495180\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
)


class Targets:
    def __init__(self, *pids: int) -> None:
        self.now = set(pids)

    def pids(self) -> set[int]:
        return self.now


def test_pressure_in_ns(tmp_path: Path) -> None:
    assert parse_pressure(PRESSURE) == {"some": 18_495_180_000, "full": 7_000}
    assert parse_pressure("garbage\n\nsome total=x") == {}
    for name in ("cpu", "io"):
        (tmp_path / f"{name}.pressure").write_text(PRESSURE)
    assert read_pressure(str(tmp_path), ".pressure") == {
        "cpu_some_ns": 18_495_180_000,
        "io_some_ns": 18_495_180_000,
        "io_full_ns": 7_000,
    }


def test_the_real_host() -> None:
    host = read_host()
    assert host["n_cpus"] == os.cpu_count()
    assert 0 < host["memory_available_bytes"] <= host["memory_total_bytes"]
    began = time.monotonic_ns()
    while time.monotonic_ns() < began + 200_000_000:
        pass
    later = read_host()
    assert later["cpu_busy_ns"] - host["cpu_busy_ns"] >= 100_000_000
    assert later["cpu_idle_ns"] >= host["cpu_idle_ns"]


def test_what_is_not_there_is_absent(tmp_path: Path) -> None:
    assert read_host(tmp_path) == {}
    (tmp_path / "stat").write_text("cpu  1 2\ncpu0 nonsense\n\nprocs_running 3\n")
    (tmp_path / "loadavg").write_text("\n")
    assert read_host(tmp_path) == {"n_cpus": 1, "n_runnable": 3}


MOUNTINFO_1 = """31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
"""


def _write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_version_1_with_nested_quota(tmp_path: Path) -> None:
    proc, system = tmp_path / "proc", tmp_path / "root"
    _write(proc / "self", mountinfo=MOUNTINFO_1)
    _write(proc / "7", cgroup="2:cpu,cpuacct:/kube/pod/c\n1:memory:/kube/pod/c\n0::/x\n")
    _write(proc / "8", cgroup="2:cpu,cpuacct:/\n1:memory:/\n")
    cpu = system / "sys/fs/cgroup/cpu,cpuacct/kube"
    memory = system / "sys/fs/cgroup/memory/kube"
    stat = "nr_periods 10\nnr_throttled 4\nthrottled_time 123456789\n"
    _write(cpu, cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n", cpu__stat=stat)
    _write(cpu / "pod", cpu__cfs_quota_us="50000\n", cpu__cfs_period_us="100000\n", cpu__stat=stat)
    _write(cpu / "pod/c", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n", cpu__stat=stat)
    _write(cpu / "pod/c", cpuacct__usage="777\n")
    _write(
        memory / "pod/c",
        memory__usage_in_bytes="100\n",
        memory__limit_in_bytes="9223372036854771712\n",
        memory__stat="total_swap 5\ntotal_pgmajfault 6\n",
    )
    rows = sample_cgroups(cgroups_of({7, 8}, proc), find_mounts(proc, str(system)))
    throttled = {"n_cpu_periods": 10, "n_cpu_throttled": 4, "cpu_throttled_ns": 123_456_789}
    assert rows == {
        "/kube/pod/c": {
            **throttled,
            "cpu_busy_ns": 777,
            "memory_used_bytes": 100,
            "swap_used_bytes": 5,
            "n_major_faults": 6,
        },
        "/kube/pod": {**throttled, "cpu_quota_ns": 50_000_000, "cpu_period_ns": 100_000_000},
    }


def test_version_2_with_nested_quota(tmp_path: Path) -> None:
    proc, system = tmp_path / "proc", tmp_path / "root"
    _write(
        proc / "self",
        mountinfo="31 23 0:28 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
    )
    _write(proc / "7", cgroup="0::/a.slice/b.scope\n")
    folder = system / "sys/fs/cgroup/a.slice"
    stat = "usage_usec 9\nnr_periods 10\nnr_throttled 4\nthrottled_usec 123\n"
    _write(folder, cpu__max="50000 100000\n", cpu__stat=stat)
    _write(
        folder / "b.scope",
        cpu__max="max 100000\n",
        memory__max="max\n",
        memory__current="4096\n",
        memory__swap__current="12\n",
        cpu__pressure=PRESSURE,
    )
    rows = sample_cgroups(cgroups_of({7}, proc), find_mounts(proc, str(system)))
    assert rows == {
        "/a.slice/b.scope": {
            "memory_used_bytes": 4096,
            "swap_used_bytes": 12,
            "cpu_some_ns": 18_495_180_000,
        },
        "/a.slice": {
            "cpu_quota_ns": 50_000_000,
            "cpu_period_ns": 100_000_000,
            "cpu_busy_ns": 9000,
            "n_cpu_periods": 10,
            "n_cpu_throttled": 4,
            "cpu_throttled_ns": 123_000,
        },
    }


def test_a_limit_is_in_every_row_and_taken_over_within_a_second(tmp_path: Path) -> None:
    proc, system = tmp_path / "proc", tmp_path / "root"
    _write(proc / "self", mountinfo="31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    _write(proc / "7", cgroup="0::/a\n")
    folder = system / "sys/fs/cgroup/a"
    now = 0
    probe = HostProbe(
        Targets(7),
        root=proc,
        filesystem=str(system),
        system=tmp_path,
        interval_ns=10**8,
        hold_ns=10**9,
        clock=lambda: now,
    )
    told = []
    for turn in range(11):
        now = 10**12 + turn * 10**8
        quota = 50 if turn < 5 else 70
        _write(folder, cpu__max=f"{quota}000 100000\n", cpu__stat=f"nr_throttled {turn}\n")
        for batch in probe.drain(now):
            rows = [row for row in batch.rows.to_pylist() if row["scope"] == "/a"]
            told = [(row["n_cpu_throttled"], row["cpu_quota_ns"] // 10**6) for row in rows]
    assert told == [*((turn, 50) for turn in range(9)), (9, 70), (10, 70)]


def test_a_cgroup_outside_of_what_is_mounted_is_not_guessed() -> None:
    mount = CgroupMount(frozenset(), "/docker/abc", "/sys/fs/cgroup")
    assert mount.folder("/docker/abc/x") == "/sys/fs/cgroup/x"
    assert mount.folder("/docker/abc") == "/sys/fs/cgroup"
    assert mount.folder("/docker/abcd") is None
    assert mount.folder("/../x") is None


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("is_host", [True, False])
def test_the_top_of_a_cgroup_namespace_limits_and_that_of_the_host_does_not(
    tmp_path: Path, version: int, is_host: bool
) -> None:
    proc, system = tmp_path / "proc", tmp_path / "root"
    _write(proc / "7", cgroup="2:cpu:/\n0::/\n")
    top = system / "cg"
    if version == 1:
        _write(proc / "self", mountinfo="3 2 0:9 / /cg rw - cgroup cgroup rw,cpu\n")
        _write(top, cpu__cfs_quota_us="50000\n", cpu__cfs_period_us="100000\n")
        if is_host:
            _write(top, release_agent="\n")
    else:
        _write(proc / "self", mountinfo="3 2 0:9 / /cg rw - cgroup2 cgroup2 rw\n")
        _write(top, cpu__max="50000 100000\n")
        if not is_host:
            _write(top, cgroup__events="populated 1\n")
    rows = sample_cgroups(cgroups_of({7}, proc), find_mounts(proc, str(system)))
    quota = {"cpu_quota_ns": 50_000_000, "cpu_period_ns": 100_000_000}
    assert rows == ({} if is_host else {"/": quota})
    _write(proc / "7", cgroup="2:cpu:/../other\n0::/../other\n")
    assert sample_cgroups(cgroups_of({7}, proc), find_mounts(proc, str(system))) == {}


IN_NAMESPACE = """
import json, os
from probes.host.cgroup import cgroups_of, find_mounts, sample_cgroups
print(json.dumps(sample_cgroups(cgroups_of({os.getpid()}), find_mounts())))
"""


def _in_namespace(folder: Path, kind: str, options: str) -> dict[str, dict[str, int]]:
    """What a process sees that sits in a cgroup, which is the top of its cgroup namespace."""
    script = f"""
        echo $$ > {folder}/cgroup.procs
        exec unshare --cgroup --mount --propagation private sh -c '
            mount -t {kind} {options} none /mnt && exec {sys.executable} -c "$0"' '{IN_NAMESPACE}'
    """
    done = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert isinstance(rows, dict)
    return rows


@pytest.mark.root
def test_a_real_quota_is_told_from_inside_of_its_container(
    throttled_group: tuple[str, Path],
) -> None:
    _, folder = throttled_group
    is_unified = (folder / "cpu.max").exists()
    (folder / ("cpu.max" if is_unified else "cpu.cfs_quota_us")).write_text(
        "40000 50000" if is_unified else "40000"
    )
    kind = ("cgroup2", "") if is_unified else ("cgroup", "-o cpu")
    [row] = _in_namespace(folder, *kind).values()
    assert (row["cpu_quota_ns"], row["cpu_period_ns"]) == (40_000_000, 50_000_000)
    assert row["n_cpu_periods"] >= 0


@pytest.mark.root
def test_a_real_limit_of_memory_is_told_of_the_group_that_has_it() -> None:
    mount = next((mount for mount in find_mounts() if "memory" in mount.controllers), None)
    if mount is None or mount.root != "/":
        pytest.skip("the memory controller is not on version 1 here, or this is a container")
    outer = Path(mount.point) / f"tracer-test-memory-{os.getpid()}"
    inner = outer / "inner"
    child = subprocess.Popen([sys.executable, "-c", "a = bytearray(8 << 20); input()"], stdin=-1)
    try:
        inner.mkdir(parents=True)
        (outer / "memory.limit_in_bytes").write_text(str(64 << 20))
        (inner / "cgroup.procs").write_text(str(child.pid))
        rows = sample_cgroups(cgroups_of({child.pid}), find_mounts())
    except OSError as error:
        pytest.skip(f"no cgroup with a limit of memory can be made here ({error.strerror})")
    finally:
        child.kill()
        child.communicate()
        for folder in (inner, outer):
            for _ in range(50):
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                time.sleep(0.02)
    assert rows[f"/{outer.name}"]["memory_total_bytes"] == 64 << 20
    assert "memory_total_bytes" not in rows[f"/{outer.name}/inner"]
    assert rows[f"/{outer.name}/inner"]["memory_used_bytes"] >= 0


@pytest.fixture
def unified_group(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A real cgroup of version 2, whatever controllers it has; and its path."""
    mount = next((mount for mount in find_mounts() if not mount.controllers), None)
    if mount is None or mount.root != "/":
        pytest.skip("cgroup version 2 is not mounted here: mount -t cgroup2 none FOLDER")
    name = f"tracer-test-v2-{os.getpid()}"
    folder = Path(mount.point) / name
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("no cgroup of version 2 can be made here; run as root, outside of a container")
    yield f"/{name}", folder
    for _ in range(50):
        with contextlib.suppress(OSError):
            folder.rmdir()
            break
        time.sleep(0.05)


@pytest.mark.root
def test_a_real_cgroup_of_version_2_tells_use_and_pressure(
    unified_group: tuple[str, Path],
) -> None:
    path, folder = unified_group
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        (folder / "cgroup.procs").write_text(str(child.pid))
        wanted = cgroups_of({child.pid})
        assert ("", path) in wanted
        before = sample_cgroups(wanted, find_mounts())[path]
        time.sleep(0.3)
        after = sample_cgroups(wanted, find_mounts())[path]
    finally:
        child.kill()
        child.wait()
    assert 50_000_000 < after["cpu_busy_ns"] - before["cpu_busy_ns"] < 10**9
    if (folder / "cpu.pressure").exists():
        assert after["cpu_some_ns"] >= before["cpu_some_ns"] >= 0
        assert {"memory_some_ns", "memory_full_ns", "io_some_ns", "io_full_ns"} <= set(after)
    rows = _in_namespace(folder, "cgroup2", "")
    assert rows["/"]["cpu_busy_ns"] >= after["cpu_busy_ns"]


@pytest.fixture
def throttled_group() -> Iterator[tuple[str, Path]]:
    """A real cgroup with a quota of a fifth of a CPU, inside another one without; and its path."""
    name = f"tracer-test-{os.getpid()}"
    for mount in find_mounts():
        outer = Path(mount.point) / name
        if mount.controllers and "cpu" not in mount.controllers:
            continue
        try:
            outer.mkdir()
        except OSError:
            continue
        inner = outer / "inner"
        try:
            if mount.controllers:
                inner.mkdir()
                (inner / "cpu.cfs_period_us").write_text("50000")
                (inner / "cpu.cfs_quota_us").write_text("1000")
            else:
                (outer / "cgroup.subtree_control").write_text("+cpu")
                inner.mkdir()
                (inner / "cpu.max").write_text("1000 50000")
        except OSError:
            if inner.exists():
                inner.rmdir()
            outer.rmdir()
            continue
        yield f"/{name}/inner", inner
        for _ in range(50):
            try:
                inner.rmdir()
                outer.rmdir()
                break
            except OSError:
                time.sleep(0.05)
        return
    pytest.skip("no cgroup with a CPU quota can be made here")


@pytest.mark.root
def test_a_real_quota_throttles_and_is_told(throttled_group: tuple[str, Path]) -> None:
    path, folder = throttled_group
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        (folder / "cgroup.procs").write_text(str(child.pid))
        probe = HostProbe(Targets(child.pid), hold_ns=0, interval_ns=10**6)
        probe.start()
        samples = []
        for _ in range(2):
            [batch] = probe.drain(time.monotonic_ns())
            assert batch.rows.schema.equals(HOST_SAMPLE.arrow_schema())
            samples.append({row["scope"]: row for row in batch.rows.to_pylist()})
            time.sleep(0.6)
    finally:
        child.kill()
        child.wait()
    first, last = samples[0][path], samples[1][path]
    assert last["cpu_quota_ns"] == 1_000_000
    assert last["cpu_period_ns"] == 50_000_000
    assert last["n_cpu_throttled"] - first["n_cpu_throttled"] >= 3
    throttled_ns = last["cpu_throttled_ns"] - first["cpu_throttled_ns"]
    assert throttled_ns > 0.3 * (last["time_ns"] - first["time_ns"])
    assert samples[1]["host"]["cpu_busy_ns"] >= samples[0]["host"]["cpu_busy_ns"]
    assert probe.report().n_rows == sum(len(sample) for sample in samples)
