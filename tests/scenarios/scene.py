"""A case as drawn: when its phases are, what its report gives, and the values of a moment."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Scene:
    """A case as drawn: its phases in time, and the means to draw from.

    Attributes:
        phases: (start ns, end ns, description), one after another.
        report: What the report gives.
        period_ns: Time between two samples.
        noise: Relative noise.
        rng: Source of all randomness.
        service: As in the case.
    """

    phases: Sequence[tuple[int, int, Mapping[str, Any]]]
    report: Sequence[str]
    period_ns: int
    noise: float
    rng: random.Random
    service: Mapping[str, Any]

    @property
    def start(self) -> int:
        """Begin of the recording."""
        return self.phases[0][0]

    @property
    def end(self) -> int:
        """End of the recording."""
        return self.phases[-1][1]

    def times(self, period_ns: int | None = None) -> Iterator[tuple[int, float, Mapping[str, Any]]]:
        """Sample times with the share of their phase that has passed, and the phase."""
        period = period_ns or self.period_ns
        for index, (start, end, phase) in enumerate(self.phases):
            first = start + (0 if index == 0 else (-(start - self.start)) % period)
            for time in range(first, end, period):
                yield time, (time - start) / (end - start), phase

    def value(self, spec: Any, share: float, is_exact: bool = False) -> Any:
        """A described value at a moment: constant, ramp [from, to], or saw-tooth, with noise."""
        if isinstance(spec, str | bool):
            return spec
        if isinstance(spec, Sequence):
            spec = spec[0] + (spec[1] - spec[0]) * share
        elif isinstance(spec, Mapping):
            turn = (share * spec["teeth"]) % 1.0
            spec = spec["low"] + (spec["high"] - spec["low"]) * turn
        if is_exact or not spec:
            return spec
        return spec * self.rng.uniform(1 - self.noise / 2, 1 + self.noise / 2)

    def has(self, source: str, column: str = "") -> bool:
        """Whether the report gives a source, or one column of it."""
        if "recorder" in self.report or source in self.report:
            return True
        if column:
            return f"{source}.{column}" in self.report
        return any(word.startswith(f"{source}.") for word in self.report)


def part_of(part: Any, index: int) -> Mapping[str, Any]:
    """The description of one of several devices or engines."""
    if isinstance(part, Mapping):
        return part
    return part[min(index, len(part) - 1)] if part else {}
