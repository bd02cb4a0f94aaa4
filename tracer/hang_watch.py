"""Notices, while it records, that a call may never return; the proof is the analyzer's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracer.call_progress import CallProgress

SECOND_NS = 1_000_000_000
#: Age of an open call from which it is looked at, as the analyzer has it: ten times the longest
#: completed wait of its process and at least 3 s; 10 s where no completed wait tells what is usual.
LEAST_NS = 3 * SECOND_NS
UNKNOWN_NS = 10 * SECOND_NS
RATIO = 10
#: A call that did not prove a hang is looked at again after this, then after twice as long, ...
RETRY_NS = 2 * SECOND_NS
MAX_RETRY_NS = 300 * SECOND_NS
#: Kinds of calls in which a thread waits for a device that does not go on.
_WAITS = frozenset({"sync", "copy", "launch", "graph_launch", "memory", "wait"})


@dataclass
class _Suspect:
    """One open call: when it is to be looked at next, and the pause after that."""

    due_ns: int
    pause_ns: int = RETRY_NS


class HangWatch:
    """Tells which open calls are worth a look by the analyzer now.

    Args:
        progress: How far each process got.
    """

    def __init__(self, progress: CallProgress) -> None:
        self._progress = progress
        self._suspects: dict[int, _Suspect] = {}
        self._told: set[int] = set()

    def look(self, now_ns: int) -> dict[str, Any] | None:
        """Return the row of an open call that may hang and is due, the oldest first; or None."""
        found = [row for row in self._progress.open_calls if self._is_old(row, now_ns)]
        ids = {int(row["call_id"]) for row in found}
        self._suspects = {key: item for key, item in self._suspects.items() if key in ids}
        self._told &= ids
        for row in sorted(found, key=lambda row: int(row["start_ns"])):
            call_id = int(row["call_id"])
            if call_id in self._told:
                continue
            suspect = self._suspects.setdefault(call_id, _Suspect(now_ns))
            if suspect.due_ns <= now_ns:
                suspect.due_ns = now_ns + suspect.pause_ns
                suspect.pause_ns = min(2 * suspect.pause_ns, MAX_RETRY_NS)
                return row
        return None

    def settle(self, call_id: int) -> None:
        """Note that a call was told as a hang: not again while it is open."""
        self._told.add(call_id)

    def _is_old(self, row: dict[str, Any], now_ns: int) -> bool:
        if row["depth"] != 0 or row["is_doubtful"] or row["kind"] not in _WAITS:
            return False
        progress = self._progress.of(int(row["pid"]))
        longest = progress.longest_wait_ns
        limit = max(LEAST_NS, RATIO * longest) if longest else UNKNOWN_NS
        start_ns = int(row["start_ns"])
        return now_ns - start_ns >= limit and progress.submitted_ns <= start_ns + limit // 2
