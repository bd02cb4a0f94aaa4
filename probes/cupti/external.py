"""Numbers that the program gave to what it did (external correlation), for its activities."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from probes.cupti import ring

#: How long a number waits for the activities of its call, and how many are kept at most.
KEPT_NS = 5_000_000_000
MAX_NUMBERS = 1 << 18

_NUMBER = np.dtype([("correlation", "<i8"), ("number", "<i8"), ("seen_ns", "<i8")])


class ExternalNumbers:
    """The number of each recent call of one process."""

    def __init__(self) -> None:
        self._known = np.empty(0, _NUMBER)

    def add(self, records: npt.NDArray[np.void], now_ns: int) -> None:
        """Take over the numbers among records; of several kinds the first counts."""
        self._known = self._known[self._known["seen_ns"] > now_ns - KEPT_NS]
        found = records[records["kind"] == ring.EXTERNAL]
        if not len(found):
            return
        found = found[np.lexsort((found["detail"], found["correlation"]))]
        is_first = np.ones(len(found), bool)
        is_first[1:] = found["correlation"][1:] != found["correlation"][:-1]
        found = found[is_first]
        added = np.empty(len(found), _NUMBER)
        added["correlation"] = found["correlation"]
        added["number"] = found["bytes"].astype(np.int64)
        added["seen_ns"] = now_ns
        # CUPTI's numbers of calls come round after 2^32: the newer one counts.
        older = self._known[~np.isin(self._known["correlation"], added["correlation"])]
        known = np.concatenate((older, added))[-MAX_NUMBERS:]
        self._known = known[np.argsort(known["correlation"], kind="stable")]

    def of(
        self, correlation: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the number of each call by its correlation id, and whether it has one."""
        known = self._known["correlation"]
        if not len(known):
            return np.zeros(len(correlation), np.int64), np.zeros(len(correlation), bool)
        at = np.minimum(np.searchsorted(known, correlation), len(known) - 1)
        return self._known["number"][at], known[at] == correlation
