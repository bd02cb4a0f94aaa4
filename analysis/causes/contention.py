"""Several processes take turns on one device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import intervals, quantiles
from analysis.causes.declaration import Cause, Needs
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.severity import assess

Ints = npt.NDArray[np.int64]

CROSS_PROCESS = "contention.cross_process"

#: SM share in % from which a neighbour counts as active in a sample: the driver's shares are
#: whole numbers, and a monitor's context shows as 0.
ACTIVE_PCT = 5.0
#: Steps on each side of the comparison, and how much a step's wait must stretch.
N_STEPS = 15
STRETCH = 1.25
#: A step counts as shared when the neighbour was active in this share of it, as alone in none.
SHARED = 0.5
#: Where there is no time alone to compare with, the neighbour must have this much of the device.
NEIGHBOUR_PCT = 20.0


@dataclass(frozen=True)
class _Neighbour:
    """Another process on the device: when it was active, as far as told."""

    pid: int
    name: str | None
    type: str | None
    active: Ints
    known: Ints
    sm_pct: float | None
    n: int
    is_seen_by_calls: bool


def _neighbours(facts: Facts, device: int | None, own: int) -> list[_Neighbour]:
    """Other processes with work on the device, by their own calls or by NVML's shares."""
    result = []
    whole = intervals.make([facts.start_ns], [facts.complete_ns])
    for pid in facts.pids_on(device):
        if pid == own:
            continue
        steps = facts.steps(pid)
        if len(steps) == 0:
            continue
        active = intervals.union(steps.outstanding)
        result.append(
            _Neighbour(pid, facts.process_name(pid), None, active, whole, None, len(steps), True)
        )
    seen = {item.pid for item in result} | {own}
    if facts.gpu is None or facts.gpu.processes.empty:
        return result
    contexts = facts.gpu.contexts(device)
    for row in contexts.to_dict("records"):
        pid = int(row["pid"])
        samples = facts.gpu.process_util(device, pid)
        if pid in seen or samples is None:
            continue
        spans = intervals.make(samples.begin, samples.end)
        is_active = samples.value >= ACTIVE_PCT
        result.append(
            _Neighbour(
                pid,
                text_of(row["name"]),
                text_of(row["type"]),
                intervals.union(spans[is_active]),
                intervals.union(np.concatenate((spans, facts.gpu.without(device, pid)))),
                float(samples.value[is_active].mean()) if is_active.any() else 0.0,
                len(samples),
                False,
            )
        )
    return [item for item in result if len(item.active)]


def find_cross_process(facts: Facts) -> Finding:
    """Return whether another process on the device stretched this one's waits."""
    best: Finding | None = None
    for device in facts.devices:
        pids = facts.pids_on(device)
        if not pids:
            continue
        for neighbour in _neighbours(facts, device, pids[0]):
            finding = _against(facts, device, pids[0], neighbour)
            if best is None or _weight(finding) > _weight(best):
                best = finding
    if best is not None:
        return best
    return Finding(
        CROSS_PROCESS,
        Status.NOT_FOUND,
        confidence=0.9 if facts.gpu is not None else 0.6,
        excluded=[Exclusion(CROSS_PROCESS, "no other process was seen working on the same device")],
    )


def _weight(finding: Finding) -> tuple[bool, bool, int]:
    return (
        finding.status is Status.FOUND,
        finding.status is Status.UNDECIDED,
        finding.lost_ns,
    )


def _against(facts: Facts, device: int | None, pid: int, neighbour: _Neighbour) -> Finding:
    steps = facts.steps(pid)
    has_work = steps.n_launches + steps.n_graphs > 0
    launcher = facts.launchers[pid]
    begin, end = steps.first_launch[has_work], steps.work_end[has_work]
    spans = intervals.make(begin, np.maximum(end, begin))
    length = np.maximum(spans[:, 1] - spans[:, 0], 1)
    shared = intervals.overlap_each(spans, neighbour.active) / length
    known = intervals.overlap_each(spans, neighbour.known) / length
    kind = _shape(steps.n_launches[has_work], steps.n_graphs[has_work])
    name = f"{neighbour.name or 'process'} (pid {neighbour.pid})"
    finding = Finding(
        CROSS_PROCESS,
        Status.NOT_FOUND,
        confidence=0.8,
        where=Where(pid, launcher.tid, device, process=facts.process_name(pid)),
    )
    if neighbour.sm_pct is not None:
        finding.evidence.append(
            Evidence(
                f"sm_share of {name} when active",
                round(neighbour.sm_pct, 1),
                "%",
                neighbour.n,
                "gpu_process",
            )
        )
    compared = _compare(length, shared, known, kind)
    together = intervals.intersect(intervals.union(spans), neighbour.active)
    if compared is not None:
        return _with_alone(facts, finding, name, compared, together)
    return _without_alone(facts, device, finding, name, neighbour, spans, together)


