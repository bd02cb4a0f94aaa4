"""Few requests with much work per token: many completions each (n), or large results per token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import engine as words
from analysis import quantiles
from analysis.causes.declaration import Cause, Needs
from analysis.causes.engine_load import Flags, Load, load_windows
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status
from analysis.severity import assess

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

HEAVY = "request.heavy"

#: Sequences per request, or bytes back per request and step against the usual, that are heavy: the
#: work of such a request is that of so many ordinary ones.
MANY = 4.0
#: The same for tokens a step: speculation, where it is not exposed, makes a few of them as well.
MANY_A_STEP = 8.0
#: Rise of the time between tokens that shows that the others suffer.
SLOWER = 1.5
#: Windows that each side needs, and requests that a mean of finished ones needs.
N_WINDOWS = 3
N_FINISHED = 5
#: Utilisation in % at which the device is the limit, so that heavy requests take from others.
FULL_PCT = 85.0


@dataclass(frozen=True)
class _Sign:
    """What tells of heavy requests: a number per window, and its level in the others."""

    name: str
    unit: str
    text: str
    value: Floats
    is_heavy: Flags
    #: Whether the number alone proves them (bytes back only go with their effect).
    is_proof: bool


def find_heavy(facts: Facts) -> Finding:
    """Return whether few requests made every step expensive."""
    load = load_windows(facts.engine, N_WINDOWS) if facts.engine is not None else None
    if load is None:
        return Finding(
            HEAVY,
            Status.NOT_APPLICABLE,
            undecided_because="running requests of an engine are not in the recording for long "
            "enough; record with --engine URL",
        )
    signs = [sign for sign in (_samples(facts, load), _asked(facts, load)) if sign is not None]
    if not any(sign.is_heavy.sum() >= N_WINDOWS for sign in signs):
        back = _bytes_back(facts, load)
        signs += [back] if back is not None else []
    heavy = [sign for sign in signs if sign.is_heavy.sum() >= N_WINDOWS]
    finding = Finding(HEAVY, Status.NOT_FOUND, confidence=0.85)
    if not heavy:
        finding.excluded.append(Exclusion(HEAVY, _none(signs)))
        return finding
    sign = heavy[0]
    is_heavy = sign.is_heavy
    severity = assess(load.spans(is_heavy), facts.demand)
    level = quantiles.median(sign.value[is_heavy])
    assert level is not None
    n = int(is_heavy.sum())
    finding.evidence = [
        Evidence(sign.name, round(level, 1), sign.unit, n, "engine_sample"),
        Evidence("running", round(float(load.running[is_heavy].mean()), 1), "requests", n, ""),
    ]
    if not severity.is_material:
        finding.excluded.append(
            Exclusion(HEAVY, f"{sign.text} in {100 * severity.share:.0f} % of the time only")
        )
        return finding
    finding.start_ns, finding.end_ns = severity.start_ns, severity.end_ns
    light = ~is_heavy & (load.running > 0)
    usual = load.token_gap(light) if light.sum() >= N_WINDOWS else None
    late = load.token_gap(is_heavy)
    text = f"{sign.text} ({level:.0f} {sign.unit})"
    if usual is not None and late is not None and usual[0] > 0:
        rise = late[0] / usual[0]
        finding.evidence.append(
            Evidence("inter_token_rise", round(rise, 2), "ratio", late[1], "engine_sample")
        )
        _by_rise(facts, load, sign, finding, severity.share, rise, text)
    else:
        _all_along(facts, sign, finding, severity.share, level, text)
    finding.lost_ns = int(finding.lost_share * facts.demand_ns)
    if finding.status is Status.FOUND:
        finding.confidence *= facts.trust("engine")
    return finding


def _by_rise(
    facts: Facts,
    load: Load,
    sign: _Sign,
    finding: Finding,
    share: float,
    rise: float,
    text: str,
) -> None:
    """Windows with and without them: the time between tokens tells what they cost."""
    if rise < SLOWER:
        finding.excluded.append(
            Exclusion(HEAVY, f"{text}, but tokens took {rise:.2f} times as long beside them")
        )
        return
    finding.lost_share = share * (1 - 1 / rise)
    preempted = float(np.nansum(load.preempted[sign.is_heavy]))
    if not sign.is_proof or preempted > 0:
        finding.status, finding.confidence = Status.UNDECIDED, 0.6
        finding.undecided_because = (
            f"{text} and tokens took {rise:.1f} times as long, but what the requests asked for "
            "is not exposed"
            if not preempted
            else f"{text}, but {preempted:.0f} requests were preempted meanwhile"
        )
        finding.settled_by = "the parameters of the requests (n, logprobs) in the engine's log"
        return
    finding.status, finding.confidence = Status.FOUND, 0.9
    running = float(load.running[sign.is_heavy].mean())
    finding.summary = (
        f"{running:.0f} requests do the work of many: {text}, and the time between tokens is "
        f"{rise:.1f} times that of the time without them."
    )
    finding.excluded.append(
        Exclusion(
            "queue.overload", f"the work per request rose, with {running:.0f} requests running"
        )
    )


def _all_along(
    facts: Facts, sign: _Sign, finding: Finding, share: float, level: float, text: str
) -> None:
    """No time without them: they are the load where the device is the limit."""
    used = [
        mean[0]
        for device in facts.devices
        if (samples := facts.utilisation(device)) is not None
        and (mean := samples.mean(facts.demand)) is not None
        and mean[1] >= N_WINDOWS
    ]
    top = max(used, default=0.0)
    if used:
        finding.evidence.append(Evidence("utilisation", round(top, 1), "%", None, "gpu_sample"))
    if used and top < FULL_PCT:
        finding.excluded.append(
            Exclusion(HEAVY, f"{text}, but the device is {top:.0f} % utilised: it has room")
        )
        return
    # At most the further sequences of each request could be saved.
    finding.lost_share = share * (1 - 1 / max(level, 1.0))
    if not used or not sign.is_proof:
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.undecided_because = f"{text} all along: there is no time without them to compare"
        finding.settled_by = "gpu_sample, and a recording without such requests"
        return
    finding.status, finding.confidence = Status.FOUND, 0.75
    finding.summary = (
        f"Requests do the work of many all along: {text} while the device is {top:.0f} % utilised."
    )


def _none(signs: list[_Sign]) -> str:
    if not signs:
        return "neither sequences per request nor bytes copied back are in the recording"
    sign = signs[0]
    level = quantiles.median(sign.value[np.isfinite(sign.value)])
    return f"{sign.name} is {level or 0:.1f} {sign.unit} at the median"


def _samples(facts: Facts, load: Load) -> _Sign | None:
    """Tokens that a step generates per running request: more than one is several sequences."""
    engine = facts.engine
    assert engine is not None
    steps = engine.series(words.ITERATION_TOKENS, "count")
    if steps is None or engine.has(words.DRAFTED):
        return None
    n_steps = steps.between(load.edges)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.where(
            (n_steps > 0) & (load.running > 0),
            load.generated / n_steps / np.maximum(load.running, 1),
            np.nan,
        )
    is_heavy = np.nan_to_num(value) >= MANY_A_STEP
    text = "each request makes several tokens a step"
    return _Sign("sequences_per_request", "sequences", text, value, is_heavy, is_proof=True)


def _asked(facts: Facts, load: Load) -> _Sign | None:
    """Completions asked for by finished requests, where the engine counts requests by them."""
    engine = facts.engine
    assert engine is not None
    count = engine.series(words.REQUEST_N, "count")
    mean = engine.mean(words.REQUEST_N, np.array([load.edges[0], load.edges[-1]], dtype=np.int64))
    if mean is None or count is None or float(count.increase().sum()) < N_FINISHED:
        return None
    each = engine.mean(words.REQUEST_N, load.edges)
    assert each is not None
    # Told only when a request ends, so a window without an end has that of the next.
    value = _carried_back(each)
    is_heavy = (np.nan_to_num(value) >= MANY) & (load.running > 0)
    text = "requests ask for several completions"
    return _Sign("completions_asked", "a request", text, value, is_heavy, is_proof=True)


def _carried_back(value: Floats) -> Floats:
    result = value.copy()
    for index in range(len(result) - 2, -1, -1):
        if not np.isfinite(result[index]):
            result[index] = result[index + 1]
    return result


def _gets_slower(load: Load) -> bool:
    """Whether tokens take much longer in some windows than in others."""
    gaps = load.token_gaps
    gaps = gaps[np.isfinite(gaps) & (load.running > 0)]
    low, high = quantiles.quantile(gaps, 0.25), quantiles.quantile(gaps, 0.9)
    return low is not None and high is not None and high.value >= SLOWER * low.value


def _bytes_back(facts: Facts, load: Load) -> _Sign | None:
    """Bytes that a step copies back per running request, against the lightest windows."""
    if facts.calls is None or not facts.processes or not _gets_slower(load):
        return None
    pid = facts.processes[0]
    copies = facts.copies(pid, ("d2h", "d2h_pageable"))
    steps = facts.steps(pid)
    if len(copies) == 0 or len(steps) == 0:
        return None
    total = np.concatenate((np.zeros(1), np.cumsum(copies[:, 1])))
    n_bytes = np.diff(total[np.searchsorted(copies[:, 0], load.edges)])
    n_steps = np.diff(np.searchsorted(steps.sync_end, load.edges))
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.where(
            (n_steps > 0) & (load.running > 0),
            n_bytes / np.maximum(n_steps, 1) / np.maximum(load.running, 1),
            np.nan,
        )
    known = value[np.isfinite(value) & (value > 0)]
    if len(known) < 2 * N_WINDOWS:
        return None
    low = quantiles.quantile(known, 0.25)
    assert low is not None
    is_heavy = np.nan_to_num(value) >= MANY * low.value
    text = f"each request copies back {MANY:.0f} times as many bytes a step as usual"
    return _Sign("bytes_back", "bytes a request and step", text, value, is_heavy, is_proof=False)


CAUSES = (
    Cause(
        HEAVY,
        "few requests do a huge amount of work per token",
        "Requests with n, logprobs, penalties or grammars hold the batch.",
        "Several sequences a step per running request, or several completions asked for, and the "
        "time between tokens up by it or the device full of it.",
        "Scheduling, more requests, drafted tokens of speculation.",
        "Record with --engine URL, before and during it.",
        "Limit n and logprobs, or serve such requests elsewhere.",
        Needs(("engine_sample",), optional=("cuda_call", "gpu_sample")),
        find_heavy,
    ),
)
