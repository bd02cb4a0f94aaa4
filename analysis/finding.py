"""What an analyzer answers: a status, numbers that prove it, and what was ruled out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis import intervals

Ints = npt.NDArray[np.int64]


class Status(str, Enum):
    """How an analyzer's question ended. UNDECIDED is not NOT_FOUND: evidence is missing."""

    FOUND = "found"
    NOT_FOUND = "not_found"
    UNDECIDED = "undecided"
    NOT_APPLICABLE = "not_applicable"


@dataclass(frozen=True)
class Evidence:
    """One number that a statement rests on.

    Attributes:
        name: What it measures, e.g. ``ready_share``.
        value: The number, or a word where the evidence is a name.
        unit: ns, ms, %, 1/s, bytes, ratio ...; empty for counts and names.
        n: Samples behind it, null where it is not a statistic.
        source: Table or source it was read from.
    """

    name: str
    value: float | int | str
    unit: str = ""
    n: int | None = None
    source: str = ""


@dataclass(frozen=True)
class Exclusion:
    """One other cause that was ruled out, and the number that did it.

    Attributes:
        cause: Slug of the cause that it is not.
        reason: Why, one sentence without an end.
        evidence: The number, null where the reason has it.
    """

    cause: str
    reason: str
    evidence: Evidence | None = None


@dataclass(frozen=True)
class Where:
    """Where a finding applies; null is not known or not one place.

    Attributes:
        pid: Process, in the host's PID namespace.
        tid: Thread of it.
        device: GPU index.
        rank: Rank in the job.
        process: Name of the process.
        stage: Pipeline stage.
    """

    pid: int | None = None
    tid: int | None = None
    device: int | None = None
    rank: int | None = None
    process: str | None = None
    stage: int | None = None


@dataclass
class Finding:
    """The answer of one analyzer about one cause.

    Attributes:
        cause: Slug of the cause.
        status: How the question ended.
        confidence: Probability in [0, 1] that the statement is right; losses lower it.
        summary: One sentence for a tired reader.
        start_ns: Begin of the time it is about.
        end_ns: End of that time.
        where: Process, thread, device, rank.
        lost_ns: Device time that removing the cause could return at most.
        lost_share: The same as a share of the time with demand, in [0, 1].
        evidence: The numbers.
        excluded: Causes ruled out on the way.
        undecided_because: What could not be told, for UNDECIDED.
        settled_by: Source that would settle it, for UNDECIDED.
        advice: What to do next.
        symptoms: Causes that are a consequence of this one here.
        spans: Disjoint intervals in ns that the cause took, for the budget; not part of the JSON.
    """

    cause: str
    status: Status
    confidence: float = 0.0
    summary: str = ""
    start_ns: int | None = None
    end_ns: int | None = None
    where: Where = field(default_factory=Where)
    lost_ns: int = 0
    lost_share: float = 0.0
    evidence: list[Evidence] = field(default_factory=list)
    excluded: list[Exclusion] = field(default_factory=list)
    undecided_because: str = ""
    settled_by: str = ""
    advice: str = ""
    symptoms: list[str] = field(default_factory=list)
    spans: Ints = field(default_factory=lambda: intervals.EMPTY, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON-able values."""
        result = {
            item.name: _plain(getattr(self, item.name))
            for item in dataclasses.fields(self)
            if item.name != "spans"
        }
        result["status"] = self.status.value
        return result


def _plain(value: Any) -> Any:
    """A value as JSON-able data."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value
