"""A kernel that never ends: demand, no progress, a call entered and not returned (D4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis import engine as words
from analysis import intervals
from analysis.causes.declaration import Cause, Needs
from analysis.engine import gauge_at
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.report.words import length_text
from analysis.stuck import OPEN_NS, WAITS, is_still_open, ranks, threshold

HANG = "hang.kernel"

#: A kernel that never ends keeps the device fully utilised: a little less for the window in which
#: it began.
HIGH_PCT = 90.0
LOW_PCT = 50.0


def find_hang(facts: Facts) -> Finding:
    """Return whether a kernel hangs at the end of the recording."""
    opened = [
        row
        for row in facts.open_calls
        if row["kind"] in WAITS and not row["is_doubtful"] and is_still_open(facts, row)
    ]
    if opened:
        found = _with_open_call(facts, _likeliest(facts, opened))
        if found.status is not Status.NOT_FOUND:
            return found
        before = _late_attach(facts)
        return before if before.status is Status.FOUND else found
    doubtful = [row for row in facts.open_calls if row["is_doubtful"]]
    finding = _late_attach(facts)
    if doubtful and finding.status is not Status.FOUND:
        finding.evidence.append(
            Evidence("doubtful_open_calls", len(doubtful), "", None, "open_call")
        )
    return finding


def _likeliest(facts: Facts, opened: list[dict[str, Any]]) -> dict[str, Any]:
    """The open call to look at: of a rank that waits for no collective, else the oldest."""
    waits = {rank.pid for rank in ranks(facts) if rank.opened is not None and rank.is_collective}
    return min(opened, key=lambda row: (int(row["pid"]) in waits, int(row["start_ns"])))


def _with_open_call(facts: Facts, row: dict[str, Any]) -> Finding:
    pid, tid, start = int(row["pid"]), int(row["tid"]), int(row["start_ns"])
    device = facts.device_of.get(pid, facts.devices[0] if len(facts.devices) == 1 else None)
    age = facts.end_ns - start
    limit = threshold(facts, pid)
    span = intervals.make([start], [facts.end_ns])
    finding = Finding(
        HANG,
        Status.NOT_FOUND,
        confidence=0.8,
        start_ns=start,
        end_ns=facts.end_ns,
        where=Where(pid, tid, device, process=facts.process_name(pid)),
        spans=span,
        evidence=[
            Evidence(f"open_call {row['function']}", age, "ns", None, "open_call"),
            Evidence("longest_usual_wait_times_ten", limit, "ns", None, "cuda_call"),
        ],
    )
    if age < limit:
        finding.excluded.append(
            Exclusion(HANG, f"the open {row['function']} is only {length_text(age)} old")
        )
        return finding
    finding.lost_ns = age
    finding.lost_share = min(age / facts.demand_ns, 1.0)
    last = _last_kernel(facts, pid, start)
    if last is not None:
        finding.evidence.append(last)
    n_launches = _launches_since(facts, pid, start + limit // 2)
    finding.evidence.append(Evidence("launches_since", n_launches, "", None, "cuda_call"))
    tokens = _tokens_since(facts, start + limit // 2)
    if tokens is not None:
        finding.evidence.append(Evidence("tokens_since", tokens[0], "", tokens[1], "engine_sample"))
    if n_launches or (tokens is not None and tokens[0] > 0):
        finding.excluded.append(
            Exclusion(HANG, f"it progressed since: {n_launches} launches by process {pid}")
        )
        finding.lost_ns, finding.lost_share = 0, 0.0
        return finding
    return _by_utilisation(facts, finding, start, row)


def _by_utilisation(facts: Facts, finding: Finding, start: int, row: dict[str, Any]) -> Finding:
    """The last link: a kernel that never ends keeps the device utilised."""
    device = finding.where.device
    samples = facts.utilisation(device)
    # The utilisation is an average over up to a second: leave the first one out.
    mean = None
    if samples is not None:
        mean = samples.mean(intervals.make([start + 1_000_000_000], [facts.end_ns]))
    name = finding.where.process or "process"
    text = (
        f"Thread {finding.where.tid} of {name} (pid {finding.where.pid}) entered "
        f"{row['function']} {(facts.end_ns - start) / 1e9:.1f} s before the end and has not "
        "returned; nothing was launched and no token came since"
    )
    if mean is None:
        finding.status, finding.confidence = Status.UNDECIDED, 0.6
        finding.summary = text + "."
        finding.undecided_because = (
            "without the utilisation a kernel that never ends cannot be told from an event that "
            "never comes"
        )
        finding.settled_by = "gpu_sample: tracer record --pid PID with NVML"
        return finding
    finding.evidence.append(
        Evidence("utilisation_since", round(mean[0], 1), "%", mean[1], "gpu_sample")
    )
    others = [
        call
        for call in facts.open_calls
        if call["pid"] != finding.where.pid and is_still_open(facts, call)
    ]
    if mean[0] < LOW_PCT:
        finding.lost_ns, finding.lost_share, finding.spans = 0, 0.0, intervals.EMPTY
        finding.excluded.append(
            Exclusion(
                HANG,
                f"{row['function']} has not returned, but the device is {mean[0]:.0f} % utilised: "
                "no kernel is running",
                Evidence("utilisation_since", round(mean[0], 1), "%", mean[1], "gpu_sample"),
            )
        )
        return finding
    alone = _alone(facts, finding) if others else None
    own = [rank for rank in ranks(facts) if rank.pid == finding.where.pid]
    if len(facts.devices) > 1 and own and own[0].is_collective:
        finding.status, finding.confidence = Status.UNDECIDED, 0.4
        finding.undecided_because = "its last launch is a collective: it may wait for another rank"
        finding.settled_by = "the last launch of every rank"
        finding.summary = text + "."
        return finding
    if alone is not None:
        finding.excluded.append(alone)
    elif others and len({facts.device_of.get(int(call["pid"])) for call in others}) > 1:
        finding.status, finding.confidence = Status.UNDECIDED, 0.6
        finding.undecided_because = "several devices stand still: it may be a collective"
        finding.settled_by = "the last launch of every rank"
        finding.summary = text + "."
        return finding
    finding.status = Status.FOUND if mean[0] >= HIGH_PCT else Status.UNDECIDED
    finding.confidence = (0.95 if mean[0] >= HIGH_PCT else 0.6) * facts.trust("cuda")
    if finding.status is Status.UNDECIDED:
        finding.undecided_because = f"the device is only {mean[0]:.0f} % utilised"
        finding.settled_by = "gpu_sample over a longer time"
    finding.summary = text + f"; the device is {mean[0]:.0f} % utilised."
    finding.excluded.extend(
        [
            Exclusion("no_demand", "the process waits inside a CUDA call"),
            Exclusion(
                "prefill.hogging", "no launch and no token for longer than any wait before it"
            ),
        ]
    )
    if len(facts.devices) == 1:
        finding.excluded.append(Exclusion("hang.collective", "one device only"))
    return finding


def _alone(facts: Facts, finding: Finding) -> Exclusion | None:
    """Why it is no collective that hangs: all other ranks wait in one, and this one does not."""
    found = ranks(facts)
    own = [rank for rank in found if rank.pid == finding.where.pid]
    others = [rank for rank in found if rank.pid != finding.where.pid and rank.opened is not None]
    if not own or not others or own[0].is_collective or own[0].kernel is None:
        return None
    kernels = {rank.kernel for rank in others}
    if len(kernels) > 1 or own[0].kernel in kernels or not others[0].is_collective:
        return None
    return Exclusion(
        "hang.collective",
        f"{len(others)} other ranks wait in a collective for this one, which launched another "
        "kernel last",
    )


def _last_kernel(facts: Facts, pid: int, time_ns: int) -> Evidence | None:
    """The kernel that the process launched last before it waited, by name where known."""
    if not facts.session.has("cuda_call"):
        return None
    columns = ["start_ns", "pid", "kind", "depth", "kernel"]
    rows = facts.session.table("cuda_call", time_ns - 60 * 10**9, time_ns, columns)
    is_launch = pc.is_in(rows["kind"], value_set=pa.array(["launch", "graph_launch"]))
    is_own = pc.and_(pc.equal(rows["pid"], pid), pc.equal(rows["depth"], 0))
    rows = rows.filter(pc.and_(pc.and_(is_launch, is_own), pc.is_valid(rows["kernel"])))
    if rows.num_rows == 0:
        return None
    last = rows.slice(rows.num_rows - 1).to_pylist()[0]
    name = f"{'graph' if last['kind'] == 'graph_launch' else 'kernel'} {last['kernel']:#x}"
    if facts.session.has("kernel_function"):
        known = facts.session.table("kernel_function", columns=["time_ns", "pid", "kernel", "name"])
        is_it = pc.and_(pc.equal(known["pid"], pid), pc.equal(known["kernel"], last["kernel"]))
        names = [word for word in known.filter(is_it)["name"].to_pylist() if word]
        name = names[-1] if names else name
    return Evidence("last_launched", name, "", None, "cuda_call")


def _launches_since(facts: Facts, pid: int, time_ns: int) -> int:
    calls = facts.calls
    if calls is None:
        return 0
    is_late = calls.is_submission & calls.of_process(pid) & (calls.start > time_ns)
    return int(is_late.sum())


def _tokens_since(facts: Facts, time_ns: int) -> tuple[int, int] | None:
    """Tokens that the engine counted since, prompts included, and the scrapes behind it."""
    engine = facts.engine
    if engine is None:
        return None
    total, n = 0.0, 0
    for name in (words.GENERATION_TOKENS, words.PROMPT_TOKENS):
        series = engine.counter(name)
        if series is None:
            continue
        late = series.time > time_ns
        if late.sum() >= 2:
            total += float(series.increase()[late][1:].sum())
            n = max(n, int(late.sum()))
    return (int(total), n) if n else None


def _late_attach(facts: Facts) -> Finding:
    """A hang that began before the recording: no launch, frozen counters, full utilisation."""
    finding = Finding(HANG, Status.NOT_FOUND, confidence=0.8)
    calls = facts.calls
    n_launches = 0 if calls is None else int(calls.is_submission.sum())
    span = facts.end_ns - facts.start_ns
    if n_launches or span < OPEN_NS:
        return finding
    finding.where = Where(device=facts.devices[0] if len(facts.devices) == 1 else None)
    samples = facts.utilisation(finding.where.device)
    whole = intervals.make([facts.start_ns], [facts.end_ns])
    mean = samples.mean(whole) if samples is not None else None
    if mean is None or mean[0] < HIGH_PCT:
        return finding
    frozen = _frozen(facts)
    if frozen is not None and frozen[2] > 0:
        finding.excluded.append(Exclusion(HANG, f"{frozen[2]} tokens came meanwhile"))
        return finding
    finding.start_ns, finding.end_ns, finding.spans = facts.start_ns, facts.end_ns, whole
    finding.evidence = [
        Evidence("launches", 0, "", None, "cuda_call"),
        Evidence("utilisation", round(mean[0], 1), "%", mean[1], "gpu_sample"),
    ]
    finding.lost_ns, finding.lost_share = span, 1.0
    was_probed = any(item.n_hits is not None for item in facts.manifest.functions)
    finding.summary = (
        f"The device was {mean[0]:.0f} % utilised for {span / 1e9:.0f} s and the process launched "
        "nothing"
    )
    if frozen is None or not was_probed:
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.summary += "."
        finding.undecided_because = (
            "the hang would have begun before the recording, and nothing tells whether requests "
            "were running"
            if frozen is None
            else "no CUDA function was probed"
        )
        finding.settled_by = "the engine's metrics (--engine URL) and the threads' kernel stacks"
        return finding
    running, n_scrapes, tokens = frozen
    finding.evidence.append(Evidence("requests_running", running, "", n_scrapes, "engine_sample"))
    finding.evidence.append(Evidence("tokens", tokens, "", n_scrapes, "engine_sample"))
    if running <= 0 or tokens > 0:
        finding.status = Status.NOT_FOUND
        finding.lost_ns, finding.lost_share = 0, 0.0
        return finding
    finding.evidence.extend(_thread_states(facts))
    finding.status, finding.confidence = Status.FOUND, 0.8 * facts.trust("engine", "nvml")
    finding.summary += (
        f", while {running:.0f} requests were running and no token came: a kernel hung before the "
        "recording began."
    )
    return finding


def _frozen(facts: Facts) -> tuple[float, int, int] | None:
    """Requests running (least over the scrapes), scrapes, tokens counted in the recording."""
    engine = facts.engine
    running = engine.gauge(words.RUNNING) if engine is not None else None
    tokens = _tokens_since(facts, facts.start_ns - 1)
    if engine is None or running is None or tokens is None:
        return None
    values = gauge_at(running, engine.time)
    return float(np.min(values)), len(values), tokens[0]


def _thread_states(facts: Facts) -> list[Evidence]:
    """How the busiest thread of the process spent the recording: spinning or asleep (D4)."""
    if not facts.session.has("thread_second"):
        return []
    rows = facts.session.table("thread_second", columns=["start_ns", "tid", "running_ns"])
    if rows.num_rows == 0:
        return []
    sums = rows.group_by("tid").aggregate([("running_ns", "sum")])
    top = int(np.max(sums["running_ns_sum"].to_numpy()))
    share = 100 * top / max(facts.end_ns - facts.start_ns, 1)
    return [Evidence("busiest_thread_on_cpu", round(share, 1), "%", None, "thread_second")]


CAUSES = (
    Cause(
        HANG,
        "a kernel does not end",
        "A kernel never finishes and everything behind it waits.",
        "Demand, no launch, token or step for longer than ever before, a call entered and not "
        "returned, high utilisation; power is a support only against this machine's own level.",
        "Idle, a long prefill, slow progress, several ranks in a collective.",
        "Record NVML and the engine's metrics: tracer record --pid PID --engine URL.",
        "Take the process's stacks and the last kernel, then restart it; look for a fix or a "
        "switch of the library that launched the kernel.",
        Needs(
            any_of=(("open_call", "gpu_sample"),),
            optional=("cuda_call", "engine_sample", "thread_second"),
        ),
        find_hang,
    ),
)
