"""A session without one of its sources: what is each source worth?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from analysis.manifest import FILE_NAME
from analysis.timeline import Session, open_session
from tests.analysis.builder import write_segment

#: Events that the kernel's own log brings; all others come from BPF programs.
_LOGGED = ["xid", "mark", "suspend", "clock_step"]
_BPF_TABLES = ("cuda_call", "open_call", "offcpu", "kernel_function")


def _without_gpu(name: str, rows: pa.Table) -> pa.Table | None:
    return None if name in ("gpu_sample", "gpu_process", "mps_client") else rows


def _without_dcgm(name: str, rows: pa.Table) -> pa.Table | None:
    if name != "gpu_sample":
        return rows
    return rows.filter(pc.invert(pc.is_in(rows["source"], pa.array(["dcgm", "gpm"]))))


def _without_device_times(name: str, rows: pa.Table) -> pa.Table | None:
    return None if name == "gpu_activity" else rows


def _without_engine(name: str, rows: pa.Table) -> pa.Table | None:
    return None if name in ("engine_sample", "request") else rows


def _without_ebpf(name: str, rows: pa.Table) -> pa.Table | None:
    if name in _BPF_TABLES:
        return None
    if name == "event":
        return rows.filter(pc.is_in(rows["kind"], pa.array(_LOGGED)))
    if name == "thread_second":
        # Which threads launch is known from their calls.
        index = rows.column_names.index("is_launcher")
        nothing = pa.nulls(len(rows), pa.bool_())
        return rows.set_column(index, rows.schema.field("is_launcher"), nothing)
    return rows


#: What is taken away, in the order of the report.
ABLATIONS: dict[str, Callable[[str, pa.Table], pa.Table | None]] = {
    "without eBPF": _without_ebpf,
    "without engine metrics": _without_engine,
    "without GPU samples": _without_gpu,
    "without DCGM": _without_dcgm,
    "without device times": _without_device_times,
}


def without(session: Session, ablation: str, path: Path) -> Session | None:
    """Write a copy without a source; None where the session has nothing of it."""
    change = ABLATIONS[ablation]
    path.mkdir()
    gone: set[str] = set()
    is_changed = False
    for name in session.tables:
        rows = session.table(name)
        kept = change(name, rows)
        if kept is None or (len(kept) == 0 and len(rows)):
            gone.add(name)
        else:
            write_segment(path, kept, name)
        is_changed |= kept is None or len(kept) < len(rows)
    if not is_changed:
        return None
    manifest = json.loads(session.manifest.to_json())
    manifest["sources"] = [
        source
        for source in manifest["sources"]
        if not source["tables"] or not set(source["tables"]) <= gone
    ]
    if "cuda_call" in gone:
        manifest["functions"] = []
    (path / FILE_NAME).write_text(json.dumps(manifest), encoding="utf-8")
    return open_session(path)
