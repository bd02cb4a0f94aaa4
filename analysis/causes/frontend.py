"""The front end is the limit: tokenising or preprocessing saturates a CPU, and the engine waits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import engine as words
from analysis import intervals
from analysis.causes.declaration import Cause, Needs
from analysis.engine import EngineSeries, Series
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
#: Share of the wanted time that it waits for a CPU, from which others keep the front end from it.
STARVED = 0.4
#: Seconds, scrapes and requests that a statement needs.
N_SECONDS = 4
N_REQUESTS = 5
#: Share of the scrapes in which no request may wait in the engine.
NO_QUEUE = 0.9
#: Requests that must be in front of the engine at a typical moment, by Little's law.
INSIDE = 1.5
INSIDE_AT_LEAST = 0.5
#: Utilisation in % from which the device is not waiting for requests.
USED_PCT = 75.0


@dataclass(frozen=True)
class _Process:
    """A process that launches nothing, second by second: CPUs that its threads wanted and had."""

    pid: int
    wanted: Floats
    running: Floats
    busiest: Floats

    @property
    def is_saturated(self) -> Flags:
        """Seconds in which one thread, or threads that take turns, were at their limit."""
        together = (self.wanted >= SATURATED) & (self.wanted <= ONE_AT_A_TIME)
        result: Flags = together | (self.busiest >= SATURATED)
        return result


@dataclass(frozen=True)
class _Held:
    """Requests before the engine: how many at a typical moment, how long each in s, and of how
    many that is told.
    """

    requests: float
    wait_s: float
    n: int


def find_frontend(facts: Facts) -> Finding:
    """Return whether requests were prepared more slowly than the engine could serve them."""
    engine = facts.engine
    held = _held(facts, engine) if engine is not None else None
    waiting = engine.gauge(words.WAITING) if engine is not None else None
    if engine is not None and waiting is not None and (held is None or held.requests < INSIDE):
        busy = _saturated(facts, waiting, held)
        if busy is not None:
            return busy
    if engine is None or held is None or waiting is None or len(engine.time) < N_SECONDS:
        return Finding(
            FRONTEND,
            Status.NOT_APPLICABLE,
            undecided_because="an engine's requests and their times to first token are not in the "
            "recording for long enough; record with --engine URL",
        )
    finding = Finding(FRONTEND, Status.NOT_FOUND, confidence=0.85)
    empty = float((waiting.value <= 0).mean())
    finding.evidence = [
        Evidence("requests_in_front_end", round(held.requests, 1), "requests", held.n, ""),
        Evidence("seconds_in_front_end", round(held.wait_s, 3), "s", held.n, "engine_sample"),
        Evidence("scrapes_without_queue", round(100 * empty), "%", len(waiting.value), ""),
    ]
    if held.requests < INSIDE or empty < NO_QUEUE:
        finding.excluded.append(
            Exclusion(
                FRONTEND,
                f"requests spent {1e3 * held.wait_s:.0f} ms before the engine, "
                f"{held.requests:.1f} at a time: none was held up there"
                if held.requests < INSIDE
                else f"requests waited in the engine in {100 * (1 - empty):.0f} % of the scrapes: "
                "it had enough of them",
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
    top = max(used, default=None)
    if top is not None:
        finding.evidence.append(
            Evidence("utilisation", round(top[0], 1), "%", top[1], "gpu_sample")
        )
        if top[0] >= USED_PCT:
            finding.excluded.append(
                Exclusion(FRONTEND, f"the device was {top[0]:.0f} % utilised all the same")
            )
            return finding
    finding.start_ns, finding.end_ns = facts.start_ns, facts.complete_ns
    finding.lost_share = 1 - top[0] / 100 if top is not None else 0.3
    finding.lost_ns = int((facts.complete_ns - facts.start_ns) * finding.lost_share)
    return _decide(facts, finding, held, is_used_known=top is not None)


def _saturated(facts: Facts, waiting: Series, held: _Held | None) -> Finding | None:
    """A saturated process beside an engine in which nobody waits and a device with room: undecided
    where the times to first token do not tell that requests are held; None for nothing such.
    """
    found = [item for item in _processes(facts) if len(item.wanted) >= N_SECONDS]
    whole = intervals.make([facts.start_ns], [facts.complete_ns])
    used = [
        mean[0]
        for device in facts.devices
        if (samples := facts.utilisation(device)) is not None
        and (mean := samples.mean(whole)) is not None
    ]
    busiest = max(found, key=lambda item: float(item.is_saturated.mean()), default=None)
    if busiest is None or float(busiest.is_saturated.mean()) < MOST or not used:
        return None
    if max(used) >= USED_PCT or float((waiting.value <= 0).mean()) < NO_QUEUE:
        return None
    name = facts.process_name(busiest.pid)
    return Finding(
        FRONTEND,
        Status.UNDECIDED,
        # Some engines count the time to first token from where the front end hands over.
        confidence=0.35 if held is not None and held.requests < INSIDE_AT_LEAST else 0.5,
        start_ns=facts.start_ns,
        end_ns=facts.complete_ns,
        where=Where(busiest.pid, process=name),
        lost_share=1 - max(used) / 100,
        lost_ns=int((1 - max(used) / 100) * facts.demand_ns),
        evidence=[
            Evidence(
                "seconds_saturated",
                round(100 * float(busiest.is_saturated.mean())),
                "%",
                len(busiest.wanted),
                "thread_second",
            ),
            Evidence("utilisation", round(max(used), 1), "%", None, "gpu_sample"),
        ],
        undecided_because=f"{name or 'a process'} (pid {busiest.pid}) keeps a CPU busy with one "
        f"thread at a time while nobody waits in the engine and the device is {max(used):.0f} % "
        "utilised, but whether requests are held there is not told",
        settled_by="the times to first token and of prefill of the engine, or a profile of that "
        "process",
    )


def _decide(facts: Facts, finding: Finding, held: _Held, *, is_used_known: bool) -> Finding:
    """Requests are held before the engine: is it the CPU of the front end that holds them?"""
    processes = [item for item in _processes(facts) if len(item.wanted) >= N_SECONDS]
    if not facts.processes:
        # The engine itself would count as a front end.
        processes = []
    busiest = max(processes, key=lambda item: float(np.median(item.wanted)), default=None)
    text = (
        f"{held.requests:.0f} requests were before the engine at a typical moment, "
        f"{held.wait_s:.1f} s each, and none waited in it"
    )
    starved = False
    if busiest is not None:
        name = facts.process_name(busiest.pid)
        finding.where = Where(busiest.pid, process=name)
        n = len(busiest.wanted)
        share = float(busiest.is_saturated.mean())
        delayed = 1 - float(busiest.running.sum()) / max(float(busiest.wanted.sum()), 1e-9)
        typical = float(np.median(busiest.wanted))
        finding.evidence += [
            Evidence("front_end_wants_cpu", round(100 * typical), "%", n, "thread_second"),
            Evidence("seconds_saturated", round(100 * share), "%", n, "thread_second"),
            Evidence("of_which_waited_for_cpu", round(100 * delayed), "%", n, "thread_second"),
        ]
        starved = delayed >= STARVED and typical >= SATURATED / 2
        text += (
            f"; {name or 'the front end'} (pid {busiest.pid}) wanted {100 * typical:.0f} % of a CPU"
        )
        if share >= MOST or starved:
            if is_used_known:
                finding.status = Status.FOUND
                finding.confidence = (0.88 if share >= MOST else 0.75) * facts.trust(
                    "engine", "thread", "nvml"
                )
                finding.summary = (
                    f"{text[0].upper()}{text[1:]}: requests are prepared more slowly than they are "
                    "served."
                )
                if starved:
                    finding.summary += f" It waited for a CPU for {100 * delayed:.0f} % of that."
                finding.excluded.append(
                    Exclusion("queue.overload", "no request waited in the engine")
                )
                return finding
            finding.undecided_because = f"{text}, but nothing tells whether the device was idle"
            finding.settled_by = "gpu_sample: tracer record --pid PID with NVML"
    finding.status, finding.confidence = Status.UNDECIDED, 0.55
    finding.undecided_because = finding.undecided_because or (
        f"{text}: what holds them there is not told by the CPU time of its processes"
    )
    finding.settled_by = finding.settled_by or (
        "a recording of the whole service (the front end's pid), or a profile of the front end"
    )
    return finding


def _held(facts: Facts, engine: EngineSeries) -> _Held | None:
    """What the time to first token tells beside prefill, or beside the requests that run and what
    the device did.
    """
    first = engine.series(words.TTFT, "count")
    if first is None or len(first.time) < N_SECONDS:
        return None
    edges = np.array([first.time[0], first.time[-1]], dtype=np.int64)
    mean = engine.mean(words.TTFT, edges)
    n = float(first.increase().sum())
    if mean is None or not np.isfinite(mean[0]) or n < N_REQUESTS:
        return None
    seconds = max((int(edges[1]) - int(edges[0])) / 1e9, 1e-9)
    prefill = engine.mean(words.PREFILL_SECONDS, edges)
    if prefill is not None and np.isfinite(prefill[0]):
        wait = max(float(mean[0]) - float(prefill[0]), 0.0)
    else:
        running = engine.gauge(words.RUNNING)
        if running is None:
            return None
        # At most the running requests were in their prefill, and at most while the device worked.
        computing = float(running.value.mean()) * seconds / n
        span = intervals.make([int(edges[0])], [int(edges[1])])
        for device in facts.devices:
            samples = facts.utilisation(device)
            used = samples.mean(span) if samples is not None else None
            if used is not None and len(facts.devices) == 1:
                computing = min(computing, used[0] / 100 * seconds / n)
        wait = max(float(mean[0]) - computing, 0.0)
    return _Held(n / seconds * wait, wait, round(n))


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
    n_seconds = (facts.end_ns - facts.start_ns) // 1_000_000_000
    rows = rows[rows["second"] < n_seconds]
    result = []
    for pid, own in rows.groupby("pid"):
        by_second = own.groupby("second").agg(
            wanted=("wanted", "sum"), running=("running_ns", "sum"), busiest=("wanted", "max")
        )
        seconds = by_second / 1e9
        running = seconds["running"].to_numpy(dtype=float)
        wanted = seconds["wanted"].to_numpy(dtype=float)
        # Threads that begin and end within a second are in the account of the process only.
        whole = _cpu_time(facts, int(pid), seconds.index.to_numpy(dtype=np.int64))
        if whole is not None:
            hidden = np.maximum(whole - running, 0.0)
            waits = np.divide(wanted, running, out=np.ones_like(wanted), where=running > 0.01)
            wanted, running = wanted + hidden * np.minimum(waits, 3.0), running + hidden
        busiest = seconds["busiest"].to_numpy(dtype=float)
        result.append(_Process(int(pid), wanted, running, busiest))
    return result


def _cpu_time(facts: Facts, pid: int, seconds: Ints) -> Floats | None:
    """CPU time of a process in some seconds of the recording, s a second."""
    if not facts.session.has("process_sample"):
        return None
    columns = ("time_ns", "pid", "cpu_user_ns", "cpu_system_ns")
    rows = facts.session.table("process_sample", columns=columns).to_pandas()
    rows = rows[rows["pid"] == pid].dropna()
    if len(rows) < N_SECONDS:
        return None
    time = rows["time_ns"].to_numpy(dtype=np.int64)
    spent = (rows["cpu_user_ns"] + rows["cpu_system_ns"]).to_numpy(dtype=float)
    begin = facts.start_ns + seconds * 1_000_000_000
    at = np.interp(np.stack((begin, begin + 1_000_000_000)), time, spent)
    result: Floats = np.diff(at, axis=0)[0] / 1e9
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
        Needs(
            ("engine_sample",),
            optional=("thread_second", "process_sample", "gpu_sample", "cuda_call"),
        ),
        find_frontend,
    ),
)
