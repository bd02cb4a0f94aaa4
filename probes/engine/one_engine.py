"""Tells when several engines answer at one URL in turn, as behind a load balancer.

Counters of one engine only fall when it is started again, and then its port is closed for a while.
Counters that fall again and again between two scrapes of which none failed are of several engines:
what their sums and rates say would be wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from probes.engine.exposition import Exposition, Series

#: Pages looked back at, and falls among them that no engine has by itself.
WINDOW = 600
MOST_FALLS = 2
#: Share of the counters that fall together, and the least number of them.
_SHARE = 0.2
_LEAST = 2
#: Counters that are remembered.
_MOST_COUNTERS = 20_000
_CUMULATIVE = ("_total", "_count", "_sum")


class OneEngine:
    """Looks at the pages of one URL, in order."""

    def __init__(self) -> None:
        self._n_pages = 0
        #: Numbers of the pages of the window on which counters fell.
        self._falls: deque[int] = deque()
        self._series: Sequence[Series] = ()
        self._index: NDArray[np.intp] = np.empty(0, np.intp)
        self._counters: list[Series] = []
        self._last: NDArray[np.float64] = np.empty(0)
        self._seen: set[Series] = set()

    def gap(self) -> None:
        """Note that a scrape failed: what comes next may be an engine started again."""
        self._last = np.full(len(self._counters), np.nan)

    def is_mixed(self, page: Exposition) -> bool:
        """Return whether this page and those before it are of several engines."""
        has_swapped = False
        if page.series is not self._series:
            has_swapped = self._take_over(page)
        values = page.values[self._index]
        n_fallen = int(np.count_nonzero(values < self._last))
        if n_fallen >= _LEAST:
            has_swapped |= bool(n_fallen >= _SHARE * np.count_nonzero(self._last > 0))
        self._last = values
        self._n_pages += 1
        if has_swapped:
            self._falls.append(self._n_pages)
        while self._falls and self._falls[0] <= self._n_pages - WINDOW:
            self._falls.popleft()
        return len(self._falls) > MOST_FALLS

    def _take_over(self, page: Exposition) -> bool:
        """Learn which series of a page are counters; tells whether most of them were there before,
        but not on the last page.
        """
        before = dict(zip(self._counters, self._last.tolist(), strict=True))
        series = page.series
        index = [
            i
            for i, item in enumerate(series)
            if item.name.endswith(_CUMULATIVE) and page.types.get(item.name) != "gauge"
        ]
        self._series = series
        self._index = np.array(index, np.intp)
        self._counters = [series[i] for i in index]
        self._last = np.array([before.get(item, np.nan) for item in self._counters], np.float64)
        n_back = sum(item in self._seen and item not in before for item in self._counters)
        is_gap = all(value != value for value in before.values())
        if len(self._seen) > _MOST_COUNTERS:
            self._seen.clear()
        self._seen.update(self._counters)
        return not is_gap and n_back >= max(_LEAST, len(index) / 2)
