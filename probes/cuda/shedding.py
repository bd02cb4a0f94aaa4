"""Keeps what probing costs a target within a budget, by leaving out what the plan says.

A thread of its own looks a hundred times a second at how far the rings have been filled: hits times
their measured cost are taken from a purse that fills with a share of the CPU time of the launching
threads. When it is empty, everything is detached at once; then, from the rates that were seen, a
plan is made and what it leaves is attached again. What is left out otherwise is attached in slices
of time while there is something in the purse.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.schema import EVENT, LOSS
from probes.cuda.budget import (
    DECAY,
    NOTHING_SHED,
    SECOND_NS,
    Plan,
    ProbeCost,
    Purse,
    Usage,
    make_plan,
    slice_ns,
    steady_ns,
)
from probes.cuda.functions import SYMBOL_INDEX, SYMBOLS, by_symbol
from probes.cuda.pairing import Calls
from probes.cuda.program import DEPTH_MASK
from probes.cuda.tracing import Tracing
from probes.cuda.watching import LibraryWatcher
from probes.host import proc
from probes.probe import Batch, make_batch

#: Rest between two looks at the rings.
TICK_NS = 10_000_000
#: A slice is opened when the purse is full to this part, and not more often than this.
SLICE_PART = 0.7
SLICE_PERIOD_NS = 250_000_000
#: What was left out is taken up again after so long, if it fits in this part of the budget.
RESTORE_NS = 5 * SECOND_NS
RESTORE_PART = 0.6
#: Threads whose CPU time is read at most.
MAX_THREADS = 512
#: How often it is read, and what it is taken for until it was.
CPU_NS = 250_000_000
FIRST_CPU_SHARE = 0.1
#: Least CPU time per time that the budget is a share of.
MIN_CPU_SHARE = 0.01

#: Where more of the time than this is not recorded, the recording counts as thinned.
MOST_BLIND = 0.01

_Records = npt.NDArray[np.void]
_I64 = npt.NDArray[np.int64]


class Shedder:
    """Detaches and attaches the probes of a recording by a budget.

    Args:
        share: Budget as a share of the CPU time of the launching threads, e.g. 0.01.
        costs: Cost of a probe by class of the first instruction.
        tracing: The rings to look at.
        watcher: Attaches and detaches.
        root: Where /proc is.
    """

    def __init__(
        self,
        share: float,
        costs: Mapping[str, ProbeCost],
        tracing: Tracing,
        watcher: LibraryWatcher,
        root: Path = proc.PROC,
    ) -> None:
        self._costs = costs
        self._tracing = tracing
        self._watcher = watcher
        self._root = root
        self._purse = Purse(share, FIRST_CPU_SHARE)
        self._lock = threading.Lock()
        self._plan = NOTHING_SHED
        self._planned_ns = 0
        self._is_suspended = False
        self._can_resume = False
        self._slice_ns: int | None = None
        self._next_slice_ns = 0
        n = len(SYMBOLS)
        self._hits = np.zeros(n)
        self._nested = np.zeros(n)
        self._returned = np.zeros(n)
        self._lasted_ns = np.zeros(n)
        self._attached_ns = np.zeros(n)
        self._before = (0, 0)
        #: Time since the last drain in which everything was attached.
        self._whole_ns = 0
        self._classes: dict[str, str] = {}
        self._start_ns = 0
        self._changed_ns = 0
        self._counted_ns = 0
        self._turned_ns = 0
        self._looked_ns = 0
        self._cpu_read_ns = 0
        self._cpu_ns: dict[int, int] = {}
        self._threads: list[int] = []
        self._blind_since: dict[str, int] = {}
        self._unseen: Counter[str] = Counter()
        self._events: list[tuple[int, int | None, str]] = []
        self._cut: tuple[int, npt.NDArray[np.bool_]] | None = None
        self._first_blind_ns: int | None = None
        self._blind_ns = 0
        self._n_suspended = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cuda-budget", daemon=True)

    def start(self) -> None:
        """Begin to look; everything is attached now."""
        self._before = (self._tracing.entries.n_reserved, self._tracing.returns.n_reserved)
        self._turned_ns = self._looked_ns = self._start_ns = time.monotonic_ns()
        self._cpu_read_ns = self._start_ns
        self._classes = self._watcher.cost_classes()
        self._thread.start()

    def stop(self) -> None:
        """Change nothing any more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def note(self, entries: _Records, calls: Calls, threads: list[int]) -> None:
        """Take over what one drain brought: its entries, its calls, all threads that call."""
        n = len(SYMBOLS)
        with self._lock:
            self._threads = threads[:MAX_THREADS]
            whole_ns, self._whole_ns = self._whole_ns, 0
            if self._is_suspended and not self._can_resume and whole_ns:
                self._forget_slower(len(entries), whole_ns)
            if len(entries):
                function = entries["function"]
                self._hits += np.bincount(function, minlength=n)
                nested = function[(entries["depth"] & DEPTH_MASK) > 0]
                self._nested += np.bincount(nested, minlength=n)
            rows = calls.has_return
            if rows.any():
                function = calls.entries["function"][rows]
                lasted = calls.end_ns[rows] - calls.entries["time_ns"][rows].astype(np.int64)
                self._returned += np.bincount(function, minlength=n)
                self._lasted_ns += np.bincount(function, weights=lasted, minlength=n)
            self._can_resume = self._is_suspended

    def _forget_slower(self, n_entries: int, whole_ns: int) -> None:
        """Where the last moments before everything was detached were busier: only they count."""
        longest = float(self._attached_ns.max())
        if longest and n_entries / whole_ns > float(self._hits.sum()) / longest:
            for one in (self._hits, self._nested, self._returned, self._lasted_ns):
                one[:] = 0
            self._attached_ns[:] = whole_ns

    def take_cut(self) -> tuple[int, npt.NDArray[np.bool_]] | None:
        """Return when which functions (by number) were detached last, once; None if none was."""
        with self._lock:
            cut, self._cut = self._cut, None
        return cut

    def batches(self, now_ns: int) -> list[Batch]:
        """Return what was left out since the last call, as rows of ``event`` and ``loss``."""
        with self._lock:
            self._count_unseen(now_ns)
            events, self._events = self._events, []
            unseen, self._unseen = self._unseen, Counter()
        rows = [(symbol, n) for symbol, n in sorted(unseen.items()) if n]
        losses = make_batch(
            LOSS,
            {
                "time_ns": [now_ns] * len(rows),
                "source": ["cuda"] * len(rows),
                "reason": ["shed"] * len(rows),
                "n_lost": [n for _, n in rows],
                "function": [symbol for symbol, _ in rows],
                "detail": ["Estimated from the rate: left out to stay within the budget."]
                * len(rows),
            },
        )
        told = make_batch(
            EVENT,
            {
                "time_ns": [time_ns for time_ns, _, _ in events],
                "kind": ["shed"] * len(events),
                "duration_ns": [duration_ns for _, duration_ns, _ in events],
                "name": ["cuda"] * len(events),
                "detail": [detail for _, _, detail in events],
            },
        )
        return [batch for batch in (told, losses) if batch.rows.num_rows]

    def note_text(self) -> str:
        """Return one sentence about what is left out; empty when nothing was."""
        if self._is_suspended and not self._tracing.is_multi:
            return (
                "The recording of calls was ended: the budget was used up, and this kernel cannot "
                "attach probes for a part of each second (it has no uprobe_multi)."
            )
        if self._first_blind_ns is not None:
            return (
                f"To stay within {100 * self._purse.share:g} % of the CPU time of the launching "
                "threads, the most frequent calls were recorded in slices of time only."
            )
        if not self._plan.is_empty:
            return (
                f"To stay within {100 * self._purse.share:g} % of the CPU time of the launching "
                "threads, some returns or nested driver calls were not recorded."
            )
        return ""

    def details(self) -> dict[str, Any]:
        """Return facts for the manifest."""
        purse, plan = self._purse, self._plan
        details: dict[str, Any] = {
            "budget": {
                "share": purse.share,
                "probe_cost_ns": {
                    name: {"entry": round(cost.entry_ns), "return": round(cost.return_ns)}
                    for name, cost in self._costs.items()
                },
                "spent_ns": round(purse.spent_ns),
                "allowed_ns": round(purse.earned_ns),
                "cpu_share": round(purse.cpu_share, 3),
                "entry_only": sorted(plan.entry_only),
                "covered": sorted(plan.covered),
                "sliced": sorted(plan.sliced),
                "blind_ns": self._blind_ns,
                "n_suspended": self._n_suspended,
            }
        }
        longest_ns = MOST_BLIND * (self._counted_ns - self._start_ns)
        if self._first_blind_ns is not None and self._blind_ns > longest_ns:
            details["is_thinned"] = True
            details["thinned_from_ns"] = self._first_blind_ns
        return details

    def _run(self) -> None:
        wait_ns = TICK_NS
        while not self._stop.wait(wait_ns / SECOND_NS):
            wait_ns = self._tick(time.monotonic_ns())

    def _tick(self, now_ns: int) -> int:
        """Look once, and do what must be done; return when to look again, in ns from now."""
        self._turn(now_ns)
        purse = self._purse
        if self._is_suspended:
            if self._can_resume and self._tracing.is_multi and purse.left_ns > 0:
                self._apply(self._wanted(0.9), now_ns)
            return TICK_NS
        if self._slice_ns is not None:
            if purse.left_ns <= 0 or now_ns - self._slice_ns >= SECOND_NS:
                self._close_slice()
        elif purse.left_ns <= 0:
            self._suspend()
        elif now_ns - self._planned_ns >= SECOND_NS:
            self._plan_again(now_ns)
        elif (
            self._plan.in_slices
            and now_ns >= self._next_slice_ns
            and purse.left_ns >= SLICE_PART * purse.room_ns
        ):
            return self._open_slice(now_ns)
        return TICK_NS

    def _turn(self, now_ns: int) -> None:
        """Take hits from the purse, and the time that passed as attached."""
        counts = (self._tracing.entries.n_reserved, self._tracing.returns.n_reserved)
        new = [count - before for count, before in zip(counts, self._before, strict=True)]
        self._before = counts
        cost = self._mean_cost()
        self._purse.turn(now_ns, new[0] * cost.entry_ns + new[1] * cost.return_ns)
        elapsed = now_ns - self._turned_ns
        self._turned_ns = now_ns
        with self._lock:
            if not self._is_suspended:
                self._attached_ns += elapsed
                if self._slice_ns is not None or not self._plan.in_slices:
                    self._whole_ns += elapsed
                else:
                    self._attached_ns[_mask(self._plan.in_slices)] -= elapsed
        if now_ns - self._cpu_read_ns >= CPU_NS or (self._threads and not self._cpu_ns):
            self._read_cpu(now_ns - self._cpu_read_ns)
            self._cpu_read_ns = now_ns
        if now_ns - self._looked_ns >= SECOND_NS:
            self._looked_ns = now_ns
            self._classes = self._watcher.cost_classes()
            with self._lock:
                for one in (self._hits, self._nested, self._returned, self._lasted_ns):
                    one *= DECAY
                self._attached_ns *= DECAY

    def _mean_cost(self) -> ProbeCost:
        """Cost of a record, by the functions that were called."""
        stepped = [SYMBOL_INDEX[name] for name, kind in self._classes.items() if kind == "stepped"]
        total = float(self._hits.sum())
        share = float(self._hits[stepped].sum()) / total if total else 0.0
        cheap, dear = self._costs["emulated"], self._costs["stepped"]
        return ProbeCost(cheap.entry_ns + share * (dear.entry_ns - cheap.entry_ns), cheap.return_ns)

    def _read_cpu(self, elapsed_ns: int) -> None:
        """CPU time of the launching threads since the last look."""
        before, self._cpu_ns = self._cpu_ns, {}
        used = 0
        for key in self._threads:
            data = proc.read_bytes(
                f"{self._root}/{key >> 32}/task/{key & 0xFFFFFFFF}/schedstat", 256
            )
            fields = (data or b"").split()
            if fields:
                self._cpu_ns[key] = int(fields[0])
                used += self._cpu_ns[key] - before.get(key, self._cpu_ns[key])
        if before:
            is_first = self._purse.cpu_share == FIRST_CPU_SHARE
            known = used / elapsed_ns if is_first else self._purse.cpu_share
            self._purse.cpu_share = max((used / elapsed_ns + known) / 2, MIN_CPU_SHARE)

    def _usages(self) -> dict[str, Usage]:
        """How every function that was called is called."""
        has_driver = self._watcher.has_driver()
        usages = {}
        with self._lock:
            for index in np.flatnonzero(self._hits > 0).tolist():
                symbol = SYMBOLS[index]
                layer = by_symbol[symbol].layer
                hits, returned = self._hits[index], self._returned[index]
                attached_ns = max(float(self._attached_ns[index]), float(TICK_NS))
                kind = self._classes.get(symbol, "emulated")
                usages[symbol] = Usage(
                    rate=float(hits) / attached_ns * SECOND_NS,
                    cost=self._costs["stepped" if kind == "stepped" else "emulated"],
                    duration_ns=float(self._lasted_ns[index] / returned) if returned else None,
                    is_driver=layer == "driver",
                    is_leaf=layer == "driver" or (layer == "runtime" and not has_driver),
                    nested_share=float(self._nested[index] / hits),
                )
        return usages

    def _wanted(self, part: float) -> Plan:
        return make_plan(self._usages(), part * self._purse.rate_ns)

    def _plan_again(self, now_ns: int) -> None:
        """Leave out more where the steady probes cost too much, less where there is room."""
        self._planned_ns = now_ns
        usages = self._usages()
        is_told = all(usages[name].is_covered for name in self._plan.covered if name in usages)
        if steady_ns(usages, self._plan) > self._purse.rate_ns or not is_told:
            self._apply(self._wanted(0.9), now_ns)
            return
        if self._plan.is_empty or now_ns - self._changed_ns < RESTORE_NS:
            return
        wanted = self._wanted(RESTORE_PART)
        if (
            wanted.in_slices <= self._plan.in_slices
            and wanted.entry_only <= self._plan.entry_only | self._plan.in_slices
            and wanted != self._plan
        ):
            self._apply(wanted, now_ns)

    def _apply(self, plan: Plan, now_ns: int) -> None:
        """Attach what a plan leaves, where another was, or nothing."""
        if plan == self._plan and not self._is_suspended:
            return
        if not self._is_suspended:
            self._note_cut(None)
        self._watcher.apply(plan)
        if not self._is_suspended:
            self._note_cut(None)
        is_new = plan != self._plan
        after_ns = time.monotonic_ns()
        with self._lock:
            self._is_suspended, self._can_resume = False, False
            self._slice_ns = None
            self._plan = plan
            self._planned_ns = self._changed_ns = after_ns
            self._next_slice_ns = after_ns + SLICE_PERIOD_NS
            self._end_blindness(after_ns, plan.sliced)
            for symbol in plan.sliced:
                self._blind_since.setdefault(symbol, now_ns)
            if is_new:
                self._events.append((after_ns, None, _plan_text(plan)))
        self._turned_ns = after_ns

    def _suspend(self) -> None:
        """Detach everything: the purse is empty."""
        self._note_cut(None)
        self._watcher.suspend()
        self._note_cut(None)
        now_ns = time.monotonic_ns()
        with self._lock:
            self._is_suspended, self._can_resume = True, False
            self._n_suspended += 1
            for symbol in self._classes:
                self._blind_since.setdefault(symbol, now_ns)

    def _open_slice(self, now_ns: int) -> int:
        self._watcher.open_slice()
        self._slice_ns = time.monotonic_ns()
        self._turned_ns = self._slice_ns
        self._next_slice_ns = now_ns + SLICE_PERIOD_NS
        with self._lock:
            self._end_blindness(self._slice_ns, frozenset())
        per_second = slice_ns(self._usages(), self._plan) + steady_ns(self._usages(), self._plan)
        lasts_ns = self._purse.left_ns / max(per_second, 1.0) * SECOND_NS
        return int(min(max(lasts_ns, 1_000_000), TICK_NS))

    def _close_slice(self) -> None:
        self._note_cut(self._plan.in_slices)
        self._watcher.close_slice()
        self._note_cut(self._plan.in_slices)
        now_ns = time.monotonic_ns()
        self._slice_ns = None
        with self._lock:
            for symbol in self._plan.sliced:
                self._blind_since.setdefault(symbol, now_ns)

    def _note_cut(self, symbols: frozenset[str] | None) -> None:
        """Calls of some functions (None: of all) that began before now may have returned unseen."""
        mask = np.ones(len(SYMBOLS), np.bool_) if symbols is None else _mask(symbols)
        with self._lock:
            if self._cut is not None:
                mask = mask | self._cut[1]
            self._cut = (time.monotonic_ns(), mask)

    def _end_blindness(self, now_ns: int, but: frozenset[str]) -> None:
        """Functions are recorded again; to be called with the lock held."""
        self._count_unseen(now_ns)
        ended = [symbol for symbol in self._blind_since if symbol not in but]
        since = [self._blind_since.pop(symbol) for symbol in ended]
        called = [
            begin
            for symbol, begin in zip(ended, since, strict=True)
            if self._hits[SYMBOL_INDEX[symbol]] > 0
        ]
        if not called:
            return
        begin = min(called)
        if self._first_blind_ns is None:
            self._first_blind_ns = begin
        self._events.append(
            (begin, now_ns - begin, f"Calls of {len(called)} functions were not recorded (budget).")
        )

    def _count_unseen(self, now_ns: int) -> None:
        """Estimate what was not recorded since the last time; with the lock held."""
        begin, self._counted_ns = self._counted_ns, now_ns
        longest = 0
        for symbol, since in self._blind_since.items():
            index = SYMBOL_INDEX[symbol]
            if self._attached_ns[index] <= 0 or self._hits[index] <= 0:
                continue
            blind_ns = max(now_ns - max(since, begin), 0)
            longest = max(longest, blind_ns)
            self._unseen[symbol] += round(
                float(self._hits[index] / self._attached_ns[index]) * blind_ns
            )
        self._blind_ns += longest


def _mask(symbols: frozenset[str]) -> npt.NDArray[np.bool_]:
    mask = np.zeros(len(SYMBOLS), np.bool_)
    mask[[SYMBOL_INDEX[symbol] for symbol in symbols]] = True
    return mask


def _plan_text(plan: Plan) -> str:
    """What a plan leaves out, for the reader."""
    if plan.is_empty:
        return "Everything is recorded again."
    parts = [
        f"{what}: {', '.join(sorted(names))}"
        for what, names in (
            ("returns are not recorded", plan.entry_only),
            ("recorded in slices, the runtime call around tells of them", plan.covered),
            ("recorded in slices of time", plan.sliced),
        )
        if names
    ]
    return f"Left out to stay within the budget: {'; '.join(parts)}."
