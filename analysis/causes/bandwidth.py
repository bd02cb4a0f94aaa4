"""The device's memory is the limit: it is busy all the time while few instructions are issued."""

from __future__ import annotations

import math

import numpy as np

from analysis import engine as words
from analysis.causes.declaration import Cause, Needs
from analysis.causes.engine_load import load_windows
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
#: Utilisation in % from which the device works nearly all the time, and from which it has no time
#: left.
BUSY_PCT = 85.0
SATURATED_PCT = 95.0
#: Requests at a time up to which nothing is batched: each token then reads the weights for itself.
UNBATCHED = 2.0
N_SAMPLES = 5
#: Share of the scrapes at which requests must have waited for the device.
WAITING_SHARE = 0.5
#: Rise of the time between tokens from the first third of the recording to the last, at a like
#: number of requests (within a fifth): contexts that grow make each token read more.
TOKEN_RISE = 1.3
LIKE = 0.2
#: Windows on each side of a change of the power limit, and how exactly a limit is told.
N_WINDOWS = 10
EXACT = 0.01
#: The limit held the device back when it drew this share of it; by how much the power must then
#: have risen with a higher limit; and by what part of that, as an exponent, tokens that do not
#: depend on it may differ.
AT_LIMIT = 0.9
POWER_RISE = 1.1
UNMOVED = 0.15


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


def _is_unbatched(facts: Facts) -> bool:
    """Whether so few requests ran at a time that the device's whole memory serves them alone: what
    it gives to one, a batch would get for the same reads.
    """
    running = None if facts.engine is None else facts.engine.gauge(words.RUNNING)
    return running is not None and 0 < float(running.value.mean()) <= UNBATCHED


def _of_device(facts: Facts, gpu: GpuSamples, device: int) -> Finding | None:
    dram = _mean(facts, gpu.quantity(device, "dram_active_pct"))
    used = _mean(facts, facts.utilisation(device))
    if used is None:
        return None
    if dram is None:
        return _by_power(facts, gpu, device, used)
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
    is_short = _is_short(facts)
    is_full = used[0] >= SATURATED_PCT and dram[0] >= FULL_PCT and bool(computing)
    is_saturated = is_full and _is_unbatched(facts)
    if not is_short and not is_saturated:
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
    if not is_short:
        finding.confidence *= 0.85
        finding.summary += (
            " No request waited for its turn, and few ran at a time: it sets how fast their tokens "
            "come, and more could share it."
        )
    finding.excluded.append(Exclusion("power.throttle", "the SM clock is not what limits it"))
    # Everything is used as it can be: nothing is lost that a remedy on this device returns.
    return finding


def _by_power(
    facts: Facts, gpu: GpuSamples, device: int, used: tuple[float, int]
) -> Finding | None:
    """Whether tokens came as fast when a changed power limit let a busy device draw more: what
    computes is then not its limit. None where no limit was changed, or the load with it.
    """
    limit, power = gpu.quantity(device, "power_limit_mw"), gpu.quantity(device, "power_mw")
    load = None if facts.engine is None else load_windows(facts.engine, 2 * N_WINDOWS)
    if limit is None or power is None or load is None or used[0] < SATURATED_PCT:
        return None
    caps, drawn = limit.per_window(load.edges), power.per_window(load.edges)
    gaps = load.token_gaps
    known = np.isfinite(caps) & np.isfinite(drawn) & np.isfinite(gaps) & (load.running > 0)
    if not known.any():
        return None
    # A window in which the limit was changed belongs to neither side.
    low = known & (caps <= caps[known].min() * (1 + EXACT))
    high = known & (caps >= caps[known].max() * (1 - EXACT))
    if min(low.sum(), high.sum()) < N_WINDOWS or (low & high).any():
        return None
    levels = [float(load.running[side].mean()) for side in (low, high)]
    if abs(levels[1] - levels[0]) > LIKE * levels[0]:
        return None
    held = float(np.median(drawn[low]) / np.median(caps[low]))
    more = float(np.median(drawn[high]) / np.median(drawn[low]))
    faster = float(np.median(gaps[low]) / np.median(gaps[high]))
    if held < AT_LIMIT or more < POWER_RISE:
        return None
    finding = Finding(BANDWIDTH, Status.NOT_FOUND, confidence=0.6, where=Where(device=device))
    finding.evidence = [
        Evidence("utilisation", round(used[0], 1), "%", used[1], "gpu_sample"),
        Evidence("power_rise", round(more, 2), "ratio", int(high.sum()), "gpu_sample"),
        Evidence("token_rate_rise", round(faster, 3), "ratio", int(high.sum()), "engine_sample"),
    ]
    text = (
        f"with a higher power limit device {device} drew {more:.2f} times the power and each "
        f"request got {faster:.2f} times the tokens"
    )
    if abs(math.log(faster)) > UNMOVED * math.log(more):
        finding.excluded.append(Exclusion(BANDWIDTH, f"{text}: power, or the clock, limits it"))
        return finding
    finding.status, finding.confidence, finding.lost_share = Status.UNDECIDED, 0.5, 0.1
    finding.start_ns, finding.end_ns = facts.start_ns, facts.end_ns
    finding.undecided_because = (
        f"{text}, so that not its clock but its memory seems to be the limit, whose activity was "
        "not sampled"
    )
    finding.settled_by = "DRAM activity (GPM, DCGM)"
    finding.excluded.append(Exclusion("power.throttle", f"{text}: power is not what limits it"))
    return finding


CAUSES = (
    Cause(
        BANDWIDTH,
        "the device memory is the limit",
        "Kernels wait for DRAM.",
        "DRAM activity is at its limit at full utilisation while few instructions are issued, and "
        "requests wait, their tokens slow down, or one or two of them need all of it (or no engine "
        "tells). Less of it, or a changed power limit that left the tokens as fast, makes it no "
        "more than suspected.",
        "Power-cap flags, PCIe, a device that computes as much.",
        "Record DRAM activity with GPM or DCGM: tracer record --for memory_bandwidth --pid PID.",
        "Move fewer bytes: quantise weights or KV cache, or batch more.",
        Needs(("gpu_sample",), optional=("engine_sample",)),
        find_bandwidth,
    ),
)
