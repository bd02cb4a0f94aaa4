"""What a scenario is: a service, what is wrong with it, and the verdict that is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tracer.simulated.stage import Stage


@dataclass(frozen=True)
class Expected:
    """The right verdict. It is never written into a session.

    Attributes:
        cause: The slug that has to be first.
        statuses: Statuses of that finding which are right.
        or_causes: Other slugs that are right in the first place as well.
        names_culprit: Whether the finding has to name a culprit of the stage.
    """

    cause: str
    statuses: tuple[str, ...] = ("found",)
    or_causes: tuple[str, ...] = ()
    names_culprit: bool = False


@dataclass(frozen=True)
class Scenario:
    """One staged situation.

    Attributes:
        name: How it is called on the command line.
        summary: What is wrong, one sentence.
        expected: The right verdict.
        prepare: Brings the service up to the moment at which the recording begins.
        happen: Runs beside the recording, in a thread: what goes wrong meanwhile.
        confounders: Scenarios that look alike and have another cause.
        has_cpu_contention: Whether waits for the CPU are staged, so that they disturb nothing.
        n_devices: Devices of the simulated machine.
        missing: Returns why it cannot be staged on this machine, or nothing.
    """

    name: str
    summary: str
    expected: Expected
    prepare: Callable[[Stage], object]
    happen: Callable[[Stage], object] | None = None
    confounders: tuple[str, ...] = ()
    has_cpu_contention: bool = False
    missing: Callable[[], str] | None = None
    n_devices: int = 1
