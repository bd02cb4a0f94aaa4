"""Makes a session of a case: draws load and noise from the seed, plays it, and writes the tables.

``python -m tests.scenarios.build CASE [--seed N] [-o DIR]`` keeps one to look at.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.manifest import Gpu, ProbedFunction, Source, Target
from analysis.timeline import Session
from tests.analysis.builder import S, SessionBuilder
from tests.scenarios import seen_devices, seen_engine, seen_host
from tests.scenarios.case import Case, all_cases
from tests.scenarios.play import Actor, play
from tests.scenarios.scene import Scene

START = 1_000 * S
ENGINE_PID, API_PID = 4_000, 3_990
#: Source of each table, for the manifest.
_SOURCES = {
    "cuda": ("cuda_call", "open_call"),
    "offcpu": ("offcpu",),
    "nvml": ("gpu_sample", "gpu_process"),
    "engine": ("engine_sample",),
    "host": ("host_sample",),
    "process": ("process_sample",),
    "thread": ("thread_second",),
    "mps": ("mps_client",),
    "kernel_log": ("event",),
}


def draw(case: Case, seed: int) -> Scene:
    """A case with its load and noise drawn: the same seed draws the same."""
    rng = random.Random(f"{seed}:{case.name}")
    load, noise = rng.uniform(*case.load), rng.uniform(*case.noise)
    phases = []
    now = START + rng.randrange(S)
    for phase in case.phases * case.cycles:
        end = now + int(phase["seconds"] * S)
        phases.append((now, end, _loaded(phase, load)))
        now = end
    return Scene(phases, case.report, int(case.period_s * S), noise, rng, case.service)


def _loaded(phase: Mapping[str, Any], load: float) -> dict[str, Any]:
    """A phase with the drawn amount of work: requests, and what they bring per second."""
    loaded = dict(phase)
    for key in ("running", "waiting"):
        if phase.get(key):
            loaded[key] = max(round(phase[key] * load), 1)
    if "prompts" in phase:
        every = phase["prompts"]["every_ms"] / load
        loaded["prompts"] = {**phase["prompts"], "every_ms": every}
    if phase.get("step", {}).get("think_ms"):
        loaded["step"] = {**phase["step"], "think_ms": phase["step"]["think_ms"] / load}
    engine = phase.get("engine", {})
    parts = engine if isinstance(engine, list) else [engine]
    scaled = [{name: _scaled(name, spec, load) for name, spec in part.items()} for part in parts]
    return {**loaded, "engine": scaled}


def _scaled(metric: str, spec: Any, load: float) -> Any:
    kind = seen_engine.KINDS.get(metric)
    if kind == "histogram":
        return {**spec, "per_s": spec["per_s"] * load}
    is_count = metric in ("requests_running", "requests_waiting")
    if is_count and isinstance(spec, int) and spec:
        return max(round(spec * load), 1)
    if kind == "counter" or is_count:
        if isinstance(spec, list):
            return [level * load for level in spec]
        if isinstance(spec, dict):
            return {**spec, "low": spec["low"] * load, "high": spec["high"] * load}
        return spec * load
    return spec


def build(case: Case, seed: int, path: Path) -> Session:
    """Write the session of a case and open it."""
    scene = draw(case, seed)
    actors = _actors(scene)
    play(actors, scene.phases)
    return _written(scene, actors, path).write()


def _actors(scene: Scene) -> list[Actor]:
    names = scene.service.get("name", "VLLM::EngineCor")
    return [
        Actor(
            seed=scene.rng.randrange(1 << 30),
            start=scene.start,
            pid=ENGINE_PID + 10 * rank,
            device=rank if scene.service.get("is_spread", True) else 0,
            rank=rank,
            noise=scene.noise,
            name=names,
            sibling=ENGINE_PID + 10 * rank + 3,
        )
        for rank in range(int(scene.service.get("ranks", 1)))
    ]


def _written(scene: Scene, actors: Sequence[Actor], path: Path) -> SessionBuilder:
    pids: dict[str, Sequence[int]] = {"engine": [actor.pid for actor in actors]}
    roles = {
        role
        for _start, _end, phase in scene.phases
        for role in (
            *phase.get("process", {}),
            *(item.get("role", "engine") for item in phase.get("thread", {}).values()),
        )
    }
    pids |= {role: [API_PID - 20 * n] for n, role in enumerate(sorted(roles - {"engine"}))}
    tables = _tables(scene, actors, pids)
    cgroup = seen_host.cgroup_path(scene.service) if scene.has("cgroup") else None
    targets = [
        Target(pid, name=_name(actors, pid, role), cgroup=cgroup)
        for role, members in pids.items()
        for pid in members
    ]
    builder = SessionBuilder(
        path,
        is_simulated=True,
        start_ns=scene.start,
        end_ns=scene.end,
        end_reason="duration",
        host={"n_cpus": 32, "n_numa_nodes": 1, **scene.service.get("host", {})},
        gpus=[
            Gpu(index, "Simulated GPU", sm_clock_max_mhz=1_980, power_limit_mw=700_000)
            for index in range(int(scene.service.get("devices", len(actors))))
        ],
        targets=targets,
        functions=_functions(tables),
        sources=[
            Source(name, "ok", list(names))
            for name, names in _SOURCES.items()
            if any(tables.get(table) for table in names)
        ],
    )
    for name, rows in tables.items():
        if rows:
            builder.add(name, rows)
    return builder


def _name(actors: Sequence[Actor], pid: int, role: str) -> str:
    return next((actor.name for actor in actors if actor.pid == pid), role)


def _functions(tables: Mapping[str, Any]) -> list[ProbedFunction]:
    names = sorted({(row["function"], row["layer"]) for row in tables.get("cuda_call", ())})
    return [ProbedFunction(name, layer, "l", "0:1", 1) for name, layer in names]


def _tables(
    scene: Scene, actors: Sequence[Actor], pids: Mapping[str, Sequence[int]]
) -> dict[str, list[dict[str, Any]]]:
    """Every table that the report gives; rows after the end are not recorded."""
    tables: dict[str, list[dict[str, Any]]] = {}
    rows_of = {"calls": "cuda_call", "offcpu": "offcpu"}
    for source, name in rows_of.items():
        if scene.has(source):
            tables[name] = [
                row
                for actor in actors
                for row in actor.rows.get(name, [])
                if row["start_ns"] + row["duration_ns"] <= scene.end
            ]
    if scene.has("calls"):
        tables["open_call"] = [
            {"time_ns": time, **row}
            for actor in actors
            for since, row in actor.open_calls
            for time in range(since + S, scene.end, S)
        ]
    if scene.has("engine") and _is_engine(scene):
        tables["engine_sample"] = seen_engine.engine_samples(scene, actors)
    if scene.has("gpu"):
        tables["gpu_sample"] = seen_devices.gpu_samples(scene, actors)
    if scene.has("processes"):
        tables["gpu_process"] = seen_devices.gpu_processes(scene, actors)
    if scene.has("mps"):
        tables["mps_client"] = seen_devices.mps_clients(scene, actors)
    if scene.has("host") or scene.has("cgroup"):
        tables["host_sample"] = seen_host.host_samples(scene)
    if scene.has("process"):
        tables["process_sample"] = seen_host.process_samples(scene, pids)
    if scene.has("threads"):
        tables["thread_second"] = seen_host.thread_seconds(scene, actors, pids)
    if scene.has("events"):
        tables["event"] = _events(scene, actors)
    return tables


def _is_engine(scene: Scene) -> bool:
    """Whether the case describes an engine; a training loop has no metrics page."""
    return any("running" in phase or any(phase["engine"]) for _start, _end, phase in scene.phases)


def _events(scene: Scene, actors: Sequence[Actor]) -> list[dict[str, Any]]:
    rows = [row for actor in actors for row in actor.events if row["time_ns"] < scene.end]
    for start, _end, phase in scene.phases:
        for event in phase.get("events", ()):
            rest = {key: value for key, value in event.items() if key != "at_s"}
            rows.append({"time_ns": start + int(event["at_s"] * S), "name": "", **rest})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("case", choices=[case.name for case in all_cases()], metavar="CASE")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, help="folder to write (CASE.tracer)")
    arguments = parser.parse_args()
    case = next(case for case in all_cases() if case.name == arguments.case)
    path = arguments.output or Path(f"{case.name}.tracer")
    build(case, arguments.seed, path)
    print(f"{case.title}\nNext: tracer analyze {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