def _shape(n_launches: Ints, n_graphs: Ints) -> Ints:
    """Steps of one shape do like work: the same number of launches and graphs."""
    shape: Ints = n_graphs * 1_000_003 + n_launches
    return shape


@dataclass(frozen=True)
class _Comparison:
    """Steps of one shape with and without the neighbour."""

    alone_ns: float
    together_ns: float
    n_alone: int
    n_together: int

    @property
    def stretch(self) -> float:
        return self.together_ns / max(self.alone_ns, 1.0)


def _compare(
    length: Ints, shared: npt.NDArray[np.float64], known: npt.NDArray[np.float64], kind: Ints
) -> _Comparison | None:
    """The commonest shape of step that was seen often enough with and without the neighbour."""
    is_alone = (shared == 0) & (known >= SHARED)
    is_together = shared >= SHARED
    shapes, counts = np.unique(kind[is_together], return_counts=True)
    for shape in shapes[np.argsort(-counts)]:
        alone = length[is_alone & (kind == shape)]
        together = length[is_together & (kind == shape)]
        if len(alone) >= N_STEPS and len(together) >= N_STEPS:
            a, b = quantiles.median(alone), quantiles.median(together)
            assert a is not None
            assert b is not None
            return _Comparison(a, b, len(alone), len(together))
    return None


def _with_alone(
    facts: Facts, finding: Finding, name: str, compared: _Comparison, together: Ints
) -> Finding:
    """Like steps of the same process, with the neighbour and without: a natural experiment."""
    severity = assess(together, facts.demand)
    part = max(1 - 1 / max(compared.stretch, 1e-9), 0.0)
    finding.evidence += [
        Evidence("step_alone_p50", int(compared.alone_ns), "ns", compared.n_alone, "cuda_call"),
        Evidence(
            "step_together_p50", int(compared.together_ns), "ns", compared.n_together, "cuda_call"
        ),
        Evidence("stretch", round(compared.stretch, 2), "ratio", compared.n_together, ""),
    ]
    finding.lost_ns = int(severity.lost_ns * part)
    finding.lost_share = severity.share * part
    finding.start_ns, finding.end_ns = severity.start_ns, severity.end_ns
    if compared.stretch < STRETCH or not severity.is_material or finding.lost_share < 0.05:
        finding.excluded.append(
            Exclusion(
                CROSS_PROCESS,
                f"{name} shares the device, but steps take {compared.stretch:.2f} times as long "
                f"beside it, over {100 * severity.share:.0f} % of the time with demand",
            )
        )
        finding.lost_ns, finding.lost_share = 0, 0.0
        return finding
    excuse = _launch_delay(facts, finding, together)
    if excuse is not None:
        finding.status, finding.confidence = Status.UNDECIDED, 0.4
        finding.undecided_because = excuse
        finding.settled_by = "device times, or a recording without the load on the CPUs"
        return finding
    finding.status = Status.FOUND
    finding.confidence = 0.93 * facts.trust("cuda", "nvml")
    finding.spans = together
    finding.summary = (
        f"While {name} used the same device, steps took {compared.stretch:.1f} times as long "
        f"({compared.together_ns / 1e6:.1f} ms against {compared.alone_ns / 1e6:.1f} ms alone): "
        f"{100 * finding.lost_share:.0f} % of the time with demand is lost to sharing."
    )
    finding.excluded.append(
        Exclusion("launch.cpu_delay", "steps stretch on the device, the launches do not")
    )
    return finding


