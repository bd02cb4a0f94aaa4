"""Percentiles by nearest rank, always together with the number of samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Quantile:
    """One percentile of a sample.

    Attributes:
        value: The sample's value at that rank, in the sample's unit.
        q: The share asked for, in (0, 1].
        n: Number of samples.
        is_maximum: Whether the rank is the last one: the sample is too small to tell this
            percentile from its maximum (n < 1 / (1 - q)).
    """

    value: float
    q: float
    n: int
    is_maximum: bool

    @property
    def label(self) -> str:
        """What to call it: ``p99``, or ``max`` where the sample cannot tell them apart."""
        return "max" if self.is_maximum else f"p{self.q * 100:g}"


def rank(n: int, q: float) -> int:
    """Return the index of the nearest-rank percentile in a sorted sample of ``n``.

    Raises:
        ValueError: the sample is empty, or ``q`` is outside (0, 1].
    """
    if n < 1:
        raise ValueError("a percentile needs at least one sample")
    if not 0 < q <= 1:
        raise ValueError(f"a percentile lies in (0, 1], not {q}")
    # The guard keeps 0.99 * 100 from becoming rank 100 by rounding error.
    return max(math.ceil(q * n - 1e-9) - 1, 0)


def several(values: npt.NDArray[Any], *qs: float) -> list[Quantile]:
    """Return nearest-rank percentiles of ``values`` in their unit, ordered as asked for.

    Raises:
        ValueError: the sample is empty, or one of ``qs`` is outside (0, 1].
    """
    n = len(values)
    places = [rank(n, q) for q in qs]
    ordered = np.partition(values, sorted(set(places)))
    return [
        Quantile(float(ordered[at]), q, n, at == n - 1) for at, q in zip(places, qs, strict=True)
    ]


def quantile(values: npt.NDArray[Any], q: float) -> Quantile | None:
    """Return the nearest-rank percentile of ``values`` in their unit, None for no sample."""
    return several(values, q)[0] if len(values) else None


def median(values: npt.NDArray[Any], *, is_scratch: bool = False) -> float | None:
    """Return the nearest-rank median of ``values`` in their unit, None for no sample.

    With ``is_scratch`` they are put in another order, instead of a copy of them.
    """
    n = len(values)
    if n == 0:
        return None
    middle = rank(n, 0.5)
    if not is_scratch:
        return float(np.partition(values, middle)[middle])
    values.partition(middle)
    return float(values[middle])
