"""MPS runs on a device, but a process is not in it."""

from __future__ import annotations

from analysis.causes.contention import find_cross_process, text_of
from analysis.causes.declaration import Cause, Needs
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.gpu import MPS_SERVER
from analysis.mps_audit import why_outside

OUTSIDE_MPS = "contention.outside_mps"


def find_outside_mps(facts: Facts) -> Finding:
    """Return whether MPS runs on a device and a launching process is not in it."""
    gpu = facts.gpu
    if gpu is None or gpu.processes.empty:
        return Finding(
            OUTSIDE_MPS, Status.NOT_APPLICABLE, undecided_because="no process list was sampled"
        )
    finding = Finding(OUTSIDE_MPS, Status.NOT_FOUND, confidence=0.8)
    contention = find_cross_process(facts)
    for device in facts.devices:
        contexts = gpu.contexts(device)
        kind = contexts["type"].fillna("")
        inside = contexts[kind.str.startswith("M+C")]
        outside = contexts[kind == "C"]
        own = outside[outside["pid"].isin(facts.pids_on(device))]
        if not (len(inside) or _has_server(facts, device)):
            continue
        if own.empty:
            # The stranger takes turns with the clients: it is the one outside.
            own = outside[~outside["is_target"]]
        if own.empty:
            continue
        row = own.iloc[0]
        finding.where = Where(int(row["pid"]), None, device, process=text_of(row["name"]))
        finding.evidence = [
            Evidence("processes_in_mps", len(inside), "", int(contexts["n"].max()), "gpu_process"),
            Evidence("type_of_process", "C", "", int(row["n"]), "gpu_process"),
        ]
        if contention.status is not Status.FOUND:
            finding.excluded.append(
                Exclusion(
                    OUTSIDE_MPS,
                    f"process {int(row['pid'])} is outside MPS, but sharing costs it nothing here",
                )
            )
            continue
        audit = why_outside(facts.session, int(row["pid"]), device)
        finding.status = Status.FOUND
        finding.confidence = 0.9 * facts.trust("nvml")
        finding.lost_ns, finding.lost_share = contention.lost_ns, contention.lost_share
        finding.start_ns, finding.end_ns = contention.start_ns, contention.end_ns
        finding.summary = (
            f"MPS runs on this device and {finding.where.process or 'process'} "
            f"(pid {finding.where.pid}) is not in it: it takes turns with the others instead of "
            "running beside them."
        )
        if audit is not None and audit.has_daemon:
            finding.evidence.append(audit.evidence())
            finding.summary = f"{finding.summary} {audit.detail}".rstrip()
            finding.advice = audit.mend
        return finding
    return finding


def _has_server(facts: Facts, device: int | None) -> bool:
    assert facts.gpu is not None
    rows = facts.gpu.processes
    if device is not None:
        rows = rows[rows["device"] == device]
    return bool(rows["name"].fillna("").str.startswith(MPS_SERVER).any())


CAUSES = (
    Cause(
        OUTSIDE_MPS,
        "MPS runs, but a process is not in it",
        "A process does not reach the MPS daemon and takes turns with its clients.",
        "In the list of compute processes and not in that of MPS; control pipe not visible, other "
        "uid, other IPC namespace, or started before the daemon.",
        "Sharing through MPS.",
        "Record NVML's process lists: tracer record --pid PID.",
        "Mount the MPS pipe directory and share the IPC namespace and uid, then restart it.",
        Needs(("cuda_call", "gpu_process"), optional=("gpu_sample", "mps_client")),
        find_outside_mps,
    ),
)
