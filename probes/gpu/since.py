"""What is new among the time stamps of the driver, which are of the wall clock.

The driver is asked for what is newer than the last stamp. When the wall clock is set back, nothing
would be newer for as long as it was set back, and what the driver still keeps of before would look
newer than all that follows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

#: A stamp later than the present by more than this is of before the clock was set back.
AHEAD_US = 1_000_000
#: Stamps that are remembered by kind; the driver keeps some hundred.
_REMEMBERED = 1024

_Item = TypeVar("_Item")


def _wall_us() -> int:
    return time.time_ns() // 1000


class Since:
    """The last stamp of each kind of sample, in us of the wall clock.

    Args:
        now_us: The wall clock.
    """

    def __init__(self, now_us: Callable[[], int] = _wall_us) -> None:
        self._now_us = now_us
        self._start_us = now_us()
        self._last: dict[Hashable, int] = {}
        self._told: dict[Hashable, deque[int]] = {}
        #: Stamps of before the clock was set back, told and not told.
        self._before: dict[Hashable, frozenset[int]] = {}

    def last(self, key: Hashable) -> int | None:
        """Return the last stamp of a kind; None before the first."""
        return self._last.get(key)

    def ask_from(self, key: Hashable) -> int:
        """Return the stamp from which on the driver is to be asked."""
        now = self._now_us()
        last = self._last.get(key, self._start_us)
        if last > now + AHEAD_US:
            last = now - AHEAD_US
            self._last[key] = last
            self._before[key] = frozenset(self._told.get(key, ()))
        return last

    def take(self, key: Hashable, items: Iterable[tuple[int, _Item]]) -> list[tuple[int, _Item]]:
        """Return the items whose stamps are new, in their order, and remember these."""
        last, most = self._last.get(key, self._start_us), self._now_us() + AHEAD_US
        items = list(items)
        before = self._before.get(key, frozenset())
        if before:
            before |= {stamp for stamp, _ in items if stamp > most}
            self._before[key] = before
        found = [item for item in items if last < item[0] <= most and item[0] not in before]
        found.sort(key=lambda item: item[0])
        if found:
            stamps = [stamp for stamp, _ in found]
            self._last[key] = stamps[-1]
            self._told.setdefault(key, deque(maxlen=_REMEMBERED)).extend(stamps)
            if before and stamps[-1] > max(before):
                del self._before[key]
        return found
