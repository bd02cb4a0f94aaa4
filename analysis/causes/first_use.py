"""Module load, JIT and compilation while serving: told by the first use of kernels (D1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from analysis import intervals, quantiles
from analysis.calls import FIRST_SEEN, FIRST_USE, KIND, NOT_KNOWN, Calls, block_width
from analysis.causes import launch_delay
from analysis.causes.declaration import Cause, Needs
from analysis.causes.silence import Gap, find_gaps, gap_evidence
from analysis.columns import positions
from analysis.facts import Facts
from analysis.finding import Evidence, Finding, Status, Where
from analysis.report.words import duration_text
from analysis.severity import Severity, assess

Ints = npt.NDArray[np.int64]

FIRST = "launch.first_use"

#: A launch is slow from this many times the median of repeated launches, and from half a
#: millisecond: loading a module takes milliseconds, a repeated launch 5 to 50 us.
SLOW_RATIO = 20
SLOW_NS = 500_000
#: Where the start of the process was not seen, "first seen" alone proves nothing: the slow
#: launches must coincide with first sights beyond this probability of chance.
CHANCE = 1e-6


@dataclass(frozen=True)
class _FirstUses:
    """Launches of one process split by first use.

    ``slow`` are the places of the slow ones among ``launches``, and ``excess`` is by how much each
    of them took longer than a repeated launch, ns.
    """

    pid: int
    launches: npt.NDArray[np.int32]
    is_first: npt.NDArray[np.bool_]
    is_certain: bool
    repeat_ns: float
    slow: Ints
    excess: Ints

    @property
    def is_slow_first(self) -> npt.NDArray[np.bool_]:
        """Which of the slow ones are first uses."""
        return self.is_first[self.slow]

    @property
    def slow_firsts(self) -> int:
        return int(self.is_slow_first.sum())

    @property
    def chance(self) -> float:
        """Probability that so many slow launches are first ones by chance (hypergeometric)."""
        return hypergeometric_tail(
            len(self.launches), int(self.is_first.sum()), len(self.slow), self.slow_firsts
        )

    @property
    def is_cause_of_tail(self) -> bool:
        """Whether being first is what makes launches slow."""
        n_slow = len(self.slow)
        if n_slow == 0 or 2 * self.slow_firsts < n_slow:
            return False
        return self.is_certain or self.chance < CHANCE


def hypergeometric_tail(n: int, n_marked: int, n_drawn: int, k: int) -> float:
    """Return the probability to draw at least ``k`` marked of ``n_marked`` when drawing
    ``n_drawn`` of ``n`` without replacement.
    """

    def log_choose(a: int, b: int) -> float:
        return math.lgamma(a + 1) - math.lgamma(b + 1) - math.lgamma(a - b + 1)

    total = log_choose(n, n_drawn)
    top = min(n_marked, n_drawn)
    return min(
        1.0,
        sum(
            math.exp(log_choose(n_marked, i) + log_choose(n - n_marked, n_drawn - i) - total)
            for i in range(max(k, n_drawn - (n - n_marked), 0), top + 1)
        ),
    )


def _first_uses(facts: Facts, calls: Calls, pid: int) -> _FirstUses | None:
    is_told = calls.is_kind("launch") & calls.of_process(pid) & ~calls.is_capture
    is_told &= (calls.first != NOT_KNOWN) & calls.has_return
    is_told[np.searchsorted(calls.start, facts.complete_ns) :] = False
    launches = positions(is_told)
    del is_told
    if len(launches) < 2:
        return None
    is_first = calls.first[launches] == FIRST_USE
    is_certain = bool(is_first.any())
    if not is_certain:
        is_first = calls.first[launches] == FIRST_SEEN
    lengths = calls.lengths(launches)
    long = np.flatnonzero(lengths > SLOW_NS)
    duration = calls.duration[launches[long]]
    if facts.absences is not None:
        # Time ready but not running is the scheduler's, not the first use's (D1, D2).
        at = launches[long]
        spans = intervals.make(calls.start[at], calls.ends(at))
        for index in np.unique(calls.thread[at]).tolist():
            mine = calls.thread[at] == index
            own = facts.absences.tid == calls.threads[index][1]
            ready = facts.absences.pick(own).ready_spans
            duration[mine] -= intervals.overlap_each(spans[mine], ready)
    lengths[long] = duration
    n_repeats = len(lengths) - int(np.count_nonzero(is_first))
    if n_repeats:
        lengths[is_first] = np.iinfo(lengths.dtype).max  # behind all others
    middle = quantiles.rank(n_repeats, 0.5) if n_repeats else 0
    lengths.partition(middle)
    repeat = float(lengths[middle])
    is_slow = (duration > SLOW_RATIO * repeat) & (duration > SLOW_NS)
    excess = np.maximum(duration[is_slow] - int(repeat), 0)
    return _FirstUses(pid, launches, is_first, is_certain, repeat, long[is_slow], excess)


def find_first_use(facts: Facts) -> Finding:
    """Return whether first uses of kernels, or the compilation before them, held the device up."""
    calls = facts.calls
    if calls is None:
        return Finding(FIRST, Status.NOT_APPLICABLE, undecided_because="no CUDA call was recorded")
    best: Finding | None = None
    for pid in facts.processes:
        finding = _of_process(facts, calls, pid)
        if best is None or finding.lost_ns > best.lost_ns:
            best = finding
    if best is None:
        return Finding(FIRST, Status.NOT_APPLICABLE, undecided_because="no kernel was launched")
    return best


def _of_process(facts: Facts, calls: Calls, pid: int) -> Finding:
    uses = _first_uses(facts, calls, pid)
    gaps = [gap for gap in find_gaps(facts, calls, pid) if gap.is_working]
    parts = [intervals.make([gap.start for gap in gaps], [gap.end for gap in gaps])]
    is_tail = uses is not None and uses.is_cause_of_tail
    if uses is not None and is_tail:
        rows = uses.launches[uses.slow[uses.is_slow_first]]
        excess = uses.excess[uses.is_slow_first]
        parts.append(intervals.make(calls.ends(rows) - excess, calls.ends(rows)))
    is_own = calls.of_process(pid)
    is_launch = calls.is_kind("launch", "graph_launch") & is_own
    if is_launch.any():
        loads = positions((calls.kind == KIND["module"]) & is_own)
        loads = loads[calls.start[loads] > calls.start[np.argmax(is_launch)]]
        parts.append(intervals.make(calls.start[loads], calls.ends(loads)))
    spans = intervals.union(np.concatenate(parts))
    demand = facts.demand
    if not facts.is_demand_told and gaps:
        # The process worked towards its next launch in these gaps.
        demand = intervals.union(np.concatenate((demand, parts[0])))
    severity = assess(spans, demand)
    finding = Finding(
        FIRST,
        Status.NOT_FOUND,
        confidence=0.85,
        start_ns=severity.start_ns,
        end_ns=severity.end_ns,
        where=Where(
            pid, facts.launchers[pid].tid, facts.device_of[pid], process=facts.process_name(pid)
        ),
        lost_ns=severity.lost_ns,
        lost_share=severity.share,
        spans=intervals.intersect(spans, demand),
    )
    if uses is not None:
        finding.evidence = _tail_evidence(facts, calls, uses)
    for gap in gaps:
        finding.evidence.extend(gap_evidence(gap))
    if not severity.is_material:
        return finding
    return _decide(facts, finding, uses, gaps, severity, is_tail=is_tail)


def _decide(
    facts: Facts,
    finding: Finding,
    uses: _FirstUses | None,
    gaps: list[Gap],
    severity: Severity,
    *,
    is_tail: bool,
) -> Finding:
    is_proven_gap = any(gap.compilers or gap.has_module_load for gap in gaps)
    is_certain = uses is not None and uses.is_certain
    gap_ns = sum(gap.end - gap.start for gap in gaps)
    ruled_out = launch_delay.exclusion(facts, facts.launchers[finding.where.pid or 0])
    if ruled_out is not None:
        finding.excluded.append(ruled_out)
    finding.summary = _summary(uses, gaps, severity, is_tail=is_tail)
    if not is_tail and not is_certain and not is_proven_gap:
        finding.status, finding.confidence = Status.UNDECIDED, 0.5
        finding.undecided_because = (
            "the process was working without CUDA calls before kernels that were not seen earlier, "
            "but the recording began too late to tell first uses from first sights"
        )
        finding.settled_by = "a recording from the start of the process: tracer record -- COMMAND"
        return finding
    finding.status = Status.FOUND
    confidence = 0.95 if is_certain or is_proven_gap else 0.85
    if 2 * gap_ns > severity.lost_ns and not is_proven_gap:
        confidence = min(confidence, 0.75)
    # A thinned recording is complete in the part that the statistics use.
    finding.confidence = confidence * (1.0 if facts.is_thinned else facts.trust("cuda"))
    return finding


def _summary(uses: _FirstUses | None, gaps: list[Gap], severity: Severity, *, is_tail: bool) -> str:
    parts = []
    if uses is not None and is_tail:
        word = "first use" if uses.is_certain else "first sight"
        parts.append(
            f"{uses.slow_firsts} of {len(uses.slow)} slow launches were the {word} of "
            f"their kernel (repeats take {duration_text(uses.repeat_ns)})"
        )
    if gaps:
        longest = max(gaps, key=lambda gap: gap.end - gap.start)
        seconds = (longest.end - longest.start) / 1e9
        text = f"the process made no CUDA call for {seconds:.1f} s before kernels new to it"
        if longest.n_children:
            text += (
                f": {longest.computing / 1e9:.1f} s on the CPU, then a child process and "
                f"{longest.blocked / 1e9:.1f} s blocked"
            )
        if longest.compilers:
            text += f"; {', '.join(longest.compilers)} ran: it compiled"
        elif longest.has_module_load:
            text += ", ended by a module load"
        else:
            text += " (compilation is likely, not proven)"
        parts.append(text)
    if not parts:
        parts.append("modules were loaded after the first launch")
    text = "; ".join(parts)
    return (
        f"{text[0].upper()}{text[1:]}. That is {severity.lost_ns / 1e9:.2f} s, "
        f"{100 * severity.share:.0f} % of the time with demand."
    )


def _tail_evidence(facts: Facts, calls: Calls, uses: _FirstUses) -> list[Evidence]:
    """Percentiles of the function and block of time that hold most of the excess."""
    width = block_width(facts.end_ns - facts.start_ns)
    is_any = len(uses.slow) > 0
    at = uses.launches[uses.slow] if is_any else uses.launches[:1]
    n = len(calls.functions)
    key = (calls.start[at] - facts.start_ns) // width * n + calls.function[at]
    keys, inverse = np.unique(key, return_inverse=True)
    cost = np.bincount(inverse, uses.excess if is_any else None)
    block, code = divmod(int(keys[np.argmax(cost)]), n)
    edges = facts.start_ns + np.array([block, block + 1]) * width
    cuts = np.searchsorted(calls.start, edges).astype(np.int32)
    first, last = np.searchsorted(uses.launches, cuts)
    rows = uses.launches[first:last]
    rows = rows[calls.function[rows] == code]
    name, begin = calls.functions[code], block * width / 1e9
    result = [
        Evidence("launches_looked_at", f"{name} from {begin:.0f} s to {begin + width / 1e9:.0f} s")
    ]
    for q in (0.5, 0.99):
        value = quantiles.quantile(calls.duration[rows], q)
        if value is not None:
            result.append(
                Evidence(f"launch_{value.label}", int(value.value), "ns", value.n, "cuda_call")
            )
    for label, mask in (("first", uses.is_first), ("repeated", ~uses.is_first)):
        p50 = quantiles.median(calls.lengths(uses.launches[mask]), is_scratch=True)
        if p50 is not None:
            result.append(
                Evidence(f"{label}_launch_p50", int(p50), "ns", int(mask.sum()), "cuda_call")
            )
    n_slow = len(uses.slow)
    if n_slow:
        result.append(
            Evidence("slow_launches_that_are_first", uses.slow_firsts, "", n_slow, "cuda_call")
        )
        if not uses.is_certain:
            result.append(
                Evidence("probability_by_chance", float(f"{uses.chance:.2g}"), "", n_slow, "")
            )
    return result


CAUSES = (
    Cause(
        FIRST,
        "kernels were used for the first time while serving",
        "Module load, JIT compilation, autotuning or graph capture held the host up.",
        "Slow launches are the first use of their kernel; module loads, compilers or CUDA silence "
        "with a working CPU before kernels that are new.",
        "Any scheduling cause: a first use is slow on the CPU, not off it.",
        "Record from the start of the process: tracer record -- COMMAND.",
        "Warm up every shape before serving, keep the compile cache, and load modules eagerly "
        "(CUDA_MODULE_LOADING=EAGER).",
        Needs(("cuda_call",), optional=("offcpu", "event", "engine_sample")),
        find_first_use,
    ),
)
