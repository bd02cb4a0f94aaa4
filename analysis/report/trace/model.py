"""What a trace is made of, whatever the file format: tracks, and batches of what lies on them.

Everything is columns: a batch holds the slices or samples of one track as arrays, so that a
writer encodes a hundred thousand at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Track:
    """One line of the trace; a writer gets it before anything that lies on it.

    Attributes:
        uuid: Unique in the trace, from 1.
        name: As shown.
        parent: uuid of the track that it is shown under, 0 for none.
        pid: Set for the track of a process or of a thread.
        tid: Set for the track of a thread.
        unit: Unit of a counter; None where it is not one.
    """

    uuid: int
    name: str
    parent: int = 0
    pid: int | None = None
    tid: int | None = None
    unit: str | None = None


@dataclass(frozen=True)
class Slices:
    """Properly nested slices of one track, in the order of their begins, outer before inner.

    Attributes:
        track: The track.
        start: ``(n,)`` begins, ns.
        end: ``(n,)`` ends, ns.
        depth: ``(n,)`` number of slices of this batch that each lies in.
        name: ``(n,)`` indices into ``names``.
        names: What slices are called.
        detail: ``(n,)`` indices into ``details``, -1 for none.
        details: Further text, e.g. the kernel of a launch.
        detail_name: What that text is.
        flow: ``(n,)`` id of the flow that each slice belongs to, 0 for none.
    """

    track: int
    start: Ints
    end: Ints
    depth: Ints
    name: Ints
    names: list[str]
    detail: Ints
    details: list[str] = field(default_factory=list)
    detail_name: str = "detail"
    flow: Ints | None = None

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Instants:
    """Moments of one track: ``(n,)`` times in ns and indices into ``names``."""

    track: int
    time: Ints
    name: Ints
    names: list[str]

    def __len__(self) -> int:
        return len(self.time)


@dataclass(frozen=True)
class Samples:
    """Values of one counter: ``(n,)`` times in ns and values."""

    track: int
    time: Ints
    value: Floats

    def __len__(self) -> int:
        return len(self.time)


Item = Track | Slices | Instants | Samples


@dataclass(frozen=True)
class Clocks:
    """One simultaneous reading of the clocks, ns; the trace's times are ``monotonic_ns``'s."""

    monotonic_ns: int
    realtime_ns: int
    boottime_ns: int
