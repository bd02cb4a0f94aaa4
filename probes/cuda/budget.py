"""What to leave out so that probing costs the target no more than a share of its CPU time.

Pure decisions over measured numbers: what a probe costs, how often each function is called, how
much may be spent. :mod:`probes.cuda.shedding` attaches and detaches accordingly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SECOND_NS = 1_000_000_000
#: A call shorter than this costs the target little by itself: its probes are what it notices.
CHEAP_NS = 20_000
#: A driver function is covered where at least this share of its calls lies inside runtime calls.
COVERED_SHARE = 0.98
#: Part of the budget that the probes may take that stay where others are attached in slices.
STEADY_PART = 0.5
#: Weight that what was seen has a second later, against what is new.
DECAY = 0.5


@dataclass(frozen=True)
class ProbeCost:
    """CPU time in ns that a probe adds to the caller, at entry and at return."""

    entry_ns: float
    return_ns: float

    @property
    def pair_ns(self) -> float:
        """Both."""
        return self.entry_ns + self.return_ns


@dataclass(frozen=True)
class Plan:
    """What is left out: exported names of functions.

    Attributes:
        entry_only: Their returns are not probed.
        covered: Driver functions that are called inside runtime calls; probed in slices only.
        sliced: Too frequent; probed in slices only.
    """

    entry_only: frozenset[str] = frozenset()
    covered: frozenset[str] = frozenset()
    sliced: frozenset[str] = frozenset()

    @property
    def in_slices(self) -> frozenset[str]:
        """All that is probed in slices only."""
        return self.covered | self.sliced

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left out."""
        return not (self.entry_only or self.covered or self.sliced)


#: Everything is recorded.
NOTHING_SHED = Plan()


@dataclass(frozen=True)
class Usage:
    """How one function is called.

    Attributes:
        rate: Calls per second.
        cost: Of its probes.
        duration_ns: Mean length of a call, None where no return was seen.
        is_driver: It belongs to the driver.
        is_leaf: No other probed function is called inside it.
        nested_share: Share of its calls that lie inside another probed call.
    """

    rate: float
    cost: ProbeCost
    duration_ns: float | None
    is_driver: bool
    is_leaf: bool
    nested_share: float

    @property
    def is_cheap(self) -> bool:
        """Whether its calls are short and call nothing that is probed."""
        return self.is_leaf and self.duration_ns is not None and self.duration_ns < CHEAP_NS

    @property
    def is_covered(self) -> bool:
        """Whether the runtime tells of its calls too."""
        return self.is_driver and self.nested_share >= COVERED_SHARE


def steady_ns(usages: Mapping[str, Usage], plan: Plan) -> float:
    """Return the CPU time in ns per second of the probes that are always attached."""
    total = 0.0
    for name, usage in usages.items():
        if name not in plan.in_slices:
            only_entry = name in plan.entry_only
            total += usage.rate * (usage.cost.entry_ns if only_entry else usage.cost.pair_ns)
    return total


def slice_ns(usages: Mapping[str, Usage], plan: Plan) -> float:
    """Return the CPU time in ns per second of the probes of slices while they are attached."""
    return sum(
        usage.rate * usage.cost.pair_ns for name, usage in usages.items() if name in plan.in_slices
    )


def make_plan(usages: Mapping[str, Usage], budget_ns: float) -> Plan:
    """Return the least that must be left out, in the declared order.

    Returns of cheap calls go first, then driver calls that a runtime call tells of too, then the
    most expensive functions are probed in slices of time.

    Args:
        usages: Functions by exported name.
        budget_ns: CPU time in ns that may be added per second.
    """
    total = steady_ns(usages, NOTHING_SHED)
    if total <= budget_ns:
        return NOTHING_SHED
    entry_only: set[str] = set()
    cheap = {name: one.rate * one.cost.return_ns for name, one in usages.items() if one.is_cheap}
    for name in _by_cost(cheap):
        entry_only.add(name)
        total -= cheap[name]
        if total <= budget_ns:
            return Plan(frozenset(entry_only))
    covered: set[str] = set()

    def now_ns(name: str) -> float:
        cost = usages[name].cost
        return usages[name].rate * (cost.entry_ns if name in entry_only else cost.pair_ns)

    for name in _by_cost({name: now_ns(name) for name, one in usages.items() if one.is_covered}):
        covered.add(name)
        total -= now_ns(name)
        if total <= budget_ns:
            return Plan(frozenset(entry_only - covered), frozenset(covered))
    sliced: set[str] = set()
    for name in _by_cost({name: now_ns(name) for name in usages if name not in covered}):
        if total <= STEADY_PART * budget_ns:
            break
        sliced.add(name)
        total -= now_ns(name)
    gone = covered | sliced
    plan = Plan(frozenset(), frozenset(covered), frozenset(sliced))
    if steady_ns(usages, plan) <= STEADY_PART * budget_ns:
        return plan
    return Plan(frozenset(entry_only - gone), frozenset(covered), frozenset(sliced))


def _by_cost(costs: Mapping[str, float]) -> list[str]:
    """Names of what costs anything, the dearest first."""
    return sorted(
        (name for name in costs if costs[name] > 0), key=lambda name: (-costs[name], name)
    )


@dataclass
class Purse:
    """CPU time that may be spent, in ns: fills with the budget, is emptied by hits.

    Attributes:
        share: Budget as a share of the CPU time of the launching threads.
        cpu_share: CPU time of these threads per time, e.g. 1.5 for one and a half busy threads.
        left_ns: What is in it; negative is debt, which is paid before anything more is spent.
        spent_ns: Everything spent so far.
        earned_ns: Everything that might have been spent so far.
    """

    share: float
    cpu_share: float = 1.0
    left_ns: float = 0.0
    spent_ns: float = 0.0
    earned_ns: float = 0.0
    _last_ns: int | None = field(default=None, repr=False)

    @property
    def rate_ns(self) -> float:
        """What may be spent per second."""
        return self.share * self.cpu_share * SECOND_NS

    @property
    def room_ns(self) -> float:
        """The most that is saved up: what one second allows."""
        return self.rate_ns

    def turn(self, now_ns: int, spent_ns: float) -> None:
        """Take over what was spent since the last turn."""
        if self._last_ns is None:
            self._last_ns = now_ns
            self.left_ns = self.room_ns
        earned = self.rate_ns * (now_ns - self._last_ns) / SECOND_NS
        self._last_ns = now_ns
        self.earned_ns += earned
        self.spent_ns += spent_ns
        self.left_ns = min(self.left_ns + earned, self.room_ns) - spent_ns
