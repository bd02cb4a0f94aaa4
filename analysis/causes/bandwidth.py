"""The device's memory is the limit: it is busy all the time while few instructions are issued."""

from __future__ import annotations

import numpy as np

from analysis import engine as words
from analysis.causes.declaration import Cause, Needs
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.gpu import GpuSamples, Samples

BANDWIDTH = "memory_bandwidth"

#: DRAM activity in % from which memory is the limit: refresh and turn-arounds take the rest. From
#: the lower one on it may be.
FULL_PCT = 80.0
HIGH_PCT = 60.0
#: The units that compute are not the limit under these: SMs with a warp, tensor pipes, in %.
SM_PCT = 60.0
TENSOR_PCT = 40.0
#: Utilisation in % from which the device works all the time.
BUSY_PCT = 85.0
N_SAMPLES = 5
#: Share of the scrapes at which requests must have waited for the device.
WAITING_SHARE = 0.5
#: Rise of the time between tokens from the first third of the recording to the last, at a like
#: number of requests (within a fifth): contexts that grow make each token read more.
TOKEN_RISE = 1.3
LIKE = 0.2


def find_bandwidth(facts: Facts) -> Finding:
    """Return whether a device waited for its memory."""
    gpu = facts.gpu
    found = [_of_device(facts, gpu, device) for device in gpu.devices] if gpu is not None else []
    answers = [item for item in found if item is not None]
    if not answers:
        return Finding(
            BANDWIDTH,
            Status.NOT_APPLICABLE,
            undecided_because="the activity of the device's memory was not sampled; record it with "
            "GPM or DCGM",
        )
    order = {Status.FOUND: 2, Status.UNDECIDED: 1}
    return max(answers, key=lambda item: order.get(item.status, 0))


def _mean(facts: Facts, samples: Samples | None) -> tuple[float, int] | None:
    if samples is None:
        return None
    told = samples.mean(facts.demand)
    return told if told is not None and told[1] >= N_SAMPLES else None


def _is_short(facts: Facts) -> bool:
    """Whether more was asked than the device gave. A device that serves all its requests as they
    come is well used, whatever its limit is; without an engine nothing says that all were served.
    """
    engine = facts.engine
    if engine is None or len(engine.time) < N_SAMPLES:
        return True
    waiting = engine.gauge(words.WAITING)
    if waiting is not None and (waiting.value > 0).mean() >= WAITING_SHARE:
        return True
    edges = np.linspace(engine.time[0], engine.time[-1], 4).astype(np.int64)
    gaps, running = engine.mean(words.INTER_TOKEN, edges), engine.gauge(words.RUNNING)
    if gaps is None or running is None:
        return False
    levels = [
        running.value[(running.time >= begin) & (running.time <= end)].mean()
        for begin, end in (edges[:2], edges[2:])
    ]
    is_like = abs(levels[1] - levels[0]) <= LIKE * max(levels[0], 1.0)
    return bool(is_like and gaps[2] >= TOKEN_RISE * gaps[0])


def _of_device(facts: Facts, gpu: GpuSamples, device: int) -> Finding | None:
    dram = _mean(facts, gpu.quantity(device, "dram_active_pct"))
    used = _mean(facts, facts.utilisation(device))
    if dram is None or used is None:
        return None
    finding = Finding(BANDWIDTH, Status.NOT_FOUND, confidence=0.85, where=Where(device=device))
    finding.evidence = [
        Evidence("dram_active", round(dram[0], 1), "%", dram[1], "gpu_sample"),
        Evidence("utilisation", round(used[0], 1), "%", used[1], "gpu_sample"),
    ]
    computing = []
    for name, column, most in (
        ("sm_active", "sm_active_pct", SM_PCT),
        ("tensor_active", "tensor_active_pct", TENSOR_PCT),
    ):
        told = _mean(facts, gpu.quantity(device, column))
        if told is not None:
            finding.evidence.append(Evidence(name, round(told[0], 1), "%", told[1], "gpu_sample"))
            computing.append(told[0] <= most)
    text = f"the memory of device {device} was active for {dram[0]:.0f} % of the time with demand"
    if dram[0] < HIGH_PCT or used[0] < BUSY_PCT or (computing and not any(computing)):
        finding.excluded.append(
            Exclusion(
                BANDWIDTH,
                f"{text}, at {used[0]:.0f} % utilisation"
                + ("; its units compute as much" if computing and not any(computing) else ""),
            )
        )
        return finding
    if not _is_short(facts):
        finding.excluded.append(
            Exclusion(BANDWIDTH, f"{text}, but requests hardly waited: it gave what was asked")
        )
        return finding
    finding.start_ns, finding.end_ns = facts.start_ns, facts.end_ns
    if dram[0] < FULL_PCT or not computing:
        finding.status, finding.confidence, finding.lost_share = Status.UNDECIDED, 0.5, 0.1
        finding.undecided_because = f"{text}, which is high and not yet the limit for certain"
        if dram[0] >= FULL_PCT:
            finding.undecided_because = f"{text}, but the activity of its units is not known"
        finding.settled_by = "SM and tensor activity (GPM, DCGM), or the same load at another clock"
        return finding
    finding.status, finding.confidence = Status.FOUND, 0.88 * facts.trust("nvml", "gpm", "dcgm")
    finding.summary = (
        f"{text[0].upper()}{text[1:]} while few instructions were issued: its bandwidth is the "
        "limit, not the clock."
    )
    finding.excluded.append(Exclusion("power.throttle", "the SM clock is not what limits it"))
    # Everything is used as it can be: nothing is lost that a remedy on this device returns.
    return finding


CAUSES = (
    Cause(
        BANDWIDTH,
        "the device memory is the limit",
        "Kernels wait for DRAM.",
        "DRAM activity is high all the time at full utilisation while few instructions are issued, "
        "and requests wait or their tokens slow down (or no engine tells that they do not).",
        "Power-cap flags, PCIe, a device that computes as much.",
        "Record DRAM activity with GPM or DCGM: tracer record --for memory_bandwidth --pid PID.",
        "Move fewer bytes: quantise weights or KV cache, or batch more.",
        Needs(("gpu_sample",), optional=("engine_sample",)),
        find_bandwidth,
    ),
)
