"""From findings to a verdict: root before symptom, then by lost time; else one of the outcomes.

Precedence: a hang (nothing else matters while it lasts), then found causes by what they cost, then
``no_demand``, ``unknown`` where something is off, and ``healthy``. ``healthy`` is a positive
result: there was demand, it progressed, and no sign of loss is left unexplained.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import engine as words
from analysis import intervals, quantiles
from analysis.causes.engine_load import load_windows
from analysis.engine import gauge_at
from analysis.facts import Facts
from analysis.finding import Evidence, Finding, Status, Where
from analysis.gpu import Samples
from analysis.incomplete import MOST_MISSING, SHORTEST_NS, doubt, doubt_moment
from analysis.threads import Launcher
from analysis.waits import waits_of

Ints = npt.NDArray[np.int64]

#: Below this share of the recording with demand there is nothing to explain.
LITTLE_DEMAND = 0.05
#: Utilisation under which a device counts as unused, %.
UNUSED_PCT = 5.0
#: Share of the demand in which the device may be idle in a healthy service: a step that does its
#: host work between two syncs leaves the device alone for a fifth of it and still meets demand.
IDLE_SHARE = 0.25
#: Longest time without a token in a healthy engine with running requests, ns.
STALL_NS = 3_000_000_000
#: Where neither calls nor device times were recorded, less is needed to withhold "healthy": the
#: device idle for this share of the demand, or seconds whose time between tokens differs so much.
BLIND_IDLE_SHARE = 0.2
BLIND_TOKEN_SPREAD = 1.7
BLIND_FIRST_SPREAD = 5.0
#: Where no engine tells the demand: with less of it than this, "healthy" is less sure.
MOST_DEMAND = 0.7
#: The load counts as the largest from this share of the most running requests on.
MOST_LOAD = 0.75
#: How much the time between tokens may rise for ten seconds over its median.
TOKEN_RISE = 2.5
_BLOCK_NS = 10_000_000_000

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
    # Evicted requests are computed again instead of new ones, which wait.
    "kv.preemption": {"queue.overload", "prefill.hogging"},
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
    signs = _signs(facts)
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
    if _is_blind(facts) and _had_to_see(facts):
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
    return Finding(
        "no_demand",
        Status.FOUND,
        confidence=confidence * facts.trust("engine", "nvml"),
        summary=f"Nothing was asked of the device: {how}.",
        start_ns=facts.start_ns,
        end_ns=facts.end_ns,
        evidence=evidence,
    )


@dataclass(frozen=True)
class _Sign:
    """One sign that time is lost, with its number and how much of the demand it concerns."""

    text: str
    evidence: Evidence
    share: float


def _signs(facts: Facts) -> list[_Sign]:
    """Signs of lost time that no found cause explains."""
    signs: list[_Sign] = []
    demand = facts.demand
    for device in facts.devices:
        idle = intervals.intersect(facts.idle(device), demand) if facts.processes else demand[:0]
        if device in facts.activity:
            idle = intervals.intersect(facts.idle(device), demand)
        launcher = facts.main_launcher(device)
        if launcher is not None and not facts.is_demand_told:
            # Asleep without a request known: it may simply have waited for work.
            idle = intervals.subtract(idle, launcher.states["asleep"])
        elif launcher is not None:
            # Asleep until another process sends something: requests come one by one.
            idle = intervals.subtract(idle, _between_requests(facts, launcher))
        share = intervals.total(idle) / facts.demand_ns
        if share >= IDLE_SHARE:
            name = "the device" if device is None else f"device {device}"
            signs.append(
                _Sign(
                    f"{name} was idle for {100 * share:.0f} % of the time with demand",
                    Evidence("idle_with_demand", round(100 * share, 1), "%", None, "cuda_call"),
                    share,
                )
            )
        samples = facts.utilisation(device)
        mean = _used_with_requests(facts, samples) if samples is not None else None
        told = facts.is_demand_told and facts.demand_ns > 3 * 10**9
        most = BLIND_IDLE_SHARE if _is_blind(facts) else 2 * IDLE_SHARE
        if mean is not None and told and mean[1] >= 3 and mean[0] < 100 * (1 - most):
            signs.append(
                _Sign(
                    f"the device was {mean[0]:.0f} % utilised while requests were running",
                    Evidence(
                        "utilisation_with_demand", round(mean[0], 1), "%", mean[1], "gpu_sample"
                    ),
                    1 - mean[0] / 100,
                )
            )
    signs.extend(_engine_signs(facts))
    signs.extend(_open_signs(facts))
    return signs


def _between_requests(facts: Facts, launcher: Launcher) -> Ints:
    """When the launching thread slept until another process woke it, while nobody waited."""
    waits = waits_of(launcher)
    by_other = ~np.isin(waits.waker_pid, [launcher.pid, *facts.processes])
    spans = intervals.union(waits.spans[by_other])
    waiting = facts.engine.gauge(words.WAITING) if facts.engine is not None else None
    if waiting is None or (waiting.value > 0).mean() > LITTLE_DEMAND:
        return intervals.EMPTY
    return spans


def _used_with_requests(facts: Facts, samples: Samples) -> tuple[float, int] | None:
    """Mean utilisation in % while requests ran, and of how many samples; None without any.

    Requests that take far less than the time between two scrapes leave most of them without one,
    though tokens came in between: what the device did in all that time, it did while they ran.
    """
    running = facts.engine.gauge(words.RUNNING) if facts.engine is not None else None
    if running is not None:
        at = intervals.assign(running.time, facts.demand) >= 0
        present = float((running.value[at] > 0).mean()) if at.any() else 1.0
        mean = samples.mean(facts.demand)
        if present < MOST_LOAD and mean is not None:
            return min(mean[0] / max(present, 1e-9), 100.0), mean[1]
    return samples.mean(_at_most_load(facts))


def _at_most_load(facts: Facts) -> Ints:
    """The time with demand in which about as many requests ran as ever: with few of them a device
    has nothing to do for good reasons.
    """
    running = facts.engine.gauge(words.RUNNING) if facts.engine is not None else None
    if running is None or len(running.time) < 2:
        return facts.demand
    both = np.minimum(running.value[1:], running.value[:-1])
    many = both >= MOST_LOAD * float(running.value.max())
    spans = intervals.union(intervals.make(running.time[:-1][many], running.time[1:][many]))
    return intervals.intersect(spans, facts.demand) if len(spans) else facts.demand


def _open_signs(facts: Facts) -> list[_Sign]:
    """Calls that were entered long before the end and have not returned."""
    signs = []
    for row in facts.open_calls:
        age = facts.end_ns - int(row["start_ns"])
        if age < STALL_NS or int(row["time_ns"]) < facts.end_ns - STALL_NS:
            continue
        doubt = ", as far as is known: records of this thread were lost" * bool(row["is_doubtful"])
        state = row["thread_state"]
        stopped = " and the process was stopped by a signal" if state in ("T", "t") else ""
        signs.append(
            _Sign(
                f"thread {row['tid']} has been inside {row['function']} for "
                f"{age / 1e9:.1f} s{stopped}{doubt}",
                Evidence("open_call_age", age, "ns", None, "open_call"),
                min(age / facts.demand_ns, 1.0),
            )
        )
    return signs


def _engine_signs(facts: Facts) -> list[_Sign]:
    """Stalls, slower tokens, preemptions and queues, as the engine tells."""
    engine = facts.engine
    if engine is None or len(engine.time) < 3:
        return []
    signs = []
    tokens = engine.counter(words.GENERATION_TOKENS)
    running = engine.gauge(words.RUNNING)
    waiting = engine.gauge(words.WAITING)
    if tokens is not None and running is not None and not tokens.is_lagging:
        is_still = (np.diff(tokens.value) <= 0) & (gauge_at(running, tokens.time[1:]) > 0)
        prompts = engine.counter(words.PROMPT_TOKENS)
        if prompts is not None and len(prompts.time) == len(tokens.time):
            is_still &= np.diff(prompts.value) <= 0
        still = intervals.union(
            intervals.make(tokens.time[:-1][is_still], tokens.time[1:][is_still])
        )
        longest = int((still[:, 1] - still[:, 0]).max()) if len(still) else 0
        if longest >= STALL_NS:
            signs.append(
                _Sign(
                    f"no token came for {longest / 1e9:.1f} s while requests were running",
                    Evidence("token_stall", longest, "ns", len(tokens.time), "engine_sample"),
                    longest / facts.demand_ns,
                )
            )
    edges = intervals.windows(int(engine.time[0]), int(engine.time[-1]), _BLOCK_NS)
    means = engine.mean(words.INTER_TOKEN, edges)
    if means is not None:
        means = means[np.isfinite(means)]
        if len(means) >= 3 and means.max() > TOKEN_RISE * np.median(means):
            ratio = float(means.max() / np.median(means))
            signs.append(
                _Sign(
                    f"the time between tokens rose to {ratio:.1f} times its median",
                    Evidence(
                        "inter_token_rise", round(ratio, 2), "ratio", len(means), "engine_sample"
                    ),
                    float((means > TOKEN_RISE * np.median(means)).mean()),
                )
            )
    if _is_blind(facts):
        signs.extend(_spread(engine))
    preempted = engine.counter(words.PREEMPTIONS)
    if preempted is not None and preempted.increase().sum() >= 3:
        n = int(preempted.increase().sum())
        signs.append(
            _Sign(
                f"{n} requests were preempted for lack of KV cache",
                Evidence("preemptions", n, "", len(preempted.time), "engine_sample"),
                0.2,
            )
        )
    if waiting is not None and len(waiting.value) > 3:
        queued = float((waiting.value > 0).mean())
        if queued > 0.5:
            signs.append(
                _Sign(
                    f"requests waited at the door in {100 * queued:.0f} % of the scrapes",
                    Evidence(
                        "scrapes_with_queue", round(100 * queued, 1), "%", len(waiting.value), ""
                    ),
                    queued,
                )
            )
    return signs


def _had_to_see(facts: Facts) -> bool:
    """Whether a recording was to hold CUDA calls: one that was made without them on purpose has
    other sources, and is judged by these.
    """
    manifest = facts.manifest
    if manifest.origin != "record":
        return False
    return manifest.source("cuda") is not None or not manifest.sources


def _is_blind(facts: Facts) -> bool:
    """Whether nothing tells what was launched or ran."""
    return facts.calls is None and not facts.activity


def _spread(engine: words.EngineSeries) -> list[_Sign]:
    """Seconds of the same recording in which tokens, first or further, took much longer than in
    others.
    """
    means = engine.mean(words.INTER_TOKEN, engine.time)
    if means is None:
        means = _gaps(engine)
    first = engine.mean(words.TTFT, engine.time)
    signs = []
    for name, values, most in (
        ("the time between tokens", means, BLIND_TOKEN_SPREAD),
        ("the time to first token", first, BLIND_FIRST_SPREAD),
    ):
        known = np.empty(0) if values is None else values[np.isfinite(values)]
        low, high = quantiles.quantile(known, 0.1), quantiles.quantile(known, 0.9)
        if len(known) < 5 or low is None or high is None or low.value <= 0:
            continue
        ratio = high.value / low.value
        if ratio < most:
            continue
        signs.append(
            _Sign(
                f"{name} differed {ratio:.1f} times between seconds",
                Evidence("spread", round(ratio, 2), "ratio", len(known), "engine_sample"),
                1 - 1 / ratio,
            )
        )
    return signs


def _gaps(engine: words.EngineSeries) -> npt.NDArray[np.float64]:
    """What a running request waited for a token in each second, by those that came, s."""
    load = load_windows(engine, 5)
    if load is None:
        return np.empty(0)
    return load.token_gaps[load.running > 0]


def _unknown(facts: Facts, ranked: list[Finding], signs: list[_Sign]) -> Finding:
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
    confidence = (0.55, 0.65, 0.75, 0.85, 0.92, 0.95)[n_sources] * facts.trust("cuda", "engine")
    if _is_blind(facts):
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
