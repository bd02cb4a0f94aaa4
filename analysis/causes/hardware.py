"""A hardware fault stops the device: the kernel's log tells it, and nothing goes on after it."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from analysis.causes.declaration import Cause, Needs
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.stuck import OPEN_NS

HARDWARE = "hang.hardware"

#: Xid numbers that tell of the device or its links; the others (13, 31, 43, 45, 68 and more) are
#: what a program does to itself.
HARDWARE_XIDS = frozenset(
    (
        *(46, 48, 54, 61, 62, 63, 64, 74, 78, 79, 80, 92, 93, 94, 95, 96, 97, 110, 119, 120),
        *(121, 122, 123, 124, 125, 126, 136, 137, 140, 143, 144, 145, 146, 147, 148, 149, 150),
        *(151, 152, 153, 154, 155, 156, 157, 158, 160, 161, 162, 163, 164, 165, 166, 167, 168),
    )
)
#: Work that was under way may still be counted for a moment after a fault, ns.
_GRACE_NS = 1_000_000_000
#: NVML's words for a GPU that is gone, or that only a reset brings back.
_LOST = re.compile(r"says: .*(GPU is lost|GPU requires re)")
_NUMBER = re.compile(r"xid (\d+)")
_GPU = re.compile(r"GPU (\d+)\b(?!:)")


def find_hardware(facts: Facts) -> Finding:
    """Return whether work stopped with a hardware fault that the kernel or the driver told of."""
    finding = Finding(HARDWARE, Status.NOT_FOUND, confidence=0.8)
    rows = facts.session.table("event", columns=["time_ns", "kind", "pid", "name", "detail"])
    told = pc.is_in(rows["kind"], pa.array(["xid", "source_lost"]))
    faults = [fault for row in rows.filter(told).to_pylist() if (fault := _fault(row)) is not None]
    if not faults:
        finding.excluded.append(Exclusion(HARDWARE, "no fault of a GPU was told"))
        return finding
    hard = [row for row in faults if _is_hardware(row)]
    finding.evidence = [
        Evidence("fault", str(row["detail"] or row["name"])[:160], "", None, "event")
        for row in (hard or faults)[:3]
    ]
    if not hard:
        finding.excluded.append(
            Exclusion(HARDWARE, f"{faults[0]['name']} tells of the program, not of the device")
        )
        return finding
    first = int(hard[0]["time_ns"])
    finding.start_ns, finding.end_ns = first, facts.end_ns
    finding.where = Where(hard[0]["pid"], None, _device(facts, hard[0]))
    n_launches = _launches_after(facts, first + _GRACE_NS, finding.where.device)
    left = facts.end_ns - first
    name = str(hard[0]["name"])
    if n_launches is None or left < OPEN_NS:
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.lost_share = min(left / facts.demand_ns, 1.0)
        finding.undecided_because = f"{name} was told {left / 1e9:.1f} s before the end, and " + (
            "nothing tells whether work went on"
            if n_launches is None
            else "the time after it is too short to tell whether work went on"
        )
        finding.settled_by = "cuda_call: tracer record --pid PID as root"
        return finding
    finding.evidence.append(Evidence("launches_after", n_launches, "", None, "cuda_call"))
    if n_launches:
        finding.excluded.append(
            Exclusion(HARDWARE, f"{name} was told, but {n_launches} launches followed it")
        )
        return finding
    finding.lost_ns, finding.lost_share = left, min(left / facts.demand_ns, 1.0)
    finding.status, finding.confidence = Status.FOUND, 0.9 * facts.trust("cuda")
    finding.summary = (
        f"The driver told of a hardware fault ({name}) {left / 1e9:.1f} s before the end, and "
        "nothing was launched on that device since."
    )
    finding.excluded.append(Exclusion("hang.kernel", f"{name} came first: the device is at fault"))
    return finding


def _fault(row: dict[str, Any]) -> dict[str, Any] | None:
    """The row of a fault that was told: by an Xid, or by NVML that its calls find no GPU any more
    (where the kernel's log may not be read, nothing else tells it); None for another.
    """
    if row["kind"] == "xid":
        return row
    is_told = str(row["name"]).startswith("nvml gpu") and _LOST.search(str(row["detail"] or ""))
    return {**row, "name": "lost GPU"} if is_told else None


def _is_hardware(row: dict[str, Any]) -> bool:
    name = str(row["name"] or "").lower()
    if "fallen off the bus" in name or row["kind"] == "source_lost":
        return True
    match = _NUMBER.search(name)
    return match is not None and int(match[1]) in HARDWARE_XIDS


def _device(facts: Facts, row: dict[str, Any]) -> int | None:
    """The GPU that an event is about: by its bus address or index, else by its process."""
    detail = str(row["detail"] or "").lower()
    for gpu in facts.manifest.gpus:
        if gpu.pci_bus_id and _bus(gpu.pci_bus_id) in _bus(detail):
            return gpu.index
    match = _GPU.search(str(row["detail"] or ""))
    if match and int(match[1]) in {gpu.index for gpu in facts.manifest.gpus}:
        return int(match[1])
    if len(facts.devices) == 1:
        return facts.devices[0]
    return facts.device_of.get(int(row["pid"])) if row["pid"] is not None else None


def _bus(text: str) -> str:
    """A bus address without its domain's leading zeros and without its function."""
    return re.sub(r"\b0+([0-9a-f]{4}:)", r"\1", text.lower()).removesuffix(".0")


def _launches_after(facts: Facts, time_ns: int, device: int | None) -> int | None:
    calls = facts.calls
    if calls is None:
        return None
    late = calls.is_submission & (calls.start > time_ns)
    pids = facts.pids_on(device) if device is not None else facts.processes
    return sum(int((late & calls.of_process(pid)).sum()) for pid in pids)


CAUSES = (
    Cause(
        HARDWARE,
        "a hardware fault under it",
        "Xid, ECC or NVLink errors stopped the device.",
        "A hardware Xid or lost GPU in the kernel's log or the driver's events, and no launch on "
        "that device after it.",
        "A software hang, an Xid that a program causes itself.",
        "Record events: tracer record --pid PID as root.",
        "Drain the node and run the vendor's diagnostics.",
        Needs(("event",), optional=("cuda_call", "open_call")),
        find_hardware,
    ),
)
