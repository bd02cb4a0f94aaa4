"""Ranks that wait for each other for ever: the last launch of each, and who left it out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis import intervals
from analysis.causes.declaration import Cause, Needs
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.stuck import OPEN_NS, Rank, ranks

Ints = npt.NDArray[np.int64]

COLLECTIVE = "hang.collective"

#: Utilisation in % of a device whose kernel waits, and of one that waits for nothing.
HIGH_PCT = 90.0
#: Launches of the kernel on each side that show that ranks step together, and how far apart they
#: may be against their period.
N_TOGETHER = 10
TOGETHER = 0.25


def find_collective_hang(facts: Facts) -> Finding:
    """Return whether ranks wait in a collective that another of them does not enter."""
    found = ranks(facts)
    finding = Finding(COLLECTIVE, Status.NOT_FOUND, confidence=0.85)
    if facts.calls is None:
        return _before(facts, finding)
    waiting = [rank for rank in found if rank.opened is not None and rank.kernel is not None]
    if len(found) < 2 or len({rank.device for rank in found}) < 2 or not waiting:
        finding.excluded.append(
            Exclusion(COLLECTIVE, "no two devices of the recording stand still together")
        )
        return finding
    kernels = {rank.kernel for rank in waiting}
    if len(kernels) > 1 and all(rank.is_collective for rank in waiting):
        return _diverged(facts, finding, waiting)
    if len(kernels) > 1:
        finding.excluded.append(
            Exclusion(
                COLLECTIVE,
                "the ranks that wait launched different kernels last: one of them may hang alone",
            )
        )
        return finding
    kernel = waiting[0].kernel
    assert kernel is not None
    begin = min(int(rank.opened["start_ns"]) for rank in waiting if rank.opened is not None)
    finding.start_ns, finding.end_ns = begin, facts.end_ns
    finding.lost_ns = facts.end_ns - begin
    finding.lost_share = min(finding.lost_ns / facts.demand_ns, 1.0)
    finding.spans = intervals.make([begin], [facts.end_ns])
    absent = [rank for rank in found if _left_out(rank, waiting, kernel)]
    _describe(facts, finding, waiting, absent, kernel)
    return _decide(facts, finding, found, waiting, absent, kernel)


def _diverged(facts: Facts, finding: Finding, waiting: list[Rank]) -> Finding:
    """Ranks that wait in different collectives: each waits for others that never enter its own."""
    begin = min(int(rank.opened["start_ns"]) for rank in waiting if rank.opened is not None)
    finding.start_ns, finding.end_ns = begin, facts.end_ns
    finding.lost_ns = facts.end_ns - begin
    finding.lost_share = min(finding.lost_ns / facts.demand_ns, 1.0)
    finding.spans = intervals.make([begin], [facts.end_ns])
    finding.evidence = [
        Evidence(f"last_launched by process {rank.pid}", str(rank.kernel)[:80], "", None, "")
        for rank in waiting
    ]
    finding.where = Where(waiting[0].pid, process=facts.process_name(waiting[0].pid))
    finding.status = Status.FOUND
    finding.confidence = 0.9 * facts.trust("cuda")
    finding.summary = (
        f"{len(waiting)} ranks have waited for {finding.lost_ns / 1e9:.1f} s in different "
        f"collectives ({', '.join(sorted({str(rank.kernel)[:40] for rank in waiting}))}): they "
        "took different paths, and each waits for the others."
    )
    finding.excluded.append(Exclusion("hang.kernel", "every rank that waits is in a collective"))
    return finding


def _before(facts: Facts, finding: Finding) -> Finding:
    """Ranks that stood still before the recording began: nothing was launched, devices are busy."""
    gpu, span = facts.gpu, facts.end_ns - facts.start_ns
    was_probed = any(item.n_hits is not None for item in facts.manifest.functions)
    if gpu is None or gpu.processes.empty or not was_probed or span < OPEN_NS:
        finding.excluded.append(Exclusion(COLLECTIVE, "no launch of any rank was recorded"))
        return finding
    whole = intervals.make([facts.start_ns], [facts.end_ns])
    own = gpu.processes[gpu.processes["is_target"].fillna(False).astype(bool)]
    used = {
        int(device): mean[0]
        for device in own["device"].unique()
        if (samples := facts.utilisation(int(device))) is not None
        and (mean := samples.mean(whole)) is not None
    }
    busy = sorted(device for device, pct in used.items() if pct >= HIGH_PCT)
    if len(used) < 2 or not busy:
        finding.excluded.append(
            Exclusion(COLLECTIVE, f"{len(busy)} of {len(used)} devices of the targets were busy")
        )
        return finding
    finding.evidence = [
        Evidence(f"utilisation of device {device}", round(pct, 1), "%", None, "gpu_sample")
        for device, pct in used.items()
    ]
    finding.start_ns, finding.end_ns = facts.start_ns, facts.end_ns
    finding.lost_ns, finding.lost_share = span, 1.0
    finding.status, finding.confidence = Status.UNDECIDED, 0.5
    finding.undecided_because = (
        f"{len(busy)} of {len(used)} devices were fully utilised for {span / 1e9:.0f} s and no "
        "process launched anything: whatever hangs began before the recording, and what each rank "
        "launched last was not seen"
    )
    finding.settled_by = "the ranks' stacks, or a recording that begins before it"
    return finding


def _left_out(rank: Rank, waiting: list[Rank], kernel: str | int) -> bool:
    """Whether a rank that stepped together with those that wait did not launch it once more."""
    if rank in waiting:
        return False
    own = rank.history.get(kernel)
    return own is not None and any(_step_together(own, other.launched[:-1]) for other in waiting)


def _step_together(a: Ints, b: Ints) -> bool:
    """Whether the last launches of two ranks come in pairs."""
    n = min(len(a), len(b))
    if n < N_TOGETHER:
        return False
    first, second = a[-n:], b[-n:]
    period = float(np.median(np.diff(second)))
    return bool(np.median(np.abs(first - second)) < TOGETHER * period)


def _describe(
    facts: Facts,
    finding: Finding,
    waiting: list[Rank],
    absent: list[Rank],
    kernel: str | int,
) -> None:
    name = kernel if isinstance(kernel, str) else f"kernel {kernel:#x}"
    finding.evidence = [
        Evidence("last_launched", name, "", len(waiting), "cuda_call"),
        Evidence("ranks_waiting", len(waiting), "", len(waiting), "open_call"),
        Evidence(
            "open_for",
            facts.end_ns - (finding.start_ns or 0),
            "ns",
            len(waiting),
            "open_call",
        ),
    ]
    for rank in waiting:
        samples = facts.utilisation(rank.device)
        mean = None
        if samples is not None and finding.start_ns is not None:
            late = intervals.make([finding.start_ns + 1_000_000_000], [facts.end_ns])
            mean = samples.mean(late)
        if mean is not None:
            finding.evidence.append(
                Evidence(
                    f"utilisation of device {rank.device}",
                    round(mean[0], 1),
                    "%",
                    mean[1],
                    "gpu_sample",
                )
            )
    for rank in absent:
        finding.evidence.append(
            Evidence(
                f"launches of it by process {rank.pid}",
                f"one fewer than process {waiting[0].pid}",
                "",
                len(rank.history.get(kernel, ())),
                "cuda_call",
            )
        )


def _decide(
    facts: Facts,
    finding: Finding,
    found: list[Rank],
    waiting: list[Rank],
    absent: list[Rank],
    kernel: str | int,
) -> Finding:
    used = [
        float(item.value) for item in finding.evidence if item.name.startswith("utilisation of")
    ]
    if used and min(used) < HIGH_PCT / 2:
        finding.excluded.append(
            Exclusion(
                COLLECTIVE, f"a device that waits is {min(used):.0f} % utilised: it runs none"
            )
        )
        finding.lost_ns, finding.lost_share, finding.spans = 0, 0.0, intervals.EMPTY
        return finding
    is_known = all(rank.is_collective for rank in waiting)
    several = len({rank.device for rank in waiting}) > 1
    name = kernel if isinstance(kernel, str) else f"kernel {kernel:#x}"
    devices = ", ".join(str(rank.device) for rank in waiting)
    text = (
        f"{len(waiting)} of {len(found)} ranks (devices {devices}) have waited for "
        f"{finding.lost_ns / 1e9:.1f} s for {name[:60]}, which each of them launched last"
    )
    culprit = absent[0] if absent else None
    finding.where = Where(
        culprit.pid if culprit is not None else waiting[0].pid,
        None,
        culprit.device if culprit is not None else None,
        process=facts.process_name(culprit.pid if culprit is not None else waiting[0].pid),
    )
    if not (absent or (is_known and several)):
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.undecided_because = (
            f"{text}, but neither is it known as a collective nor did another rank leave it out"
        )
        finding.settled_by = "names of kernels (kernel_function) and all ranks of the job"
        return finding
    if not used:
        finding.status, finding.confidence = Status.UNDECIDED, 0.6
        finding.undecided_because = f"{text}, but the utilisation of the devices is not known"
        finding.settled_by = "gpu_sample: tracer record --pid PID with NVML"
        return finding
    finding.status = Status.FOUND
    finding.confidence = (0.93 if absent and is_known else 0.85) * facts.trust("cuda")
    finding.summary = text + (
        f"; process {culprit.pid} on device {culprit.device} did not launch it."
        if culprit is not None
        else "; nothing was launched since on any device."
    )
    finding.excluded += [
        Exclusion("hang.kernel", f"{len(waiting)} devices stand still in the same kernel"),
        Exclusion("collective.straggler", "nothing was launched since: it does not end"),
    ]
    # Every rank that waits loses this time, on its device.
    return finding


CAUSES = (
    Cause(
        COLLECTIVE,
        "ranks wait for each other for ever",
        "A collective that not every rank enters.",
        "Ranks wait in open calls for the same kernel, launched last on each, that is a collective "
        "or that a rank which steps with them left out; full utilisation, no launch on any.",
        "A straggler (it ends), a single hung kernel.",
        "Record all ranks: tracer record of each, or a folder of traces.",
        "Compare the ranks' last launches; look for a rank that left early.",
        Needs(
            any_of=(("open_call", "gpu_process"),),
            optional=("cuda_call", "gpu_sample", "kernel_function"),
        ),
        find_collective_hang,
    ),
)
