"""Whether the clocks of the GPUs stayed the same over hours in which a service became slower."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analysis import trend
from analysis.facts import Facts

#: A clock is flat within this.
FLAT_CLOCK = 0.95
#: What is said where no GPU was sampled with its clock.
UNKNOWN = "the clocks of the GPU, which may have fallen, are not in the recording"


def clock_changes(facts: Facts, edges: npt.NDArray[np.int64]) -> list[tuple[int, float]]:
    """Return each device whose clock was sampled, with its level in the last third against that in
    the first.
    """
    result = []
    for device in facts.gpu.devices if facts.gpu is not None else ():
        clock = facts.gpu.quantity(device, "sm_clock_mhz") if facts.gpu is not None else None
        ratio = None if clock is None else trend.ratio(trend.level(clock.end, clock.value, edges))
        if ratio is not None:
            result.append((device, ratio))
    return result


def why_not_flat(changes: list[tuple[int, float]]) -> str:
    """Return which clock fell, or that none is known, a clause; empty where all stayed."""
    if not changes:
        return UNKNOWN
    device, ratio = min(changes, key=lambda item: item[1])
    return f"the clock of device {device} fell to {ratio:.2f} times" if ratio < FLAT_CLOCK else ""
