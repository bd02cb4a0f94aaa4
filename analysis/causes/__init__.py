"""The vocabulary of verdicts: every cause, declared once, in one explicit list sorted by slug."""

from __future__ import annotations

from analysis.causes import (
    adapters,
    admission,
    bandwidth,
    contention,
    decay,
    device_idle,
    device_work,
    first_use,
    frontend,
    graphs,
    growth,
    hang,
    hang_of_ranks,
    hardware,
    heavy,
    host_bound,
    imbalance,
    interpreter,
    launch_delay,
    misroute,
    mps,
    observer,
    outcome,
    overload,
    placement,
    preemption,
    prefill,
    pressure,
    regression,
    retries,
    speculation,
    straggler,
    suspect,
    throttle,
    undersized,
)
from analysis.causes.declaration import Cause, Needs

_FAMILIES = (
    adapters.CAUSES,
    admission.CAUSES,
    bandwidth.CAUSES,
    contention.CAUSES,
    decay.CAUSES,
    device_idle.CAUSES,
    device_work.CAUSES,
    first_use.CAUSES,
    frontend.CAUSES,
    graphs.CAUSES,
    growth.CAUSES,
    hang.CAUSES,
    hang_of_ranks.CAUSES,
    hardware.CAUSES,
    heavy.CAUSES,
    host_bound.CAUSES,
    imbalance.CAUSES,
    interpreter.CAUSES,
    launch_delay.CAUSES,
    misroute.CAUSES,
    mps.CAUSES,
    observer.CAUSES,
    outcome.CAUSES,
    overload.CAUSES,
    placement.CAUSES,
    preemption.CAUSES,
    prefill.CAUSES,
    pressure.CAUSES,
    regression.CAUSES,
    retries.CAUSES,
    speculation.CAUSES,
    straggler.CAUSES,
    suspect.CAUSES,
    throttle.CAUSES,
    undersized.CAUSES,
)

#: Every cause, sorted by slug.
CAUSES: tuple[Cause, ...] = tuple(
    sorted((cause for family in _FAMILIES for cause in family), key=lambda cause: cause.slug)
)

_BY_SLUG = {cause.slug: cause for cause in CAUSES}


def cause(slug: str) -> Cause:
    """Return the declaration of one cause.

    Raises:
        KeyError: it is not in the vocabulary.
    """
    return _BY_SLUG[slug]


__all__ = ["CAUSES", "Cause", "Needs", "cause"]
