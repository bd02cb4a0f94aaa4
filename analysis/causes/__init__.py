"""The vocabulary of verdicts: every cause, declared once, in one explicit list sorted by slug."""

from __future__ import annotations

from analysis.causes import (
    contention,
    device,
    device_idle,
    device_work,
    first_use,
    hang,
    host,
    host_bound,
    launch_delay,
    mps,
    outcome,
    overload,
    preemption,
    prefill,
    queues,
    sharing,
    straggler,
)
from analysis.causes.declaration import Cause, Needs

_FAMILIES = (
    contention.CAUSES,
    device.CAUSES,
    device_idle.CAUSES,
    device_work.CAUSES,
    first_use.CAUSES,
    hang.CAUSES,
    host.CAUSES,
    host_bound.CAUSES,
    launch_delay.CAUSES,
    mps.CAUSES,
    outcome.CAUSES,
    overload.CAUSES,
    preemption.CAUSES,
    prefill.CAUSES,
    queues.CAUSES,
    sharing.CAUSES,
    straggler.CAUSES,
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
