"""From findings to a verdict: root before symptom, then by lost time; else one of the outcomes.

Precedence: a hang (nothing else matters while it lasts), then found causes by what they cost, then
``no_demand``, ``unknown`` where something is off, and ``healthy``. ``healthy`` is a positive
result: there was demand, it progressed, and no sign of loss is left unexplained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import intervals
from analysis.facts import Facts
from analysis.finding import Evidence, Finding, Status, Where
from analysis.incomplete import MOST_MISSING, SHORTEST_NS, doubt, doubt_moment
from analysis.signs import Sign, find_signs, is_blind

Ints = npt.NDArray[np.int64]

#: Below this share of the recording with demand there is nothing to explain.
LITTLE_DEMAND = 0.05
#: Utilisation under which a device counts as unused, %.
UNUSED_PCT = 5.0
#: Where no engine tells the demand: with less of it than this, "healthy" is less sure.
MOST_DEMAND = 0.7

#: Causes that explain another one away when both are found: root, then its symptoms.
ROOTS = {
    "hang.kernel": {
        "launch.host_bound",
        "launch.first_use",
        "launch.cpu_delay",
        "contention.cross_process",
        "prefill.hogging",
        "queue.retry_storm",
    },
    "contention.outside_mps": {"contention.cross_process"},
    "launch.cgroup_throttle": {"launch.cpu_delay"},
    "launch.placement": {"launch.cpu_delay", "host.input_starvation"},
    "launch.first_use": {"launch.host_bound"},
    "launch.graph_fallback": {"launch.host_bound"},
    "launch.gc_pause": {"launch.host_bound"},
    "host.sync_stall": {"launch.host_bound"},
    "hang.hardware": {"hang.kernel", "hang.collective", "queue.retry_storm"},
    "hang.collective": {"hang.kernel", "collective.straggler", "queue.retry_storm"},
    # Heavy requests outgrow the captured graphs, and make the rest wait.
    "request.heavy": {"launch.graph_fallback", "launch.host_bound", "queue.overload"},
    "prefill.hogging": {"queue.head_of_line"},
    "queue.head_of_line": {"queue.retry_storm"},
    "queue.imbalance": {"queue.overload", "queue.head_of_line", "queue.retry_storm"},
    "power.throttle": {"queue.overload", "queue.retry_storm"},
    # Whatever more is asked than the device can do, something in it is the limit then.
    "queue.overload": {"device.compute_bound", "memory_bandwidth"},
    # Evicted requests are computed again instead of new ones, which wait.
    "kv.preemption": {"queue.overload", "prefill.hogging"},
    "kv.undersized": {"kv.preemption", "queue.overload", "prefill.hogging"},
    # Which rank is late comes first; why its host is late is a finding about that rank.
    "collective.straggler": {"launch.host_bound", "host.sync_stall", "host.input_starvation"},
}


@dataclass(frozen=True)
class Verdict:
    """The answer in one word: a cause of the vocabulary, and how sure it is.

    Attributes:
        cause: Slug.
        confidence: Probability in [0, 1].
        status: ``found``, or ``undecided`` where the proof is missing.
        candidates: Causes that are not proven and not ruled out, the likeliest first.
        text: One or two sentences.
    """

    cause: str
    confidence: float
    status: Status
    candidates: tuple[str, ...]
    text: str


def rank(findings: list[Finding]) -> list[Finding]:
    """Return the found and the undecided findings, roots first, then by lost time; symptoms are
    noted on their root.
    """
    found = [item for item in findings if item.status is Status.FOUND]
    present = {item.cause for item in found}
    symptoms: set[str] = set()
    for item in found:
        item.symptoms = sorted(ROOTS.get(item.cause, set()) & present)
        symptoms.update(item.symptoms)
    found.sort(key=lambda item: (item.cause in symptoms, -item.lost_ns * item.confidence))
    found.sort(key=lambda item: not item.cause.startswith("hang.") or item.cause in symptoms)
    undecided = [item for item in findings if item.status is Status.UNDECIDED]
    undecided.sort(key=lambda item: -item.confidence * max(item.lost_share, 0.01))
    return found + undecided


def conclude(facts: Facts, ranked: list[Finding]) -> tuple[Verdict, list[Finding]]:
    """Return the verdict and the findings to show, for findings ranked by :func:`rank`."""
    if facts.missing_share > MOST_MISSING:
        nothing = doubt(ranked, facts.missing_share)
        doubted = tuple(item.cause for item in ranked)
        verdict = Verdict("unknown", nothing.confidence, Status.UNDECIDED, doubted, nothing.summary)
        return verdict, [*ranked, nothing]
    length_ns = facts.end_ns - facts.start_ns
    if facts.manifest.origin == "record" and not facts.timed and length_ns < SHORTEST_NS:
        doubt_moment(ranked, length_ns)
    if ranked and ranked[0].status is Status.FOUND:
        first = ranked[0]
        candidates = tuple(item.cause for item in ranked if item.status is Status.UNDECIDED)
        verdict = Verdict(
            first.cause, round(first.confidence, 2), Status.FOUND, candidates, first.summary
        )
        return verdict, ranked
    candidates = tuple(item.cause for item in ranked)
    idle = _no_demand(facts)
    if idle is not None and not candidates:
        return _verdict(idle), [idle]
    signs = find_signs(facts)
    if candidates or signs:
        unknown = _unknown(facts, ranked, signs)
        text = unknown.summary
        verdict = Verdict("unknown", unknown.confidence, Status.UNDECIDED, candidates, text)
        return verdict, [*ranked, unknown]
    span = max(facts.complete_ns - facts.start_ns, 1)
    if facts.is_thinned and span < SHORTEST_NS:
        sparse = Finding(
            "unknown",
            Status.UNDECIDED,
            confidence=0.5,
            summary="The most frequent calls were left out nearly all the time: what the device "
            "waited for cannot be told from the rest.",
            undecided_because=f"every call was recorded for {span / 1e9:.2f} s only",
            settled_by="a short recording without --budget, or with a larger one",
        )
        return _verdict(sparse), [sparse]
    if intervals.total(facts.demand) < LITTLE_DEMAND * span:
        nothing = Finding(
            "unknown",
            Status.UNDECIDED,
            confidence=0.5,
            summary="Hardly any demand was seen, and nothing tells whether there was any: what "
            "the device waited for cannot be told.",
            undecided_because="no source tells whether there was demand",
            settled_by="--engine URL, and cuda_call (tracer doctor --pid PID)",
        )
        return (
            Verdict("unknown", 0.5, Status.UNDECIDED, (), nothing.summary),
            [nothing],
        )
    if facts.manifest.origin == "record" and length_ns < SHORTEST_NS:
        moment = Finding(
            "unknown",
            Status.UNDECIDED,
            confidence=0.5,
            summary=f"Nothing wrong shows in {length_ns / 1e9:.2f} s, which is too short to say "
            "that nothing is.",
            undecided_because="the recording is one moment",
            settled_by="a recording of ten seconds or more",
        )
        return _verdict(moment), [moment]
    if is_blind(facts) and _had_to_see(facts):
        unseen = Finding(
            "unknown",
            Status.UNDECIDED,
            confidence=0.5,
            summary="Nothing wrong shows in the engine's and the device's numbers, but no CUDA "
            "call was recorded: what delays the launching side stays unseen.",
            undecided_because="no CUDA call was recorded",
            settled_by="cuda_call and offcpu: run tracer doctor --pid PID, and record as root",
        )
        return _verdict(unseen), [unseen]
    return _healthy(facts), []


def _verdict(finding: Finding) -> Verdict:
    return Verdict(finding.cause, round(finding.confidence, 2), finding.status, (), finding.summary)


def _no_demand(facts: Facts) -> Finding | None:
    """Nothing was asked, as the engine tells, or as silence and an unused device tell."""
    told = facts.engine.demand if facts.engine is not None else None
    span = max(facts.complete_ns - facts.start_ns, 1)
    share = intervals.total(facts.demand) / span
    if told is not None:
        # What the engine tells holds also where calls were left out.
        wanted = intervals.total(intervals.clip(told, facts.start_ns, facts.end_ns))
        share = max(share, wanted / max(facts.end_ns - facts.start_ns, 1))
    elif span < SHORTEST_NS:
        return None
    if share >= LITTLE_DEMAND:
        return None
    evidence = [Evidence("demand_share", round(100 * share, 2), "%", None, "")]
    if facts.is_demand_told:
        confidence, how = 0.95, "the engine had no request running or waiting"
    else:
        used = [facts.utilisation(device) for device in facts.devices]
        whole = intervals.make([facts.start_ns], [facts.end_ns])
        means = [mean for item in used if item is not None and (mean := item.mean(whole))]
        if not means or max(mean[0] for mean in means) > UNUSED_PCT:
            return None
        if facts.open_calls:
            return None
        top = max(mean[0] for mean in means)
        evidence.append(Evidence("utilisation", round(top, 1), "%", means[0][1], "gpu_sample"))
        confidence, how = 0.8, f"no CUDA call came and the device was {top:.0f} % utilised"
        if facts.calls is None and facts.manifest.source("cuda") is None:
            # A program whose host work leaves the device alone looks the same.
            confidence = 0.6
            how = f"the device was {top:.0f} % utilised (CUDA calls were not recorded)"
    return Finding(
        "no_demand",
        Status.FOUND,
        confidence=confidence * facts.trust("engine", "nvml"),
        summary=f"Nothing was asked of the device: {how}.",
        start_ns=facts.start_ns,
        end_ns=facts.end_ns,
        evidence=evidence,
    )


def _had_to_see(facts: Facts) -> bool:
    """Whether a recording was to hold CUDA calls: one that was made without them on purpose has
    other sources, and is judged by these.
    """
    manifest = facts.manifest
    if manifest.origin != "record":
        return False
    return manifest.source("cuda") is not None or not manifest.sources


def _unknown(facts: Facts, ranked: list[Finding], signs: list[Sign]) -> Finding:
    """Something is off and unproven: what is seen, what is missing, what would settle it."""
    shares = [sign.share for sign in signs] + [item.lost_share for item in ranked]
    seen = "; ".join(sign.text for sign in signs)
    because = [item.undecided_because for item in ranked if item.undecided_because]
    settled = [item.settled_by for item in ranked if item.settled_by]
    if ranked:
        first = ranked[0]
        summary = f"Not proven: {first.cause} is the likeliest, but {first.undecided_because}."
        if seen:
            summary += f" Seen: {seen}."
    else:
        summary = f"Time is lost and no known cause is proven: {seen}."
    return Finding(
        "unknown",
        Status.UNDECIDED,
        confidence=0.6,
        summary=summary,
        start_ns=facts.start_ns,
        end_ns=facts.end_ns,
        where=ranked[0].where if ranked else Where(),
        lost_share=min(max(shares, default=0.0), 1.0),
        lost_ns=int(min(max(shares, default=0.0), 1.0) * facts.demand_ns),
        evidence=[sign.evidence for sign in signs],
        undecided_because="; ".join(because) or "none of the known causes has its proof",
        settled_by="; ".join(dict.fromkeys(settled)) or _next_source(facts),
        advice="Record what is named as missing, then analyse again.",
    )


def _next_source(facts: Facts) -> str:
    """The source whose absence costs most."""
    session = facts.session
    order = (
        ("cuda_call", "the CUDA calls: tracer record --pid PID as root"),
        ("offcpu", "the scheduler: tracer record --pid PID as root"),
        ("engine_sample", "the engine: tracer record --pid PID --engine URL"),
        ("gpu_sample", "the GPU: tracer record --pid PID with NVML"),
        ("gpu_activity", "device times: tracer record --cupti -- COMMAND, or tracer import TRACE"),
    )
    for name, text in order:
        if not session.has(name):
            return text
    return "a recording of the same load when it is well, to compare"


def _healthy(facts: Facts) -> Verdict:
    """Demand was met: surer with more sources to contradict it."""
    sources = ("cuda_call", "offcpu", "gpu_sample", "engine_sample", "gpu_activity")
    n_sources = sum(facts.session.has(name) for name in sources)
    confidence = (0.5, 0.6, 0.7, 0.8, 0.92, 0.95)[n_sources] * facts.trust("cuda", "engine")
    if is_blind(facts):
        # What delays the launching side would not show.
        confidence *= 0.85
    span = max(facts.complete_ns - facts.start_ns, 1)
    if not facts.is_demand_told and intervals.total(facts.demand) < MOST_DEMAND * span:
        # Asleep for long, and nothing tells whether it had to wait for what it wanted to do.
        confidence *= 0.75
    used = [
        mean
        for device in facts.devices
        if (samples := facts.utilisation(device)) is not None
        and (mean := samples.mean(facts.demand))
    ]
    busy = f" The device was {max(item[0] for item in used):.0f} % utilised." if used else ""
    seconds = intervals.total(facts.demand) / 1e9
    text = (
        f"There was demand for {seconds:.1f} s and it was met: no cause costs a tenth of that "
        f"time.{busy}"
    )
    return Verdict("healthy", round(confidence, 2), Status.FOUND, (), text)
