"""One time base: readings of the three clocks, and foreign wall-clock times mapped to monotonic.

Every recorded time is CLOCK_MONOTONIC. A source that stamps with the wall clock (NVML, DCGM,
serving logs) is mapped through *anchors*: simultaneous readings of CLOCK_MONOTONIC, CLOCK_REALTIME
and CLOCK_BOOTTIME taken every few seconds. The wall clock may be stepped and the machine may
sleep; both show as a jump between two anchors, and split the anchors into *stretches* inside which
the mapping is a line from anchor to anchor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from analysis.schema import CLOCK_ANCHOR, EVENT
from probes.probe import Batch, make_batch

#: A change of the wall clock against monotonic beyond this is reported as a step.
STEP_NS = 10_000_000
#: The kernel slews the wall clock by at most this share (adjtimex, 500 parts per million).
SLEW = 500e-6
#: A change of boottime against monotonic beyond this is a suspend.
SUSPEND_NS = 10_000_000
#: Anchors of a stretch and stretches kept for the mapping (all stay in the recording).
KEPT_ANCHORS = 4096
KEPT_STRETCHES = 256


@dataclass(frozen=True)
class ClockReaders:
    """The three clocks in ns, injectable so that no test has to step a real clock."""

    monotonic: Callable[[], int] = time.monotonic_ns
    realtime: Callable[[], int] = time.time_ns
    boottime: Callable[[], int] = field(default=lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME))


@dataclass(frozen=True)
class Anchor:
    """One simultaneous reading of the clocks; ``error_ns`` bounds how far apart they were read."""

    monotonic_ns: int
    realtime_ns: int
    boottime_ns: int
    error_ns: int


@dataclass(frozen=True)
class ClockChange:
    """A jump between two anchors: ``suspend`` or ``clock_step``, seen at ``time_ns``."""

    kind: str
    time_ns: int
    change_ns: int

    @property
    def detail(self) -> str:
        """One sentence for the reader."""
        if self.kind == "suspend":
            return f"The machine slept for {self.change_ns / 1e9:.3f} s."
        return f"The wall clock moved by {self.change_ns / 1e9:+.3f} s against monotonic time."


def read_anchor(readers: ClockReaders, n_tries: int = 5) -> Anchor:
    """Return the tightest of ``n_tries`` readings of the clocks, in ns.

    The other two clocks are read between two readings of CLOCK_MONOTONIC; the anchor is the middle
    and its error the whole bracket, so that an interruption shows as a large error.
    """
    best: Anchor | None = None
    for _ in range(n_tries):
        before = readers.monotonic()
        realtime = readers.realtime()
        boottime = readers.boottime()
        bracket = readers.monotonic() - before
        if best is None or bracket < best.error_ns:
            best = Anchor(before + bracket // 2, realtime, boottime, bracket)
    assert best is not None
    return best


class ClockAnchors:
    """Anchors of one recording, the changes between them and the mapping to monotonic time."""

    def __init__(self, readers: ClockReaders | None = None) -> None:
        self._readers = readers or ClockReaders()
        #: Stretches without a jump; each a list of anchors in order.
        self._stretches: list[list[Anchor]] = []
        #: The newest reading that went on without a jump, and jumps found by looks.
        self._looked: Anchor | None = None
        self._untold: list[ClockChange] = []

    @property
    def last(self) -> Anchor | None:
        """The newest anchor, or None before the first reading."""
        return self._stretches[-1][-1] if self._stretches else None

    def read(self) -> tuple[Anchor, list[ClockChange]]:
        """Return a new anchor in ns, and the jumps found since the last call."""
        anchor = read_anchor(self._readers)
        changes = [*self._untold, *self._take(anchor)]
        self._untold.clear()
        return anchor, changes

    def look(self) -> None:
        """Find a jump since the last anchor, which :meth:`read` tells; keep nothing without one."""
        anchor = read_anchor(self._readers)
        if self.last is None or self._jumps(self.last, anchor)[1]:
            self._untold += self._take(anchor)
        else:
            self._looked = anchor

    def _take(self, anchor: Anchor) -> list[ClockChange]:
        """Add an anchor; before a jump the last look too, so that it is known when it was."""
        looked, self._looked = self._looked, None
        last = self.last
        if looked is None or last is None or looked.monotonic_ns <= last.monotonic_ns:
            return self.add(anchor)
        if not self._jumps(last, anchor)[1]:
            return self.add(anchor)
        return [*self.add(looked), *self.add(anchor)]

    def add(self, anchor: Anchor) -> list[ClockChange]:
        """Add an anchor (later than all before) and return the jumps since the last, in ns."""
        previous = self.last
        if previous is None:
            self._stretches.append([anchor])
            return []
        changes, is_split = self._jumps(previous, anchor)
        if is_split:
            self._stretches.append([anchor])
            del self._stretches[:-KEPT_STRETCHES]
        else:
            self._stretches[-1].append(anchor)
            self._thin()
        return changes

    @staticmethod
    def _jumps(previous: Anchor, anchor: Anchor) -> tuple[list[ClockChange], bool]:
        """The jumps between two anchors, and whether a line from one to the other would bend the
        mapping: small steps are no event, but do.
        """
        error = anchor.error_ns + previous.error_ns
        elapsed = anchor.monotonic_ns - previous.monotonic_ns
        slept = (anchor.boottime_ns - previous.boottime_ns) - elapsed
        moved = (anchor.realtime_ns - previous.realtime_ns) - elapsed
        changes = []
        if slept > SUSPEND_NS + error:
            changes.append(ClockChange("suspend", anchor.monotonic_ns, slept))
            stepped = moved - slept
        else:
            stepped = moved
        if abs(stepped) > STEP_NS + error + SLEW * elapsed:
            changes.append(ClockChange("clock_step", anchor.monotonic_ns, stepped))
        return changes, bool(changes) or abs(stepped) > error + SLEW * elapsed

    def _thin(self) -> None:
        """Drop every second old anchor of a long stretch: the mapping stays bounded in memory."""
        stretch = self._stretches[-1]
        if len(stretch) > KEPT_ANCHORS:
            self._stretches[-1] = stretch[:-64:2] + stretch[-64:]

    def map_received(
        self, realtime_ns: NDArray[np.int64], near_ns: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return what :meth:`to_monotonic_array` does for values that were received just now: a
        jump since the last anchor is found first, which may be seconds old.
        """
        self.look()
        return self.to_monotonic_array(realtime_ns, near_ns)

    def to_monotonic_array(
        self, realtime_ns: NDArray[np.int64], near_ns: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return monotonic times and error bounds, both in ns, of ``n`` wall-clock times.

        Args:
            realtime_ns: Wall-clock times, shape (n,).
            near_ns: Monotonic times at which the values were received, shape (n,), or None: after
                a backward step two instants show the same wall-clock time, and the later one not
                after it is meant.

        Raises:
            ValueError: no anchor was read yet.
        """
        if not self._stretches:
            raise ValueError("no clock anchor was read yet; call read() first")
        wall = np.asarray(realtime_ns, dtype=np.int64)
        n_stretches = len(self._stretches)
        times = np.empty((n_stretches, wall.size), dtype=np.int64)
        errors = np.empty_like(times)
        misfits = np.empty_like(times)
        for index in range(n_stretches):
            times[index], errors[index], misfits[index] = self._map(index, wall)
        # A stretch that cannot have shown this time is only taken where none can (a hole left by
        # a forward step): then the closest, with its distance as error.
        fits = misfits == misfits.min(axis=0)
        if near_ns is not None:
            not_later = fits & (times <= np.asarray(near_ns) + errors)
            fits = np.where(not_later.any(axis=0), not_later, fits)
        chosen = n_stretches - 1 - np.argmax(fits[::-1], axis=0)
        columns = np.arange(wall.size)
        result = times[chosen, columns]
        error = errors[chosen, columns] + misfits[chosen, columns]
        if near_ns is None:
            spread = np.where(fits, np.abs(times - result), 0).max(axis=0)
            error = error + spread
        return result, error

    def _map(
        self, index: int, wall: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Times by one stretch, their errors, and how far outside of the stretch they lie."""
        stretch = self._stretches[index]
        mono = np.array([anchor.monotonic_ns for anchor in stretch], dtype=np.int64)
        real = np.array([anchor.realtime_ns for anchor in stretch], dtype=np.int64)
        bound = np.array([anchor.error_ns for anchor in stretch], dtype=np.int64)
        offset = real - mono
        right = np.clip(np.searchsorted(real, wall), 0, real.size - 1)
        left = np.clip(right - 1, 0, None)
        inside = (wall >= real[0]) & (wall <= real[-1])
        width = np.maximum(real[right] - real[left], 1)
        share = np.clip((wall - real[left]) / width, 0.0, 1.0)
        drift = offset[right] - offset[left]
        times = wall - (offset[left] + np.rint(drift * share).astype(np.int64))
        # The wall clock may have moved anywhere between the two anchors or just beside them.
        moved = np.abs(np.diff(offset, prepend=offset[0], append=offset[-1]))
        errors = np.maximum(bound[left], bound[right])
        errors += np.maximum(np.maximum(moved[left], moved[right]), moved[right + 1])
        outside = np.maximum(np.maximum(real[0] - wall, wall - real[-1]), 0)
        slack = np.rint(SLEW * outside).astype(np.int64)
        errors = np.where(inside, errors, np.where(wall < real[0], bound[0], bound[-1]) + slack)
        before = self._bracket(index - 1, index)
        after = self._bracket(index, index + 1)
        misfits = np.zeros(wall.size, dtype=np.int64)
        if before is not None:
            misfits = np.maximum(misfits, real[0] - before - wall)
        if after is not None:
            misfits = np.maximum(misfits, wall - real[-1] - after)
        return times, errors, misfits

    def _bracket(self, left: int, right: int) -> int | None:
        """Monotonic time between two neighbouring stretches, None at the ends."""
        if left < 0 or right >= len(self._stretches):
            return None
        return self._stretches[right][0].monotonic_ns - self._stretches[left][-1].monotonic_ns


def anchor_batch(anchor: Anchor) -> Batch:
    """Return one row of table ``clock_anchor``."""
    return make_batch(
        CLOCK_ANCHOR,
        {
            "time_ns": [anchor.monotonic_ns],
            "realtime_ns": [anchor.realtime_ns],
            "boottime_ns": [anchor.boottime_ns],
            "error_ns": [anchor.error_ns],
        },
    )


def change_batch(changes: list[ClockChange]) -> Batch:
    """Return one row of table ``event`` per jump of a clock."""
    return make_batch(
        EVENT,
        {
            "time_ns": [change.time_ns for change in changes],
            "kind": [change.kind for change in changes],
            "duration_ns": [
                change.change_ns if change.kind == "suspend" else None for change in changes
            ],
            "name": ["clock" for _ in changes],
            "detail": [change.detail for change in changes],
        },
    )
