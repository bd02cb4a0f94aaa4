"""Input that comes too slowly, as samples alone suggest it: no call and no sleep was recorded."""

from __future__ import annotations

from analysis import intervals
from analysis.causes.live_idle import INPUT
from analysis.facts import Facts
from analysis.finding import Evidence, Exclusion, Finding, Status, Where
from analysis.waits import ThreadShare, thread_shares

#: Utilisation in % under which a device has nothing to do for most of the time, and over which it
#: is used at all.
IDLE_PCT = 50.0
USED_PCT = 1.0
#: A worker that is the limit computes for this share of the time, and hardly waits for a CPU.
SATURATED = 0.9
READY = 0.05
#: Share of the time that the main thread of the process on the device sleeps.
ASLEEP = 0.5


def find_sampled_starvation(facts: Facts) -> Finding:
    """Return whether the process on an idle device sleeps while another process of the recording
    computes without a pause.

    Never more than suspected: who waited for whom is not in the recording.
    """
    finding = Finding(INPUT, Status.NOT_FOUND, confidence=0.6)
    pids = {target.pid for target in facts.manifest.targets}
    shares = thread_shares(facts.session, pids, facts.end_ns - facts.start_ns)
    users = _users(facts) & pids if shares is not None else set()
    used = _utilisation(facts)
    if facts.engine is not None or shares is None or used is None or not users:
        finding.status = Status.NOT_APPLICABLE
        finding.undecided_because = (
            "neither the calls of the process on the device were recorded nor, without an engine, "
            "its threads and the device's utilisation"
        )
        return finding
    sleepers = [pid for pid in users if _sleep(shares.get((pid, pid))) >= ASLEEP]
    saturated = sorted(
        key
        for key, item in shares.items()
        if key[0] not in users and item.running >= SATURATED and item.waiting <= READY
    )
    finding.evidence = [
        Evidence("utilisation", round(used[0], 1), "%", used[1], "gpu_sample"),
        Evidence("saturated_threads", len(saturated), "", len(shares), "thread_second"),
    ]
    if not USED_PCT <= used[0] <= IDLE_PCT or not sleepers or not saturated:
        finding.excluded.append(
            Exclusion(
                INPUT,
                f"the device was {used[0]:.0f} % utilised, {len(saturated)} threads of other "
                f"processes computed without a pause, and {len(sleepers)} processes on the device "
                "slept most of the time",
            )
        )
        return finding
    pid = sleepers[0]
    finding.where = Where(pid, pid, process=facts.process_name(pid))
    finding.status, finding.confidence = Status.UNDECIDED, 0.5
    finding.start_ns, finding.end_ns = facts.start_ns, facts.end_ns
    finding.lost_share = 1 - used[0] / 100
    worker = saturated[0]
    finding.undecided_because = (
        f"the device was {used[0]:.0f} % utilised and the process on it slept for "
        f"{100 * _sleep(shares[pid, pid]):.0f} % of the time, while process {worker[0]} computed "
        f"for {100 * shares[worker].running:.0f} % of it without waiting for a CPU, as a worker "
        "does that cannot keep up; but who waited for whom was not recorded"
    )
    finding.settled_by = "cuda_call and offcpu: tracer record --pid PID as root"
    return finding


def _users(facts: Facts) -> set[int]:
    """Processes with a context on a device, or with a thread that launches."""
    found: set[int] = set()
    if facts.gpu is not None:
        found.update(int(pid) for pid in facts.gpu.processes["pid"].unique())
    rows = facts.session.table("thread_second", columns=["start_ns", "pid", "is_launcher"])
    told = zip(rows["pid"].to_pylist(), rows["is_launcher"].to_pylist(), strict=True)
    return found | {int(pid) for pid, is_launcher in told if is_launcher}


def _utilisation(facts: Facts) -> tuple[float, int] | None:
    """Mean utilisation of the busiest device in %, and its samples."""
    whole = intervals.make([facts.start_ns], [facts.end_ns])
    samples = [facts.utilisation(device) for device in facts.devices]
    means = [mean for item in samples if item is not None and (mean := item.mean(whole))]
    return max(means, default=None)


def _sleep(share: ThreadShare | None) -> float:
    """Share of the recording in which a thread neither ran nor wanted to; 0 where not sampled."""
    return 0.0 if share is None else max(1.0 - share.wanted, 0.0)
