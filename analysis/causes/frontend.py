"""The front end is the limit: tokenising or preprocessing saturates a CPU, and the engine waits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import engine as words
from analysis import intervals, quantiles
from analysis.causes.declaration import Cause, Needs
from analysis.engine import gauge_at
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

FRONTEND = "queue.frontend"

#: Share of a second in which a thread wants a CPU when it is saturated.
SATURATED = 0.85
#: Up to this, what the threads of a process want together is that of one at a time: they share an
#: interpreter or a lock.
ONE_AT_A_TIME = 1.15
#: Share of the seconds that must be so.
MOST = 0.7
#: Seconds, and scrapes, that a statement needs.
N_SECONDS = 4
#: Share of the scrapes in which no request may wait in the engine.
NO_QUEUE = 0.9
#: Requests that must be in front of the engine at a typical moment, by Little's law.
INSIDE = 1.5
#: Utilisation in % from which the device is not waiting for requests.
USED_PCT = 75.0


@dataclass(frozen=True)
class _Process:
    """A process that launches nothing, second by second: how much of a CPU its threads wanted."""

    pid: int
    wanted: Floats
    running: Floats
    busiest: Floats
    n_threads: int

    @property
    def is_saturated(self) -> Flags:
        """Seconds in which one thread, or threads that take turns, were at their limit."""
        together = (self.wanted >= SATURATED) & (self.wanted <= ONE_AT_A_TIME)
        result: Flags = together | (self.busiest >= SATURATED)
        return result


def find_frontend(facts: Facts) -> Finding:
    """Return whether requests were prepared more slowly than the engine could serve them."""
    engine = facts.engine
    waiting = engine.gauge(words.WAITING) if engine is not None else None
    running = engine.gauge(words.RUNNING) if engine is not None else None
    if (
        engine is None
        or waiting is None
        or running is None
        or len(engine.time) < N_SECONDS
        or not facts.processes
    ):
        return Finding(
            FRONTEND,
            Status.NOT_APPLICABLE,
            undecided_because="running and waiting requests of an engine, and which process "
            "launches, are not in the recording for long enough; record with --engine URL",
        )
    finding = Finding(FRONTEND, Status.NOT_FOUND, confidence=0.85)
    processes = _processes(facts)
    busiest = max(processes, key=lambda item: float(item.is_saturated.mean()), default=None)
    if busiest is None or len(busiest.wanted) < N_SECONDS:
        finding.excluded.append(
            Exclusion(FRONTEND, "no process beside those that launch was sampled for long enough")
        )
        return finding
    share = float(busiest.is_saturated.mean())
    typical = quantiles.median(busiest.wanted) or 0.0
    n = len(busiest.wanted)
    finding.where = Where(busiest.pid, process=facts.process_name(busiest.pid))
    finding.evidence = [
        Evidence("front_end_wants_cpu", round(100 * typical), "%", n, "thread_second"),
        Evidence("seconds_saturated", round(100 * share), "%", n, "thread_second"),
    ]
    if share < MOST:
        finding.excluded.append(
            Exclusion(
                FRONTEND,
                f"the front end (pid {busiest.pid}) was saturated in {100 * share:.0f} % of the "
                "seconds",
            )
        )
        return finding
    empty = float((waiting.value <= 0).mean())
    finding.evidence.append(
        Evidence(
            "scrapes_without_queue", round(100 * empty), "%", len(waiting.value), "engine_sample"
        )
    )
    if empty < NO_QUEUE:
        finding.excluded.append(
            Exclusion(
                FRONTEND,
                f"requests waited in the engine in {100 * (1 - empty):.0f} % of the scrapes: it "
                "had enough of them",
            )
        )
        return finding
    return _decide(facts, finding, busiest, gauge_at(running, engine.time))


def _decide(facts: Facts, finding: Finding, process: _Process, running: Floats) -> Finding:
    inside = _inside(facts)
    if inside is None:
        finding.status, finding.confidence, finding.lost_share = Status.UNDECIDED, 0.3, 0.1
        finding.undecided_because = (
            f"the process {process.pid} keeps a CPU busy, but the engine does not expose the times "
            "to first token, which tell whether requests are held in front of it"
        )
        finding.settled_by = "an engine that exposes them, or what that process does (a profile)"
        return finding
    held, wait, n = inside
    finding.evidence += [
        Evidence("requests_in_front_end", round(held, 1), "requests", n, "engine_sample"),
        Evidence("seconds_in_front_end", round(wait, 3), "s", n, "engine_sample"),
    ]
    if held < INSIDE:
        finding.excluded.append(
            Exclusion(
                FRONTEND,
                f"requests spent {1e3 * wait:.0f} ms before the engine, {held:.1f} at a time: a "
                "busy process there held none up",
            )
        )
        return finding
    whole = intervals.make([facts.start_ns], [facts.complete_ns])
    used = [
        mean
        for device in facts.devices
        if (samples := facts.utilisation(device)) is not None
        and (mean := samples.mean(whole)) is not None
    ]
    name = f"{finding.where.process or 'the front end'} (pid {process.pid})"
    text = (
        f"{name} wanted {100 * float(np.median(process.wanted)):.0f} % of a CPU with one thread at "
        f"a time, {held:.0f} requests were before the engine at a typical moment and none waited "
        "in it"
    )
    if not used:
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.undecided_because = f"{text}, but nothing tells whether the device was idle"
        finding.settled_by = "gpu_sample: tracer record --pid PID with NVML"
        finding.lost_share = 0.1
        return finding
    top = max(used)
    finding.evidence += [
        Evidence("utilisation", round(top[0], 1), "%", top[1], "gpu_sample"),
        Evidence("running", round(float(running.mean()), 1), "requests", len(running), ""),
    ]
    if top[0] >= USED_PCT:
        finding.excluded.append(
            Exclusion(FRONTEND, f"the device was {top[0]:.0f} % utilised all the same")
        )
        return finding
    span = facts.complete_ns - facts.start_ns
    finding.start_ns, finding.end_ns = facts.start_ns, facts.complete_ns
    finding.lost_ns = int(span * (1 - top[0] / 100))
    finding.lost_share = 1 - top[0] / 100
    delayed = float((process.wanted - process.running).mean() / max(process.wanted.mean(), 1e-9))
    finding.evidence.append(
        Evidence("of_which_waited_for_cpu", round(100 * delayed), "%", len(process.wanted), "")
    )
    finding.status = Status.FOUND
    finding.confidence = 0.88 * facts.trust("engine", "thread", "nvml")
    finding.summary = (
        f"{text[0].upper()}{text[1:]}: requests are prepared more slowly than they are served, and "
        f"the device is {top[0]:.0f} % utilised."
    )
    if delayed >= 0.5:
        finding.summary += f" It waited for a CPU for {100 * delayed:.0f} % of that."
    finding.excluded.append(Exclusion("queue.overload", "no request waited in the engine"))
    return finding


def _inside(facts: Facts) -> tuple[float, float, int] | None:
    """Requests before the engine at a typical moment, how long each in s, and how many were seen:
    the time to first token without prefill, as no request waits in the engine.
    """
    engine = facts.engine
    assert engine is not None
    edges = np.array([engine.time[0], engine.time[-1]], dtype=np.int64)
    first = engine.mean(words.TTFT, edges)
    count = engine.series(words.TTFT, "count")
    prefill = engine.mean(words.PREFILL_SECONDS, edges)
    if first is None or count is None or not np.isfinite(first[0]):
        return None
    computing = 0.0 if prefill is None or not np.isfinite(prefill[0]) else float(prefill[0])
    n = float(count.increase().sum())
    rate = n / max((int(edges[1]) - int(edges[0])) / 1e9, 1e-9)
    wait = max(float(first[0]) - computing, 0.0)
    return rate * wait, wait, round(n)


def _processes(facts: Facts) -> list[_Process]:
    """The processes of the recorded tree that launch nothing, each second by second."""
    if not facts.session.has("thread_second"):
        return []
    columns = ("start_ns", "duration_ns", "pid", "tid", "running_ns", "waiting_ns")
    rows = facts.session.table("thread_second", columns=columns).to_pandas()
    rows = rows[~rows["pid"].isin(facts.processes)]
    if rows.empty:
        return []
    middle = rows["start_ns"] + rows["duration_ns"] // 2
    rows = rows.assign(
        second=(middle - facts.start_ns) // 1_000_000_000,
        wanted=rows["running_ns"] + rows["waiting_ns"],
    )
    # The last second is cut short by the end.
    rows = rows[rows["second"] < (facts.end_ns - facts.start_ns) // 1_000_000_000]
    result = []
    for pid, own in rows.groupby("pid"):
        by_second = own.groupby("second").agg(
            wanted=("wanted", "sum"), running=("running_ns", "sum"), busiest=("wanted", "max")
        )
        seconds = by_second / 1e9
        result.append(
            _Process(
                int(pid),
                seconds["wanted"].to_numpy(dtype=float),
                seconds["running"].to_numpy(dtype=float),
                seconds["busiest"].to_numpy(dtype=float),
                int(own["tid"].nunique()),
            )
        )
    return result


CAUSES = (
    Cause(
        FRONTEND,
        "the front end is the limit",
        "Tokenising or preprocessing saturates one thread.",
        "A process in front of the engine wants one CPU all the time, one thread at a time, and "
        "requests take long to their first token though none waits in the engine and the device "
        "has room.",
        "Overload of the engine: there requests wait in it; a process that polls.",
        "Record the whole service with --engine URL: tracer record --pid PID of the front end.",
        "Run more front-end workers, or prepare requests in a pool of processes.",
        Needs(("engine_sample", "thread_second"), optional=("gpu_sample", "cuda_call")),
        find_frontend,
    ),
)
