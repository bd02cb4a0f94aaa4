"""Stretches of a process without CUDA calls that first uses of kernels end: compilation, likely."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from analysis import intervals
from analysis.calls import FIRST_SEEN, FIRST_USE, KIND, Calls
from analysis.columns import positions
from analysis.facts import Facts
from analysis.finding import Evidence

#: A gap without CUDA calls counts from here on, and from 50 times the median gap.
GAP_NS = 250_000_000
GAP_RATIO = 50
#: Launches after a gap that are looked at, and the share of them that must be first uses.
AFTER_GAP = 10
AFTER_GAP_FIRSTS = 0.3
#: Share of a gap in which the process must have worked (computed, or waited for a child).
WORKING_SHARE = 0.5
#: Programs that compile.
COMPILERS = frozenset(
    (
        "ptxas",
        "nvcc",
        "cicc",
        "cudafe++",
        "fatbinary",
        "nvlink",
        "gcc",
        "g++",
        "cc",
        "c++",
        "cc1",
        "cc1plus",
        "clang",
        "clang++",
        "as",
        "ld",
        "collect2",
        "ninja",
        "make",
    )
)


@dataclass(frozen=True)
class Gap:
    """A stretch of one process without CUDA calls that first uses end, ns."""

    start: int
    end: int
    computing: int
    blocked: int
    n_children: int
    compilers: tuple[str, ...]
    firsts: int
    n_after: int
    has_module_load: bool

    @property
    def is_working(self) -> bool:
        """Whether the process worked in most of it, or waited for a child of its."""
        blocked = self.blocked if self.n_children else 0
        return self.computing + blocked >= WORKING_SHARE * (self.end - self.start)


def find_gaps(facts: Facts, calls: Calls, pid: int) -> list[Gap]:
    """Stretches without CUDA calls that end in first uses."""
    long, median = facts.pauses(pid)
    if median is None:
        return []
    long = long[long[:, 1] - long[:, 0] > max(GAP_NS, GAP_RATIO * median)]
    if len(long) == 0:
        return []
    is_launch = calls.is_kind("launch") & calls.of_process(pid) & ~calls.is_capture
    launches = positions(is_launch)
    firsts = np.isin(calls.first[launches], (FIRST_SEEN, FIRST_USE))
    modules = calls.start[(calls.kind == KIND["module"]) & calls.of_process(pid)]
    result = []
    for start, end in long.tolist():
        at = int(np.searchsorted(launches, np.int32(np.searchsorted(calls.start, end))))
        after = firsts[at : at + AFTER_GAP]
        if len(after) == 0 or not after[0] or after.mean() < AFTER_GAP_FIRSTS:
            continue
        away = _away(facts, pid, start, end)
        if away is None:
            continue
        # In a thinned stretch calls may be missing: there only sleep proves silence.
        computing = max(min(end, facts.complete_ns) - start, 0) - away[1]
        n_children, compilers = _children(facts, pid, start, end)
        first_launch = int(calls.start[launches[at]])
        window = (modules >= start) & (modules <= first_launch)
        result.append(
            Gap(
                start,
                end,
                max(computing, 0),
                away[0],
                n_children,
                compilers,
                int(after.sum()),
                len(after),
                bool(window.any()),
            )
        )
    return result


def _away(facts: Facts, pid: int, start: int, end: int) -> tuple[int, int] | None:
    """Time that the launching thread was off the CPU: in all, and in the complete part, ns."""
    launcher = facts.launchers[pid]
    if launcher.absences is None:
        return None
    away = intervals.clip(launcher.absences.spans, start, end)
    return intervals.total(away), intervals.total(intervals.clip(away, start, facts.complete_ns))


def _children(facts: Facts, pid: int, start: int, end: int) -> tuple[int, tuple[str, ...]]:
    """Child processes begun in a gap, and compilers among what was executed."""
    if not facts.session.has("event"):
        return 0, ()
    rows = facts.session.table(
        "event", start, end, columns=["time_ns", "kind", "pid", "parent_pid", "name"]
    )
    forks = rows.filter(pc.and_(pc.equal(rows["kind"], "fork"), pc.equal(rows["parent_pid"], pid)))
    executed = rows.filter(pc.equal(rows["kind"], "exec"))["name"].to_pylist()
    names = {name.rsplit("/", 1)[-1] for name in executed if name}
    return forks.num_rows, tuple(sorted(names & COMPILERS))


def gap_evidence(gap: Gap) -> list[Evidence]:
    """Return the numbers of a gap: its length, what filled it, what ended it."""
    return [
        Evidence("gap_without_cuda_calls", gap.end - gap.start, "ns", None, "cuda_call"),
        Evidence("gap_on_cpu", gap.computing, "ns", None, "offcpu"),
        Evidence("gap_blocked", gap.blocked, "ns", None, "offcpu"),
        Evidence("gap_child_processes", gap.n_children, "", None, "event"),
        Evidence("first_launches_after_gap", gap.firsts, "", gap.n_after, "cuda_call"),
    ]
