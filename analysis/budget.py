"""The budget: where each second of each device went, in shares that add up to one.

Two axes. The *state* says what the device was doing: ``idle``, ``compute``, ``copy``,
``collective``, ``other_process``, ``hung`` or ``unknown``. The *reason* says why, by what the
launching thread was doing and what was found. Both are exclusive; where two hold, the first in
:data:`STATES` and :data:`REASONS` wins. Lengths are integers in ns and add up to the window.

Without device times, time in which work was outstanding and nothing tells whether it had ended
is ``unknown``, unless the utilisation of the device bounds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis import intervals
from analysis.facts import Facts
from analysis.finding import Finding, Status

Ints = npt.NDArray[np.int64]

#: States of a device, in order of precedence.
STATES = ("hung", "other_process", "compute", "collective", "copy", "idle", "unknown")
#: Reasons, in order of precedence. The first ones come from findings, then from the engine, then
#: from what the launching thread was doing.
REASONS = (
    "hung",
    "other_process",
    "no_demand",
    "throttled",
    "cpu_delay",
    "first_use",
    "prefill",
    "other_rank",
    "work",
    "sync",
    "input",
    "late_launch",
    "interpreter",
    "collector",
    "asleep",
    "launching",
    "calling",
    "host",
    "unknown",
)

#: Findings whose time is a reason of the budget.
_FOUND_REASONS = {
    "hang.kernel": "hung",
    "contention.cross_process": "other_process",
    "launch.first_use": "first_use",
    "launch.gil": "interpreter",
    "launch.gc_pause": "collector",
    "prefill.hogging": "prefill",
}

#: Found causes whose time device times tell on each device, and the reason that they are.
_TIMED_REASONS = {
    "host.sync_stall": "sync",
    "host.input_starvation": "input",
    "launch.host_bound": "late_launch",
}

#: States of the launching thread (analysis/threads.py) and the reasons that they are.
_THREAD_REASONS = {
    "ready": "cpu_delay",
    "blocked": "asleep",
    "asleep": "asleep",
    "waiting": "calling",
    "working": "working",
}
#: What a working thread did (analysis/threads.py) and the reasons that it is.
_WORK_REASONS = {"launching": "launching", "calling": "calling", "computing": "host"}
#: Reasons as told apart by intervals: ``working`` is split further by the calls in it.
_COARSE = (*REASONS[: REASONS.index("launching")], "calling", "working", "unknown")


@dataclass(frozen=True)
class Budget:
    """The budget of one device.

    Attributes:
        device: GPU index, None where the recording does not tell.
        edges: ``(n + 1,)`` window edges, ns.
        spent: Length in ns by (state, reason), each ``(n,)``; together they fill the windows.
        is_timed: Whether it rests on device times rather than on the host's calls.
        basis: Tables that tell when the device worked: ``gpu_activity``, ``cuda_call`` and
            ``gpu_sample``, those of them that were used.
    """

    device: int | None
    edges: Ints
    spent: dict[tuple[str, str], Ints]
    is_timed: bool
    basis: tuple[str, ...]

    def totals(self) -> dict[tuple[str, str], float]:
        """Return the share of the whole recording by (state, reason); they add up to 1."""
        length = max(int(self.edges[-1] - self.edges[0]), 1)
        return {key: int(values.sum()) / length for key, values in self.spent.items()}

    def by_state(self) -> dict[str, float]:
        """Return the share of the whole recording by state; they add up to 1."""
        result = dict.fromkeys(STATES, 0.0)
        for (state, _reason), share in self.totals().items():
            result[state] += share
        return result

    def windows(self) -> list[dict[str, Any]]:
        """Return one JSON-able entry per window: its shares by state and reason, and lengths."""
        keys = [key for key, values in self.spent.items() if values.any()]
        table = np.stack([self.spent[key] for key in keys]) if keys else np.empty((0, 0), int)
        lengths = np.diff(self.edges)
        result = []
        for index, length in enumerate(lengths.tolist()):
            shares = [
                {
                    "state": keys[row][0],
                    "reason": keys[row][1],
                    "ns": int(table[row, index]),
                    "share": int(table[row, index]) / length,
                }
                for row in np.flatnonzero(table[:, index]).tolist()
            ]
            result.append(
                {
                    "device": self.device,
                    "start_ns": int(self.edges[index]),
                    "end_ns": int(self.edges[index + 1]),
                    "shares": shares,
                }
            )
        return result


def compute_budgets(facts: Facts, findings: list[Finding], window_ns: int) -> list[Budget]:
    """Return the budget of every device of a session.

    Args:
        facts: The session's facts.
        findings: What was found; found causes become reasons.
        window_ns: Length of a window, ns.

    Raises:
        ValueError: the window is not positive.
    """
    edges = intervals.windows(facts.start_ns, facts.end_ns, window_ns)
    if len(edges) < 2:
        return []
    return [_budget(facts, findings, device, edges) for device in facts.devices]


def _budget(facts: Facts, findings: list[Finding], device: int | None, edges: Ints) -> Budget:
    states = _states(facts, findings, device)
    reasons = _reasons(facts, findings, device, states)
    spent: dict[tuple[str, str], Ints] = {}
    for state in STATES:
        if len(states[state]) == 0:
            continue
        for reason in _COARSE:
            both = intervals.intersect(states[state], reasons[reason])
            if len(both) == 0:
                continue
            for fine, length in _split(facts, device, reason, both, edges).items():
                former = spent.get((state, fine))
                spent[state, fine] = length if former is None else former + length
    is_timed = device is not None and device in facts.activity
    basis = ["gpu_activity"] if is_timed else []
    if device is None or not is_timed or len(facts.uncovered(device)):
        if facts.pids_on(device):
            basis.append("cuda_call")
        if _bound(facts, device, edges, spent):
            basis.append("gpu_sample")
    return Budget(device, edges, spent, is_timed, tuple(basis))


def _split(
    facts: Facts, device: int | None, reason: str, spans: Ints, edges: Ints
) -> dict[str, Ints]:
    """Length per window of the reasons that a coarse one stands for."""
    launcher = facts.main_launcher(device)
    if reason != "working" or launcher is None:
        return {reason: intervals.coverage(spans, edges)}
    parts = {_WORK_REASONS[name]: length for name, length in launcher.work(spans, edges).items()}
    if launcher.absences is None:
        # Without the scheduler, time between calls may be computing or sleep.
        parts["unknown"] = parts.pop("host")
    return {name: length for name, length in parts.items() if length.any()}


def _exclusive(raw: dict[str, Ints], order: tuple[str, ...], everything: Ints) -> dict[str, Ints]:
    """Give each instant to the first name that holds; the last name gets the rest."""
    result: dict[str, Ints] = {}
    left = everything
    for name in order[:-1]:
        own = intervals.intersect(raw.get(name, intervals.EMPTY), left)
        result[name] = own
        if len(own):
            left = intervals.subtract(left, own)
    result[order[-1]] = left
    return result


def _states(facts: Facts, findings: list[Finding], device: int | None) -> dict[str, Ints]:
    everything = intervals.make([facts.start_ns], [facts.end_ns])
    raw: dict[str, Ints] = {"hung": _found(findings, "hang.kernel", device)}
    if device is not None and device in facts.activity:
        raw.update(facts.activity[device])
        raw["idle"] = everything
        missing = facts.uncovered(device)
        if len(missing):
            told = intervals.intersect(facts.busy(device), missing)
            raw["compute"] = intervals.union(np.concatenate((raw["compute"], told)))
            raw["idle"] = facts.idle(device)
    else:
        raw["compute"] = facts.busy(device)
        raw["idle"] = facts.idle(device)
    return _exclusive(raw, STATES, everything)


def _reasons(
    facts: Facts, findings: list[Finding], device: int | None, states: dict[str, Ints]
) -> dict[str, Ints]:
    everything = intervals.make([facts.start_ns], [facts.end_ns])
    raw: dict[str, Ints] = {}
    for cause, reason in _FOUND_REASONS.items():
        raw[reason] = _found(findings, cause, device)
    if facts.is_demand_told or not facts.processes:
        complete = intervals.make([facts.start_ns], [facts.complete_ns])
        quiet = intervals.subtract(complete, facts.demand)
        raw["no_demand"] = quiet if facts.is_demand_told else intervals.EMPTY
    busy = [states[name] for name in ("compute", "collective", "copy")]
    raw["work"] = intervals.union(np.concatenate(busy))
    # What the device does is work whoever asked for it.
    raw["no_demand"] = intervals.subtract(raw.get("no_demand", intervals.EMPTY), raw["work"])
    launcher = facts.main_launcher(device)
    if launcher is not None:
        for state, reason in _THREAD_REASONS.items():
            own = launcher.states[state]
            raw[reason] = intervals.union(np.concatenate((raw.get(reason, intervals.EMPTY), own)))
        # After the complete part of a thinned recording only the scheduler is to be trusted.
        for name in ("calling", "working"):
            raw[name] = intervals.clip(raw[name], facts.start_ns, facts.complete_ns)
    found = {item.cause: item for item in findings if item.status is Status.FOUND}
    if "launch.cgroup_throttle" in found:
        spans = found["launch.cgroup_throttle"].spans
        raw["throttled"] = intervals.intersect(raw.get("cpu_delay", intervals.EMPTY), spans)
    straggler = found.get("collective.straggler")
    if straggler is not None and straggler.where.device != device:
        raw["other_rank"] = intervals.intersect(states["collective"], straggler.spans)
    for item in facts.timed:
        if item.activities.device == device:
            for cause, reason in _TIMED_REASONS.items():
                if cause in found:
                    own = item.spans(reason)
                    raw[reason] = np.concatenate((raw.get(reason, intervals.EMPTY), own))
    raw["cpu_delay"] = intervals.subtract(raw.get("cpu_delay", intervals.EMPTY), raw["work"])
    return _exclusive(raw, _COARSE, everything)


def _found(findings: list[Finding], cause: str, device: int | None) -> Ints:
    """Intervals that a found cause takes on a device."""
    spans = [
        finding.spans
        for finding in findings
        if finding.cause == cause
        and finding.status is Status.FOUND
        and finding.where.device in (None, device)
    ]
    return intervals.union(np.concatenate(spans)) if spans else intervals.EMPTY


def _bound(
    facts: Facts, device: int | None, edges: Ints, spent: dict[tuple[str, str], Ints]
) -> bool:
    """Split undetermined time by the utilisation of the device, window by window, in place, and
    return whether the utilisation told of any.

    Utilisation says how much of the window some kernel ran. What of it is not accounted as busy
    already lies in the undetermined time: that much of it is moved to ``compute``, the rest to
    ``idle``, each reason in proportion.
    """
    samples = facts.utilisation(device)
    unknown = [key for key in spent if key[0] == "unknown"]
    if samples is None or not unknown:
        return False
    share = samples.per_window(edges) / 100
    length = np.diff(edges)
    open_ns = np.sum([spent[key] for key in unknown], axis=0)
    busy = np.zeros(len(length), dtype=np.int64)
    for (state, _reason), values in spent.items():
        if state not in ("unknown", "idle"):
            busy += values
    is_known = np.isfinite(share)
    wanted = np.clip(np.where(is_known, share, 0.0) * length - busy, 0, open_ns)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(open_ns > 0, wanted / np.maximum(open_ns, 1), 0.0)
    nothing = np.zeros(len(length), dtype=np.int64)
    for state, reason in unknown:
        values = spent.pop((state, reason))
        told = np.where(is_known, values, 0)
        active = np.minimum(np.round(told * factor).astype(np.int64), told)
        work = spent.get(("compute", "work"), nothing)
        spent["compute", "work"] = work + active
        spent["idle", reason] = spent.get(("idle", reason), nothing) + told - active
        if (values - told).any():
            spent["unknown", reason] = values - told
    return bool((is_known & (open_ns > 0)).any())