def _launch_delay(facts: Facts, finding: Finding, together: Ints) -> str | None:
    """Why the stretch may come from the CPU instead: the launching thread was not running."""
    launcher = facts.launchers[finding.where.pid or 0]
    if launcher.absences is None or not launcher.has_states:
        return None
    ready = intervals.overlap(launcher.states["ready"], together)
    share = ready / max(intervals.total(together), 1)
    finding.evidence.append(
        Evidence("ready_not_running_meanwhile", round(100 * share, 1), "%", None, "offcpu")
    )
    if share * intervals.total(together) > 0.5 * max(finding.lost_ns, 1):
        return "the launching thread waited for a CPU meanwhile, which stretches steps as well"
    return None


def _is_mps(kind: str | None) -> bool:
    return (kind or "").startswith("M+C")


def _type_of(facts: Facts, device: int | None, pid: int | None) -> str | None:
    """Type of a process in the driver's lists, None where not told."""
    if facts.gpu is None or facts.gpu.processes.empty:
        return None
    rows = facts.gpu.contexts(device)
    rows = rows[rows["pid"] == pid]
    return None if rows.empty else text_of(rows["type"].iloc[0])


def _without_alone(
    facts: Facts,
    device: int | None,
    finding: Finding,
    name: str,
    neighbour: _Neighbour,
    spans: Ints,
    together: Ints,
) -> Finding:
    """No time alone to compare with: what the neighbour had while this process waited."""
    wanted = intervals.total(intervals.union(spans)) / facts.demand_ns
    severity = assess(together, facts.demand)
    share = (neighbour.sm_pct or 0.0) / 100
    # Outstanding for `wanted` of the time and taken for `share`: both at once for at least this.
    bound = max(min(wanted, 1.0) + share - 1, 0.0) * severity.share
    finding.evidence.append(
        Evidence("work_outstanding", round(100 * min(wanted, 1.0), 1), "%", len(spans), "cuda_call")
    )
    finding.start_ns, finding.end_ns = severity.start_ns, severity.end_ns
    if _is_mps(neighbour.type) and _is_mps(_type_of(facts, device, finding.where.pid)):
        finding.excluded.append(
            Exclusion(CROSS_PROCESS, f"{name} and this process run side by side through MPS")
        )
        return finding
    if not severity.is_material or (neighbour.sm_pct is not None and bound < 0.1):
        finding.excluded.append(
            Exclusion(
                CROSS_PROCESS,
                f"{name} had {neighbour.sm_pct or 0:.0f} % of the device over "
                f"{100 * severity.share:.0f} % of the time with demand",
            )
        )
        return finding
    finding.lost_ns, finding.lost_share = int(bound * facts.demand_ns), bound
    finding.summary = (
        f"{name} used the same device for {100 * severity.share:.0f} % of the time in which this "
        "process waited for it"
    )
    if neighbour.sm_pct is None or neighbour.sm_pct < NEIGHBOUR_PCT:
        finding.status, finding.confidence = Status.UNDECIDED, 0.4
        finding.lost_share = max(finding.lost_share, 0.1)
        finding.undecided_because = "there is no time alone to compare with"
        finding.settled_by = "a minute without the neighbour, or context-switch counters (GPM)"
        finding.summary += "."
        return finding
    finding.status = Status.FOUND
    finding.confidence = 0.75 * facts.trust("cuda", "nvml")
    finding.spans = together
    finding.summary += (
        f", and had {neighbour.sm_pct:.0f} % of it: at least {100 * bound:.0f} % of the time with "
        "demand went to it."
    )
    return finding


def text_of(value: object) -> str | None:
    """Return a name or type as text, None where it is null."""
    return value if isinstance(value, str) else None


CAUSES = (
    Cause(
        CROSS_PROCESS,
        "several processes take turns on one device",
        "Another process uses the device while this one waits for it.",
        "Two or more processes active on the device, own waits stretched without launch delay "
        "against the own level alone; context-switch counters where present.",
        "CPU contention, own saturation, a neighbour that has a context and does nothing.",
        "Record a minute without the neighbour, or context-switch counters (GPM).",
        "Put both into MPS, give each its own device or MIG instance, or move the neighbour.",
        Needs(("cuda_call",), optional=("gpu_process", "gpu_sample", "offcpu", "engine_sample")),
        find_cross_process,
    ),
)
