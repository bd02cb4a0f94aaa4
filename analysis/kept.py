"""Which parts of a long recording hold full detail: a small file beside the manifest.

The recorder replaces it *before* it drops anything, so that a reader never takes a stretch for
empty whose rows were dropped.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE_NAME = "kept.json"
_MAX_BYTES = 1 << 20


@dataclass
class Kept:
    """What was dropped and what was kept; times in ns of CLOCK_MONOTONIC.

    Attributes:
        detail_from_ns: Full detail (calls, off-CPU intervals) from here on; null for all of it.
        pins: Stretches before that whose detail was kept, ``(begin, end)``, sorted and disjoint.
        thinned_to_ns: Samples before this are sparse; null where none is.
        dropped_to_ns: Rows of other tables before this were dropped for want of room, by table.
    """

    detail_from_ns: int | None = None
    pins: list[tuple[int, int]] = field(default_factory=list)
    thinned_to_ns: int | None = None
    dropped_to_ns: dict[str, int] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether nothing was dropped or thinned."""
        return self.detail_from_ns is None and self.thinned_to_ns is None

    def detailed(self, start_ns: int, end_ns: int) -> list[tuple[int, int]]:
        """Return the disjoint stretches with full detail of a recording, in order, ns."""
        begin = max(start_ns, self.detail_from_ns if self.detail_from_ns is not None else start_ns)
        spans = [(max(a, start_ns), min(b, begin)) for a, b in self.pins if a < begin]
        if spans and spans[-1][1] >= begin:
            spans[-1] = (spans[-1][0], end_ns)
        else:
            spans.append((begin, end_ns))
        return [(a, b) for a, b in spans if b > a]

    def to_json(self) -> str:
        """Return it as JSON text."""
        return json.dumps(dataclasses.asdict(self), indent=1)

    @classmethod
    def read(cls, session: Path) -> Kept:
        """Return what a session's file says; everything was kept where there is none.

        A damaged file is taken as absent: rows that are not there are then only not explained.
        """
        path = session / FILE_NAME
        try:
            if not path.is_file() or path.stat().st_size > _MAX_BYTES:
                return cls()
            data = json.loads(path.read_text("utf-8"))
            return cls(
                _time(data.get("detail_from_ns")),
                sorted((int(a), int(b)) for a, b in data.get("pins", []) if int(a) < int(b)),
                _time(data.get("thinned_to_ns")),
                {str(key): int(value) for key, value in data.get("dropped_to_ns", {}).items()},
            )
        except (OSError, ValueError, TypeError, AttributeError):
            return cls()


def _time(value: Any) -> int | None:
    return None if value is None else int(value)
