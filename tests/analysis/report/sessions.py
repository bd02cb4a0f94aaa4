"""Sessions that the tests of reports and exports share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analysis.manifest import ProbedFunction, Source, Target
from analysis.timeline import Session
from tests.analysis.builder import MS, S, Service, SessionBuilder
from tests.analysis.test_invariance import STORIES

#: What a process, a kernel or a label may call itself.
HOSTILE = (
    "<script>problems.push('ran')</script>\"'><img src=x onerror=problems.push('ran')>"
    "</script>\u202eevil\u2066 {{7*7}} %{y} $x$ \x1b[31m" + "k" * 10_000
)


def story(path: Path, name: str, seed: int = 5) -> Session:
    """One of the situations of the first tests of the verdict, as a session."""
    service = Service(seed=seed)
    end, processes = STORIES[name](service)
    builder = service.builder(path, end)
    if processes:
        builder.add("gpu_process", processes)
    return builder.write()


def hostile(path: Path) -> Session:
    """A session in which everything that can have a strange name has one."""
    service = Service(seed=3, name=HOSTILE)
    while service.now < service.start + 6 * S:
        service.preempt(6 * MS, name=HOSTILE)
        service.decode_step()
    builder = service.builder(
        path,
        targets=[Target(service.pid, name=HOSTILE, command_line=HOSTILE, container=HOSTILE)],
        functions=[ProbedFunction("cudaLaunchKernel", "runtime", HOSTILE, "0:1", 1)],
        sources=[Source("cuda", "degraded", note=HOSTILE), Source(HOSTILE, "ok")],
        host={"hostname": HOSTILE},
    )
    now = service.start + S
    kernels = {row["kernel"] for row in service.rows["cuda_call"] if row.get("kernel")}
    builder.add(
        "kernel_function",
        [
            {"time_ns": now, "pid": service.pid, "kernel": kernel, "name": HOSTILE, "source": "elf"}
            for kernel in kernels
        ],
    )
    _add_names(builder, service, now)
    return builder.write()


def _add_names(builder: SessionBuilder, service: Service, now: int) -> None:
    pid = service.pid
    builder.add(
        "gpu_process",
        [
            {
                **{"time_ns": time, "device": 0, "pid": 77, "type": "C", "name": HOSTILE},
                **{"sm_util_pct": 30.0, "is_target": False, "container": HOSTILE},
            }
            for time in range(now, now + 4 * S, S)
        ],
    )
    builder.add(
        "thread_second",
        [
            {
                **{"start_ns": time, "duration_ns": S, "pid": pid, "tid": pid, "name": HOSTILE},
                **{"running_ns": S // 2, "waiting_ns": S // 4, "sleeping_ns": S // 4},
            }
            for time in range(now, now + 4 * S, S)
        ],
    )
    builder.add(
        "mps_client",
        [
            {
                **{"time_ns": now, "device": 0, "pid": pid, "name": HOSTILE, "is_target": True},
                **{"role": "outside", "detail": HOSTILE, "mend": HOSTILE},
            }
        ],
    )
    builder.add(
        "loss",
        [{"time_ns": now, "source": HOSTILE, "reason": HOSTILE, "n_lost": 1, "detail": HOSTILE}],
    )
    builder.add(
        "event",
        [
            {"time_ns": now, "kind": kind, "name": HOSTILE, "detail": HOSTILE}
            for kind in ("coverage", "mark")
        ],
    )
    builder.add(
        "open_call",
        [
            {
                **{"time_ns": now, "start_ns": now - S, "pid": pid, "tid": pid, "layer": "runtime"},
                **{"function": HOSTILE, "kind": "sync", "call_id": 1 << 40, "depth": 0},
                **{"is_doubtful": True, "thread_state": "S"},
            }
        ],
    )


def traced(path: Path, n_steps: int = 50) -> tuple[Session, dict[str, int]]:
    """A session with device times, nested calls, overlapping kernels and flows, and its counts."""
    rows: dict[str, list[dict[str, Any]]] = {"cuda_call": [], "gpu_activity": [], "offcpu": []}
    call_id = 0
    for step in range(n_steps):
        begin = 1000 * S + step * 10 * MS
        for index in range(3):
            call_id += 1
            start = begin + index * 20_000
            call = {"pid": 10, "tid": 11 + step % 2, "layer": "runtime", "kind": "launch"}
            rows["cuda_call"].append(
                {
                    **call,
                    **{"start_ns": start, "duration_ns": 12_000, "function": "cudaLaunchKernel"},
                    **{"call_id": 2 * call_id, "depth": 0, "correlation_id": call_id},
                    **{"kernel": 100 + index, "device": 0},
                }
            )
            rows["cuda_call"].append(
                {
                    **call,
                    **{"start_ns": start, "duration_ns": 12_000, "function": "cuLaunchKernel"},
                    **{"call_id": 2 * call_id + 1, "parent_call_id": 2 * call_id, "depth": 1},
                    **{"layer": "driver"},
                }
            )
            rows["gpu_activity"].append(
                {
                    **{"start_ns": start + 50_000, "duration_ns": 30_000, "device": 0, "pid": 10},
                    **{"stream": 7, "kind": "kernel", "name": f"kernel{index}"},
                    **{"correlation_id": call_id},
                }
            )
        rows["offcpu"].append(
            {
                **{"start_ns": begin + 2 * MS, "duration_ns": MS, "pid": 10, "tid": 11},
                **{"runnable_ns": MS, "state": "running", "taker_pid": 5, "taker_tid": 5},
                **{"taker_name": "hog", "occupant_pid": 5, "occupant_tid": 5},
                **{"occupant_name": "hog"},
            }
        )
    end = 1000 * S + n_steps * 10 * MS
    builder = SessionBuilder(
        path, start_ns=1000 * S, end_ns=end, targets=[Target(10, name="service")]
    )
    for name, added in rows.items():
        builder.add(name, added)
    builder.add(
        "gpu_sample",
        [
            {"time_ns": time, "device": 0, "source": "nvml", "util_pct": 50.0, "power_mw": 300_000}
            for time in range(1000 * S, end, 100 * MS)
        ],
    )
    builder.add(
        "kernel_function",
        [
            {"time_ns": 1000 * S, "pid": 10, "kernel": 100 + n, "name": f"k{n}", "source": "elf"}
            for n in range(3)
        ],
    )
    builder.add(
        "clock_anchor",
        [
            {
                **{"time_ns": 1000 * S, "realtime_ns": 1_700_000_000 * S},
                **{"boottime_ns": 1001 * S, "error_ns": 100},
            }
        ],
    )
    return builder.write(), {name: len(added) for name, added in rows.items()}
