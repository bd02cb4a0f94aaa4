"""What /proc, cgroups and the scheduler's accounts show of a case."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis import schema
from tests.analysis.builder import S
from tests.scenarios.play import Actor
from tests.scenarios.scene import Row, Scene

#: A host and a process on which nothing is wrong; what accumulates is per second, times in s/s.
HOST_LEVEL: dict[str, Any] = {
    "n_cpus": 32,
    "cpu_busy_ns": 4.0,
    "cpu_idle_ns": 28.0,
    "cpu_iowait_ns": 0.01,
    "cpu_steal_ns": 0.0,
    "load1": 4.0,
    "n_runnable": 4,
    "cpu_some_ns": 0.004,
    "memory_some_ns": 0.0,
    "memory_full_ns": 0.0,
    "io_some_ns": 0.002,
    "io_full_ns": 0.0,
    "memory_available_bytes": 180e9,
    "memory_total_bytes": 256e9,
    "swap_used_bytes": 0,
    "n_swap_in_pages": 0,
    "n_swap_out_pages": 0,
    "n_major_faults": 0,
}
CGROUP_LEVEL: dict[str, Any] = {"memory_used_bytes": 30e9, "cpu_busy_ns": 2.0, "n_major_faults": 0}
PROCESS_LEVEL: dict[str, Any] = {
    "rss_bytes": 6e9,
    "rss_anon_bytes": 4e9,
    "rss_file_bytes": 2e9,
    "rss_shmem_bytes": 0,
    "swap_bytes": 0,
    "cpu_user_ns": 0.3,
    "cpu_system_ns": 0.05,
    "n_threads": 60,
    "n_minor_faults": 20,
    "n_major_faults": 0,
    "n_fds": 200,
    "read_bytes": 0,
    "write_bytes": 4096,
    "n_cpus_allowed": 32,
    "cpus_allowed": "0-31",
}
#: Columns that are as they are, without noise.
_EXACT = ("n_cpus", "n_cpus_allowed", "cpu_quota_ns", "cpu_period_ns")
_CUMULATIVE = (
    *(name for name in HOST_LEVEL if name.endswith("_ns")),
    *("n_swap_in_pages", "n_swap_out_pages", "n_major_faults", "n_minor_faults"),
    *("cpu_user_ns", "cpu_system_ns", "read_bytes", "write_bytes"),
    *("n_cpu_periods", "n_cpu_throttled", "cpu_throttled_ns", "energy_mj"),
)


def _series(
    scene: Scene, source: str, table: schema.Table, level: Mapping[str, Any], parts: list[Any]
) -> list[Row]:
    """Rows of one host, cgroup or process; columns that accumulate are summed up."""
    types = {column.name: column.type for column in table}
    described = {key for part in parts for key in part}
    unknown = (set(level) | described) - set(types)
    assert not unknown, f"{table.name} has no column {unknown}"
    totals = {name: scene.rng.uniform(1e3, 1e4) for name in types if name in _CUMULATIVE}
    rows = []
    for (time, share, _phase), part in zip(scene.times(), parts, strict=True):
        row: Row = {"time_ns": time}
        for name, spec in {**level, **part}.items():
            value = scene.value(spec, share, name in _EXACT)
            if name in _CUMULATIVE:
                totals[name] += value * scene.period_ns / S
                value = totals[name] * (S if name.endswith("_ns") else 1)
            if scene.has(source, name):
                row[name] = int(value) if types[name] in ("i32", "i64") else value
        rows.append(row)
    return rows


def host_samples(scene: Scene) -> list[Row]:
    """The host, and the service's cgroup where a case describes it."""
    rows: list[Row] = []
    for source, scope, level in (
        ("host", "host", HOST_LEVEL),
        ("cgroup", cgroup_path(scene.service), CGROUP_LEVEL),
    ):
        parts = [phase.get(source, {}) for _time, _share, phase in scene.times()]
        if scene.has(source):
            made = _series(scene, source, schema.HOST_SAMPLE, level, parts)
            rows.extend({**row, "scope": scope} for row in made)
    return rows


def cgroup_path(service: Mapping[str, Any]) -> str:
    """Path of the service's cgroup."""
    return str(service.get("cgroup", "/kubepods/burstable/pod7/server"))


def process_samples(scene: Scene, pids: Mapping[str, Sequence[int]]) -> list[Row]:
    """Processes of the service, by role."""
    rows: list[Row] = []
    for role, members in pids.items():
        for pid in members:
            parts = [
                phase.get("process", {}).get(role, {}) for _time, _share, phase in scene.times()
            ]
            made = _series(scene, "process", schema.PROCESS_SAMPLE, PROCESS_LEVEL, parts)
            rows.extend({**row, "pid": pid, "name": role} for row in made)
    return rows


def thread_seconds(
    scene: Scene, actors: Sequence[Actor], pids: Mapping[str, Sequence[int]]
) -> list[Row]:
    """Seconds of the launching threads, from what they did, and of threads a case describes."""
    rows: list[Row] = []
    if not any("thread" in phase for _start, _end, phase in scene.phases) and not any(
        actor.rows for actor in actors
    ):
        return rows
    for actor in actors:
        if actor.rows:
            rows.extend(_launcher_seconds(scene, actor))
    for time, share, phase in scene.times(S):
        for index, (name, spec) in enumerate(phase.get("thread", {}).items()):
            running = min(float(scene.value(spec.get("running", 0.0), share)), 1.0)
            waiting = min(float(scene.value(spec.get("waiting", 0.0), share)), 1 - running)
            pid = pids[spec.get("role", "engine")][0]
            rows.append(
                _second(time, pid, pid + 50 + index, name, int(running * S), int(waiting * S))
                | {"state": spec.get("state", "R" if running > 0.5 else "S"), "is_launcher": False}
            )
    return rows


def _launcher_seconds(scene: Scene, actor: Actor) -> Iterator[Row]:
    absent = sorted(
        (row["start_ns"], row["start_ns"] + row["duration_ns"], row["runnable_ns"], row["state"])
        for row in actor.rows.get("offcpu", [])
    )
    starts = [row[0] for row in absent]
    for time, _share, _phase in scene.times(S):
        low = max(bisect.bisect_left(starts, time) - 1, 0)
        high = bisect.bisect_left(starts, time + S)
        off = waiting = n_pushed = 0
        for start, end, ready, state in absent[low:high]:
            part = max(min(end, time + S) - max(start, time), 0)
            off += part
            waiting += int(part * ready / max(end - start, 1))
            n_pushed += state == "running" and start >= time
        for start, is_on in actor.parked:
            off += 0 if is_on else max(min(time + S - start, S), 0)
        is_parked = any(start < time + S and not is_on for start, is_on in actor.parked)
        off = min(off, S)
        waiting = min(waiting, off)
        yield _second(time, actor.pid, actor.pid, actor.name, S - off, waiting) | {
            "n_voluntary_switches": high - low - n_pushed,
            "n_involuntary_switches": n_pushed,
            "state": "S" if is_parked else "R",
            "is_launcher": True,
        }


def _second(time: int, pid: int, tid: int, name: str, running: int, waiting: int) -> Row:
    return {
        "start_ns": time,
        "duration_ns": S,
        "pid": pid,
        "tid": tid,
        "name": name[:15],
        "running_ns": running,
        "waiting_ns": waiting,
        "sleeping_ns": S - running - waiting,
    }
