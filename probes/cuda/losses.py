"""What was lost of the calls of a recording, by reason and function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from analysis.schema import LOSS
from probes.cuda.functions import SYMBOL_INDEX, SYMBOLS
from probes.cuda.pairing import Calls
from probes.cuda.tracing import Tracing
from probes.probe import Batch, make_batch

_REASONS = {"ring_full_return": "ring_full"}
_LOSS_DETAILS = {
    "ring_full": "Calls are missing: the ring buffer was full when they began.",
    "ring_full_return": "Durations are missing: the ring buffer was full when calls returned.",
    "return_missed": "Durations are missing: the call was left without a return that was seen.",
    "slot_collision": "Calls of a thread are missing: its place was taken by another thread.",
    "fork_gap": "Calls of a new process are missing until it was probed; how many is not known.",
    "too_deep": "Calls nested deeper than is followed are missing.",
    "process_lost": "Forks, execs or exits are missing.",
    "targets_full": "A process is not recorded: the set of targets is full.",
}


class LossBook:
    """Counts losses and tells each once.

    Attributes:
        n_lost: Everything told so far.
        n_fork_gaps: New processes that were probed late, so far.
    """

    def __init__(self) -> None:
        self._missed = np.zeros(len(SYMBOLS), np.int64)
        self._told: Counter[tuple[str, str]] = Counter()
        self.n_lost = 0
        self.n_fork_gaps = 0

    def note(self, calls: Calls) -> None:
        """Take over closed calls: of some the return was missed."""
        missed = calls.entries["function"][calls.is_missed]
        self._missed += np.bincount(missed, minlength=len(SYMBOLS))

    def batch(self, tracing: Tracing, symbols: Iterable[str], now_ns: int) -> Batch:
        """Return what was lost since the last time.

        Args:
            tracing: Its counters are read.
            symbols: Names of the functions that were probed or called.
            now_ns: CLOCK_MONOTONIC.
        """
        totals: Counter[tuple[str, str]] = Counter()
        missed = np.flatnonzero(self._missed).tolist()
        numbers = sorted({*missed, *(SYMBOL_INDEX[symbol] for symbol in symbols)})
        lost_returns: dict[int, int] = {}
        counters = tracing.counters()
        if counters.pop("ring_full"):
            for index, n in tracing.lost("entries", numbers).items():
                totals["ring_full", SYMBOLS[index]] += n
            lost_returns = tracing.lost("returns", numbers)
            for index, n in lost_returns.items():
                totals["ring_full_return", SYMBOLS[index]] += n
        for index in missed:
            known = self._told["ring_full_return", SYMBOLS[index]]
            known = max(known, lost_returns.get(index, 0))
            totals["return_missed", SYMBOLS[index]] = max(int(self._missed[index]) - known, 0)
        totals["fork_gap", ""] = self.n_fork_gaps
        for name, n in counters.items():
            if name != "offcpu_lost":
                totals[name, ""] += n
        rows = [
            (reason, function, n - self._told[reason, function])
            for (reason, function), n in totals.items()
            if n > self._told[reason, function]
        ]
        for reason, function, n in rows:
            self._told[reason, function] += n
        self.n_lost += sum(n for _, _, n in rows)
        return make_batch(
            LOSS,
            {
                "time_ns": [now_ns] * len(rows),
                "source": ["cuda"] * len(rows),
                "reason": [_REASONS.get(reason, reason) for reason, _, _ in rows],
                "n_lost": [n for _, _, n in rows],
                "function": [function or None for _, function, _ in rows],
                "detail": [_LOSS_DETAILS[reason] for reason, _, _ in rows],
            },
        )
