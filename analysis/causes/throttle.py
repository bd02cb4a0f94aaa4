"""Lowered clocks: a clock under its normal level, a reason for it, and kernels longer by as much.

A reason bit alone proves nothing (D7), and neither does a lower clock: work that the memory limits
takes as long as before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import engine as words
from analysis import intervals, quantiles
from analysis.causes.declaration import Cause, Needs
from analysis.causes.engine_load import load_windows
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.severity import assess

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

THROTTLE = "power.throttle"

#: Clock-event reasons that slow a device at work, by bit (nvmlClocksEventReason*).
REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake",
}
_MASK = sum(REASONS)
#: A clock counts as lowered under this share of its normal level: boost clocks wander by less.
LOWERED = 0.93
#: The same where only the highest clock of the GPU is known, which few devices hold at full load.
LOWERED_OF_MAX = 0.85
#: Utilisation in % from which a device is at work: idle devices lower their clocks by themselves.
WORKING_PCT = 10.0
#: A step in which the launching thread waited for a CPU for more than this share does not count.
DELAYED = 0.1
#: Activity of the memory in % from which it limits the work, at a clock of at least half.
MEMORY_PCT = 60.0
HALF = 2.0
#: Samples that a level needs, and steps or kernels on each side of the comparison.
N_SAMPLES = 3
N_LIKE = 10
#: How much of the clock's change the work must follow, as an exponent: 1 is all of it; steps that
#: also wait for memory or the host follow by half.
FOLLOWS = (0.45, 1.5)
IGNORES = 0.25
#: Load on both sides is like when running requests and prompt tokens lie within this ratio, and
#: the used cache differs by at most this share.
ALIKE = 1.25
ALIKE_KV = 0.15


@dataclass(frozen=True)
class _Clock:
    """Clock samples of one device at work, and the spans in which it was lowered and was not."""

    normal_mhz: float
    low_mhz: float
    reason: str
    lowered: Ints
    usual: Ints
    n_low: int
    n_usual: int

    @property
    def factor(self) -> float:
        return self.normal_mhz / max(self.low_mhz, 1.0)


def find_throttle(facts: Facts) -> Finding:
    """Return whether lowered clocks made the work of a device take longer."""
    found = [_of_device(facts, device) for device in (facts.gpu.devices if facts.gpu else ())]
    answers = [item for item in found if item is not None]
    if not answers:
        return Finding(
            THROTTLE,
            Status.NOT_APPLICABLE,
            undecided_because="no device was sampled with its clock and clock-event reasons",
        )
    order = {Status.FOUND: 2, Status.UNDECIDED: 1}
    return max(answers, key=lambda item: (order.get(item.status, 0), item.lost_ns))


def _of_device(facts: Facts, device: int) -> Finding | None:
    clock = _clock(facts, device)
    if clock is None:
        return None
    finding = Finding(THROTTLE, Status.NOT_FOUND, confidence=0.9, where=_where(facts, device))
    severity = assess(clock.lowered, facts.demand)
    finding.evidence = [
        Evidence("sm_clock_usual", round(clock.normal_mhz), "MHz", clock.n_usual, "gpu_sample"),
    ]
    if not severity.is_material:
        finding.excluded.append(
            Exclusion(
                THROTTLE,
                "the clock was under its level with a reason for it in "
                f"{100 * severity.share:.0f} % of the time with demand",
            )
        )
        return finding
    finding.start_ns, finding.end_ns = severity.start_ns, severity.end_ns
    finding.evidence += [
        Evidence("sm_clock_lowered", round(clock.low_mhz), "MHz", clock.n_low, "gpu_sample"),
        Evidence("clock_event_reason", clock.reason, "", clock.n_low, "gpu_sample"),
    ]
    text = (
        f"device {device} ran at {clock.low_mhz:.0f} MHz instead of {clock.normal_mhz:.0f} for "
        f"{100 * severity.share:.0f} % of the time with demand ({clock.reason})"
    )
    stretch = (
        _kernels(facts, device, clock)
        or _steps(facts, device, clock)
        or _tokens(facts, device, clock)
    )
    part = 1 - 1 / clock.factor
    finding.lost_ns, finding.lost_share = int(severity.lost_ns * part), severity.share * part
    busy_memory = _memory(facts, device, clock)
    if stretch is None and busy_memory is not None and clock.factor < HALF:
        finding.lost_ns, finding.lost_share = 0, 0.0
        finding.evidence.append(busy_memory)
        finding.excluded.append(
            Exclusion(
                THROTTLE,
                f"{text}, but its memory is active for {busy_memory.value} % of the time: the "
                "memory limits it, whose clock is as ever",
            )
        )
        return finding
    if stretch is None:
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.undecided_because = (
            f"{text}, and like work at the usual clock to compare with is not in the recording"
        )
        finding.settled_by = "a recording of the same load at the usual clock"
        return finding
    ratio, n_low, n_usual, what = stretch
    finding.evidence += [
        Evidence("clock_factor", round(clock.factor, 2), "ratio", clock.n_low, "gpu_sample"),
        Evidence(f"{what}_stretch", round(ratio, 2), "ratio", min(n_low, n_usual), ""),
    ]
    follows = math.log(max(ratio, 1e-3)) / math.log(clock.factor)
    if follows < IGNORES:
        finding.lost_ns, finding.lost_share = 0, 0.0
        finding.excluded.append(
            Exclusion(
                THROTTLE,
                f"{text}, but like {what}s took {ratio:.2f} times as long: the clock is not what "
                "limits them",
            )
        )
        return finding
    part = max(1 - 1 / ratio, 0.0)
    finding.lost_ns, finding.lost_share = int(severity.lost_ns * part), severity.share * part
    if not FOLLOWS[0] <= follows <= FOLLOWS[1]:
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.undecided_because = (
            f"{text}, a factor of {clock.factor:.2f}, but like {what}s took {ratio:.2f} times as "
            "long: something else changed as well"
        )
        finding.settled_by = "device times: a trace of the kernels at both clocks"
        return finding
    finding.status = Status.FOUND
    sure = 0.85 if what == "token" else 0.92
    finding.confidence = sure * facts.trust("nvml", "cuda", "engine")
    finding.spans = clock.lowered
    finding.summary = (
        f"{text[0].upper()}{text[1:]}, and like {what}s took {ratio:.2f} times as long: "
        f"{100 * finding.lost_share:.0f} % of the time with demand is lost to it."
    )
    return finding


def _memory(facts: Facts, device: int, clock: _Clock) -> Evidence | None:
    """The activity of the memory at the lowered clock, where it is high; None else."""
    gpu = facts.gpu
    samples = gpu.quantity(device, "dram_active_pct") if gpu is not None else None
    mean = samples.mean(clock.lowered) if samples is not None else None
    if mean is None or mean[0] < MEMORY_PCT:
        return None
    return Evidence("dram_active", round(mean[0], 1), "%", mean[1], "gpu_sample")


def _where(facts: Facts, device: int) -> Where:
    pids = facts.pids_on(device)
    pid = pids[0] if pids else None
    return Where(pid, None, device, process=facts.process_name(pid))


def _clock(facts: Facts, device: int) -> _Clock | None:
    """The clock of a device at work; None where samples, or a level to compare with, miss."""
    gpu = facts.gpu
    assert gpu is not None
    rows = gpu.samples[gpu.samples["device"] == device]
    rows = rows[rows["sm_clock_mhz"].notna() & rows["clock_reasons"].notna()]
    if len(rows) < N_SAMPLES:
        return None
    time = rows["time_ns"].to_numpy(dtype=np.int64)
    order = np.argsort(time, kind="stable")
    time = time[order]
    mhz = rows["sm_clock_mhz"].to_numpy(dtype=float)[order]
    bits = rows["clock_reasons"].to_numpy(dtype=np.int64)[order]
    works = _works(facts, device, time)
    is_flagged = (bits & _MASK) != 0
    free = mhz[works & ~is_flagged]
    normal = quantiles.median(free) if len(free) >= N_SAMPLES else None
    limit = LOWERED
    if normal is None:
        told = rows["sm_clock_max_mhz"].dropna()
        listed = {item.index: item.sm_clock_max_mhz for item in facts.manifest.gpus}
        top = float(told.max()) if len(told) else float(listed.get(device) or 0)
        if not top:
            return None
        normal, limit = top, LOWERED_OF_MAX
    is_low = works & is_flagged & (mhz < limit * normal)
    is_usual = works & (mhz >= LOWERED * normal)
    lowest = quantiles.median(mhz[is_low])
    n_low = int(is_low.sum())
    share = {bit: float(((bits[is_low] & bit) != 0).mean()) if n_low else 0.0 for bit in REASONS}
    reasons = [name for bit, name in REASONS.items() if share[bit] >= 0.5]
    return _Clock(
        normal,
        normal if lowest is None else lowest,
        ", ".join(reasons) or "no reason",
        _pairs(time, is_low),
        _pairs(time, is_usual),
        n_low,
        int(is_usual.sum()),
    )


def _pairs(time: Ints, mask: Bools) -> Ints:
    """Spans between neighbouring samples that both hold."""
    both = mask[1:] & mask[:-1]
    return intervals.union(intervals.make(time[:-1][both], time[1:][both]))


def _works(facts: Facts, device: int, time: Ints) -> Bools:
    """At which samples the device is at work, by its utilisation, else by the demand."""
    samples = facts.utilisation(device)
    if samples is None or len(samples) == 0:
        inside: Bools = intervals.assign(time, facts.demand) >= 0
        return inside
    order = np.argsort(samples.end, kind="stable")
    at = np.minimum(np.searchsorted(samples.end[order], time), len(order) - 1)
    works: Bools = samples.value[order][at] >= WORKING_PCT
    return works


#: Stretch, how many on either side, and what was compared.
_Stretch = tuple[float, int, int, str]


def _kernels(facts: Facts, device: int, clock: _Clock) -> _Stretch | None:
    """How much longer the same kernels took, by device times."""
    for item in facts.timed:
        activities = item.activities
        if activities.device != device:
            continue
        length = activities.spans[:, 1] - activities.spans[:, 0]
        is_kernel = ~activities.is_copy & ~activities.is_collective
        low = is_kernel & _inside(activities.spans, clock.lowered)
        usual = is_kernel & _inside(activities.spans, clock.usual)
        return _compare(length, activities.name.astype(np.int64), low, usual, "kernel")
    return None


def _steps(facts: Facts, device: int, clock: _Clock) -> _Stretch | None:
    """How much longer steps of like launches took that wait for their work."""
    pids = facts.pids_on(device)
    if not pids:
        return None
    steps = facts.steps(pids[0])
    length = np.maximum(steps.work_end - steps.first_launch, 1)
    shape = steps.n_graphs * 1_000_003 + steps.n_launches
    has_work = (shape > 0) & steps.is_waiting
    spans = steps.outstanding
    # What the scheduler took from a step is not the clock's doing.
    ready = facts.launchers[pids[0]].states["ready"]
    has_work &= intervals.overlap_each(spans, ready) <= DELAYED * length
    low = has_work & _inside(spans, clock.lowered)
    usual = has_work & _inside(spans, clock.usual)
    return _compare(length, shape, low, usual, "step")


def _tokens(facts: Facts, device: int, clock: _Clock) -> _Stretch | None:
    """How much longer a running request waited for its tokens, where nothing of the load changed
    with the clock; only for the one device of a session, whose engine it must be.
    """
    engine = facts.engine
    load = None if engine is None else load_windows(engine, 2 * N_LIKE)
    if engine is None or load is None or facts.devices != [device]:
        return None
    tokens = engine.counter(words.GENERATION_TOKENS)
    if load.token_seconds is None and tokens is not None and tokens.is_lagging:
        return None
    spans = intervals.make(load.edges[:-1], load.edges[1:])
    gaps = load.token_gaps
    known = np.isfinite(gaps) & (gaps > 0) & (load.running > 0)
    low, usual = known & _inside(spans, clock.lowered), known & _inside(spans, clock.usual)
    if min(low.sum(), usual.sum()) < N_LIKE:
        return None
    for value, least in ((load.running, 1 / ALIKE), (load.prompts, 0.0), (load.preempted, 0.0)):
        before, after = float(value[usual].mean()), float(value[low].mean())
        # A slower engine takes fewer prompts in; more of them would slow its tokens.
        if math.isfinite(before) and not least * before <= after <= ALIKE * before:
            return None
    if load.kv_usage is not None:
        change = load.kv_usage[low].mean() - load.kv_usage[usual].mean()
        if abs(float(change)) > ALIKE_KV:
            return None
    ratio = float(np.median(gaps[low]) / np.median(gaps[usual]))
    return ratio, int(low.sum()), int(usual.sum()), "token"


def _inside(spans: Ints, outer: Ints) -> Bools:
    length = spans[:, 1] - spans[:, 0]
    result: Bools = intervals.overlap_each(spans, outer) >= length
    return result


def _compare(length: Ints, kind: Ints, low: Bools, usual: Bools, what: str) -> _Stretch | None:
    """Medians of each kind seen often enough on both sides, weighted by its time."""
    ratios, weights, n_low, n_usual = [], [], 0, 0
    for code in np.unique(kind[low]).tolist():
        slow, fast = length[low & (kind == code)], length[usual & (kind == code)]
        if len(slow) < N_LIKE or len(fast) < N_LIKE:
            continue
        a, b = quantiles.median(slow), quantiles.median(fast)
        assert a is not None
        assert b is not None
        ratios.append(a / max(b, 1))
        weights.append(int(slow.sum()))
        n_low += len(slow)
        n_usual += len(fast)
    if not ratios:
        return None
    return float(np.average(ratios, weights=weights)), n_low, n_usual, what


CAUSES = (
    Cause(
        THROTTLE,
        "thermal or power limits slow the clocks",
        "The device runs below its clock because of heat or power.",
        "SM clock under its normal level with a reason bit, and like kernels or steps (or the "
        "tokens of an engine at like load) longer by the same factor.",
        "A flag alone; a lower clock under work that the memory limits.",
        "Record GPU samples before and during it: tracer record --pid PID.",
        "Check cooling and power limit.",
        Needs(("gpu_sample",), optional=("cuda_call", "gpu_activity", "engine_sample")),
        find_throttle,
    ),
)
