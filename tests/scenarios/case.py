"""What a case is: a short description of an incident, and the verdict that is right.

A case is one TOML file in ``cases/``; ``README.md`` beside this file describes the language. What
is expected never reaches a session.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from analysis.causes import CAUSES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CASES = Path(__file__).with_name("cases")
#: Verdicts of a case in which nothing is wrong.
CALM = ("healthy", "no_demand")
STATUSES = ("found", "undecided", "none")

PHASE_KEYS = (
    *("seconds", "running", "waiting", "step", "prompts", "faults", "neighbour"),
    *("engine", "gpu", "host", "cgroup", "process", "thread", "events"),
)
STEP_KEYS = (
    *("kind", "device_ms", "host_ms", "launches", "launch_us", "gap_us", "graph", "spin"),
    *("tokens", "load_ms", "sync_every", "h2d_ms", "h2d_bytes", "d2h_bytes", "think_ms"),
    *("collective_ms", "late_rank", "late_ms", "depth"),
)
FAULT_KEYS = (
    *("preempt", "throttle", "gil", "gc", "stall", "first_use", "compile", "hang", "wedge"),
    *("wake_delay",),
)


class CaseError(ValueError):
    """A case file says something that the language has no word for."""


@dataclass(frozen=True)
class Case:
    """One built case.

    Attributes:
        name: Name of its file, without the ending.
        title: What is wrong, one sentence.
        cause: The slug that has to be first.
        incident: The published incident it is made of, if any.
        grade: How well that incident's cause is established: A, B or C.
        status: Statuses that are right for the first cause; ``none`` for calm and unknown verdicts.
        or_causes: Other slugs that are right in the first place as well.
        also: Slugs that may be found beside it: its symptoms.
        must_not: Slugs that may not be found.
        confounder_of: The case that looks like this one and has another cause.
        report: Which tables and columns the session has; see the README.
        load: Range that the amount of work is drawn from, 1 is as described.
        noise: Range that the relative noise is drawn from.
        cycles: How often the phases are repeated.
        period_s: Time between two scrapes and samples.
        service: Names, ranks, devices and the like.
        phases: What happens, one after another.
    """

    name: str
    title: str
    cause: str
    incident: str = ""
    grade: str = ""
    status: tuple[str, ...] = ("found",)
    or_causes: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    must_not: tuple[str, ...] = ()
    confounder_of: str = ""
    report: tuple[str, ...] = ("recorder",)
    load: tuple[float, float] = (0.8, 1.25)
    noise: tuple[float, float] = (0.03, 0.1)
    cycles: int = 1
    period_s: float = 1.0
    service: Mapping[str, Any] = field(default_factory=dict)
    phases: tuple[Mapping[str, Any], ...] = ()

    @property
    def is_calm(self) -> bool:
        """Whether nothing is wrong in it."""
        return self.cause in CALM

    @property
    def right(self) -> tuple[str, ...]:
        """Slugs that are right in the first place."""
        return (self.cause, *self.or_causes)

    @property
    def seconds(self) -> float:
        """Length as described."""
        return self.cycles * sum(float(phase["seconds"]) for phase in self.phases)


def read_case(path: Path) -> Case:
    """Return the case of a file.

    Raises:
        CaseError: it is no case; the text names the file and the word.
    """
    data = _merged(path)
    data.pop("like", None)
    data["phases"] = tuple(data.pop("phase", ()))
    _known(path, data, [item.name for item in fields(Case)])
    for key in ("status", "or_causes", "also", "must_not", "report", "load", "noise"):
        if key in data:
            data[key] = tuple(data[key])
    if data.get("cause") in (*CALM, "unknown"):
        data.setdefault("status", ("found", "none", "undecided"))
    case = Case(name=path.stem, **data)
    _check(path, case)
    return case


def _merged(path: Path) -> dict[str, Any]:
    """The file's keys over those of the case that it is like."""
    try:
        own = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise CaseError(f"{path.name} cannot be read ({error})") from None
    if "like" not in own:
        return own
    base = _merged(path.with_name(f"{own['like']}.toml"))
    # What is right, and where it was published, is never taken over.
    keep = ("report", "service", "phase", "load", "noise", "cycles", "period_s")
    return {**{key: base[key] for key in keep if key in base}, **own}


def _check(path: Path, case: Case) -> None:
    slugs = [cause.slug for cause in CAUSES]
    for slug in (*case.right, *case.also, *case.must_not):
        _known(path, [slug], slugs)
    _known(path, case.status, STATUSES)
    if not case.phases:
        raise CaseError(f"{path.name} has no phase")
    for phase in case.phases:
        _known(path, phase, PHASE_KEYS)
        _known(path, phase.get("step", {}), STEP_KEYS)
        _known(path, phase.get("faults", {}), FAULT_KEYS)


def _known(path: Path, words: Iterable[str], declared: Iterable[str]) -> None:
    for word in words:
        if word not in declared:
            close = difflib.get_close_matches(word, list(declared), n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(declared)}"
            raise CaseError(f"{path.name} has '{word}'; {hint}")


@cache
def all_cases() -> tuple[Case, ...]:
    """Every case, sorted by name."""
    return tuple(read_case(path) for path in sorted(CASES.glob("*.toml")))
