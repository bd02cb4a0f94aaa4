"""What of a long recording stays: full detail for the last minutes and around captures, the rest
thinned or only as summaries; within a number of bytes.

Planning only: which closed segments to drop and which to thin. The session writer does it, and
tells readers in a small file (``analysis/kept.py``) before anything is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from analysis.kept import Kept
from analysis.schema import CUDA_CALL, GPU_ACTIVITY, OFFCPU, OPEN_CALL
from tracer.compaction import SEALED_ROWS, SizedSegment
from tracer.summaries import SUMMARIES
from tracer.thinning import THINNED

#: Tables that are dropped when they are old; their summaries stay.
DETAIL = frozenset({CUDA_CALL.name, GPU_ACTIVITY.name, OFFCPU.name, OPEN_CALL.name})
#: Part of the bytes that is freed at once when there are too many, so that it is done seldom.
SLACK = 0.05
#: Most segments thinned at once: new rows wait meanwhile.
THIN_AT_ONCE = 8
#: Most captures whose detail is kept; the oldest are released beyond it.
MAX_PINS = 64


@dataclass(frozen=True)
class Step:
    """One segment to drop, or to thin in place."""

    table: str
    item: SizedSegment
    is_drop: bool


class Retention:
    """The rule of one recording, and what it has dropped so far.

    Args:
        keep_ns: Full detail is kept for so long; None for ever.
        max_bytes: Most bytes of segments; None without bound.
    """

    def __init__(self, keep_ns: int | None = None, max_bytes: int | None = None) -> None:
        self.keep_ns = keep_ns
        self.max_bytes = max_bytes
        self.kept = Kept()
        #: Segments dropped, and rows in them.
        self.n_dropped = 0
        self.n_dropped_rows = 0

    def change(self, keep_ns: int | None, max_bytes: int | None) -> None:
        """Keep by other bounds from now on; may be called from another thread."""
        self.keep_ns, self.max_bytes = keep_ns, max_bytes

    def pin(self, start_ns: int, end_ns: int) -> None:
        """Keep the detail between two times, as far as it is still there and there is room."""
        start_ns = max(start_ns, self.kept.detail_from_ns or start_ns)
        if start_ns >= end_ns:
            return
        pins = sorted([*self.kept.pins, (start_ns, end_ns)])
        joined: list[tuple[int, int]] = []
        for begin, end in pins:
            if joined and begin <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], end))
            else:
                joined.append((begin, end))
        self.kept.pins = joined[-MAX_PINS:]

    def plan(self, segments: Mapping[str, Sequence[SizedSegment]], now_ns: int) -> list[Step]:
        """Return what is to be done now, in order; :attr:`kept` is what holds afterwards."""
        keep_ns, max_bytes = self.keep_ns, self.max_bytes
        steps = [] if keep_ns is None else list(self._aged(segments, now_ns - keep_ns))
        if max_bytes is not None:
            steps.extend(self._excess(segments, steps, max_bytes))
        return steps

    def note_dropped(self, item: SizedSegment) -> None:
        """Count a segment that was dropped."""
        self.n_dropped += 1
        self.n_dropped_rows += item.n_rows

    def _aged(
        self, segments: Mapping[str, Sequence[SizedSegment]], limit_ns: int
    ) -> Iterator[Step]:
        n_thinned = 0
        for name, items in segments.items():
            for item in items:
                if item.last_ns >= limit_ns:
                    continue
                if name in DETAIL:
                    if not self._is_pinned(item):
                        self._note_drop(name, min(limit_ns, item.last_ns + 1))
                        yield Step(name, item, True)
                elif name in THINNED and not item.is_thinned and _is_merged(item):
                    if n_thinned == THIN_AT_ONCE:
                        break
                    n_thinned += 1
                    self.kept.thinned_to_ns = max(self.kept.thinned_to_ns or 0, item.last_ns + 1)
                    yield Step(name, item, False)

    def _excess(
        self,
        segments: Mapping[str, Sequence[SizedSegment]],
        steps: Sequence[Step],
        max_bytes: int,
    ) -> Iterator[Step]:
        """Drop the oldest until it fits: detail, then captures, then samples, then summaries."""
        gone = {id(step.item) for step in steps if step.is_drop}
        left = [
            (name, item)
            for name, items in segments.items()
            for item in items
            if id(item) not in gone
        ]
        n_bytes = sum(item.n_bytes for _, item in left)
        if n_bytes <= max_bytes:
            return
        wanted = (1 - SLACK) * max_bytes
        for name, item in sorted(left, key=lambda pair: (self._worth(*pair), pair[1].last_ns)):
            if n_bytes <= wanted:
                return
            n_bytes -= item.n_bytes
            if name in DETAIL:
                self._note_drop(name, item.last_ns + 1)
                self.kept.pins = [pin for pin in self.kept.pins if not _overlaps(item, pin)]
            else:
                dropped = self.kept.dropped_to_ns
                dropped[name] = max(dropped.get(name, 0), item.last_ns + 1)
            yield Step(name, item, True)

    def _worth(self, name: str, item: SizedSegment) -> int:
        """The order in which segments are given up, the least first."""
        if name in DETAIL:
            return 1 if self._is_pinned(item) else 0
        if name in THINNED:
            return 2
        return 4 if name in SUMMARIES else 3

    def _is_pinned(self, item: SizedSegment) -> bool:
        return any(_overlaps(item, pin) for pin in self.kept.pins)

    def _note_drop(self, name: str, before_ns: int) -> None:
        # A recording without open calls is no less complete for having dropped none.
        if name != OPEN_CALL.name:
            self.kept.detail_from_ns = max(self.kept.detail_from_ns or 0, before_ns)


def _is_merged(item: SizedSegment) -> bool:
    """Whether it is worth a file operation: a fresh small segment is merged first."""
    return item.segment.last > item.segment.first or item.n_rows >= SEALED_ROWS


def _overlaps(item: SizedSegment, pin: tuple[int, int]) -> bool:
    return item.first_ns < pin[1] and item.last_ns >= pin[0]
