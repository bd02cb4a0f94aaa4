"""What is left out for a budget, and when: decisions over made-up rates and a made-up clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probes.cuda.budget import (
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
from probes.cuda.functions import SYMBOL_INDEX
from probes.cuda.pairing import ENTRY_DTYPE, Calls
from probes.cuda.program import NO_RETURN
from probes.cuda.shedding import TICK_NS, Shedder

COST = ProbeCost(900.0, 700.0)
PERCENT_NS = 0.01 * SECOND_NS


def usage(rate: float, *, is_driver: bool = False, nested: float = 0.0, **more: Any) -> Usage:
    told = {"duration_ns": 3000.0, "is_leaf": is_driver, **more}
    return Usage(rate, COST, is_driver=is_driver, nested_share=nested, **told)


def launches(rate: float) -> dict[str, Usage]:
    return {
        "cudaLaunchKernel": usage(rate),
        "cuLaunchKernel": usage(rate, is_driver=True, nested=1.0),
        "cudaStreamSynchronize": usage(50, duration_ns=5e6),
    }


def test_nothing_is_left_out_where_all_fits():
    assert make_plan(launches(1000), PERCENT_NS) == NOTHING_SHED


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (3_500, Plan(entry_only=frozenset({"cuLaunchKernel"}))),
        (5_500, Plan(covered=frozenset({"cuLaunchKernel"}))),
        (
            100_000,
            Plan(covered=frozenset({"cuLaunchKernel"}), sliced=frozenset({"cudaLaunchKernel"})),
        ),
    ],
    ids=["returns of cheap calls", "the covered layer", "slices"],
)
def test_it_is_left_out_in_the_declared_order(rate, expected):
    usages = launches(rate)
    plan = make_plan(usages, PERCENT_NS)
    assert plan == expected
    assert steady_ns(usages, plan) <= PERCENT_NS


def test_a_rare_call_is_never_left_out():
    plan = make_plan(launches(500_000), PERCENT_NS)
    assert "cudaStreamSynchronize" not in plan.in_slices | plan.entry_only
    assert slice_ns(launches(500_000), plan) == pytest.approx(2 * 500_000 * COST.pair_ns)


def test_a_driver_call_of_its_own_is_not_covered_and_a_long_call_is_not_cheap():
    usages = {
        "cuLaunchKernel": usage(6_500, is_driver=True, nested=0.5, duration_ns=90_000.0),
        "cuEventQuery": usage(100, is_driver=True),
    }
    plan = make_plan(usages, PERCENT_NS)
    assert plan.sliced == {"cuLaunchKernel"} and not plan.covered


def test_the_purse_saves_one_second_and_remembers_debt():
    purse = Purse(0.01, cpu_share=1.0)
    purse.turn(0, 0)
    assert purse.left_ns == PERCENT_NS
    purse.turn(10 * SECOND_NS, 0)
    assert purse.left_ns == PERCENT_NS
    purse.turn(11 * SECOND_NS, 3 * PERCENT_NS)
    assert purse.left_ns == -2 * PERCENT_NS
    purse.turn(14 * SECOND_NS, 0)
    assert purse.left_ns == PERCENT_NS
    assert purse.spent_ns == 3 * PERCENT_NS and purse.earned_ns == 14 * PERCENT_NS


class FakeRing:
    n_reserved = 0


class FakeSide:
    """Rings that are filled by calls of one function as long as it is attached."""

    is_multi = True

    def __init__(self) -> None:
        self.entries, self.returns = FakeRing(), FakeRing()
        self.plan: Plan | None = NOTHING_SHED
        self.is_open = False
        self.done: list[str] = []

    # As the watcher.
    def cost_classes(self) -> dict[str, str]:
        return {"cudaLaunchKernel": "emulated"}

    def has_driver(self) -> bool:
        return False

    def suspend(self) -> None:
        self.plan, self.is_open = None, False
        self.done.append("suspend")

    def apply(self, plan: Plan) -> None:
        self.plan, self.is_open = plan, False
        self.done.append("apply")

    def open_slice(self) -> None:
        self.is_open = True
        self.done.append("open")

    def close_slice(self) -> None:
        self.is_open = False
        self.done.append("close")

    def is_attached(self) -> bool:
        return self.plan is not None and (
            self.is_open or "cudaLaunchKernel" not in self.plan.in_slices
        )


def calls_of(n: int, side: FakeSide) -> Calls:
    entries = np.zeros(n, ENTRY_DTYPE)
    entries["function"] = SYMBOL_INDEX["cudaLaunchKernel"]
    has_return = side.plan is None or "cudaLaunchKernel" not in side.plan.entry_only
    entries["depth"] = 0 if has_return else NO_RETURN
    nothing = np.zeros(n, np.int64)
    end_ns = np.full(n, 3000 if has_return else -1)
    return Calls(entries, nothing, nothing, nothing, end_ns, nothing)


def one_busy_thread(shedder: Shedder, _elapsed_ns: int) -> None:
    shedder._purse.cpu_share = 1.0


def play(monkeypatch: pytest.MonkeyPatch, rate: int, seconds: int) -> tuple[Shedder, FakeSide, int]:
    """Call at a rate, tick and drain by a made-up clock; return also what was recorded."""
    side = FakeSide()
    clock = [SECOND_NS]
    monkeypatch.setattr("probes.cuda.shedding.time.monotonic_ns", lambda: clock[0])
    monkeypatch.setattr(Shedder, "_read_cpu", one_busy_thread)
    shedder = Shedder(0.01, {"emulated": COST, "stepped": COST}, side, side)  # type: ignore[arg-type]
    monkeypatch.setattr("threading.Thread.start", lambda _: None)
    shedder.start()
    waiting = n_recorded = 0
    step_ns = 1_000_000
    due_ns = clock[0]
    for step in range(seconds * SECOND_NS // step_ns):
        clock[0] += step_ns
        if side.is_attached():
            n = rate * step_ns // SECOND_NS
            side.entries.n_reserved += n
            if side.plan is not None and "cudaLaunchKernel" not in side.plan.entry_only:
                side.returns.n_reserved += n
            waiting += n
            n_recorded += n
        if clock[0] >= due_ns:
            due_ns = clock[0] + min(shedder._tick(clock[0]), TICK_NS)
        if step % 100 == 99:
            calls = calls_of(waiting, side)
            shedder.note(calls.entries, calls, [])
            waiting = 0
    return shedder, side, n_recorded


@pytest.mark.parametrize("rate", [1_000, 10_000, 100_000, 500_000])
def test_the_budget_holds_at_every_rate(monkeypatch, rate):
    shedder, side, n_recorded = play(monkeypatch, rate, 20)
    budget = shedder.details()["budget"]
    # The purse may be full at the begin: one second's worth on top.
    assert budget["spent_ns"] <= budget["allowed_ns"] + 1.7 * PERCENT_NS
    assert budget["spent_ns"] > 0.3 * min(budget["allowed_ns"], 20 * rate * COST.pair_ns)
    if rate == 1_000:
        assert side.done == [] and n_recorded == 20_000
        assert "is_thinned" not in shedder.details() and shedder.note_text() == ""


def test_what_is_left_out_is_told_with_its_number(monkeypatch):
    shedder, side, n_recorded = play(monkeypatch, 100_000, 20)
    assert shedder.details()["is_thinned"] is True
    assert shedder.details()["thinned_from_ns"] < 2 * SECOND_NS
    rows = {batch.table.name: batch.rows.to_pylist() for batch in shedder.batches(21 * SECOND_NS)}
    assert {row["kind"] for row in rows["event"]} == {"shed"}
    assert sum(row["duration_ns"] is not None for row in rows["event"]) > 5
    (loss,) = rows["loss"]
    assert (loss["reason"], loss["function"]) == ("shed", "cudaLaunchKernel")
    assert n_recorded + loss["n_lost"] == pytest.approx(20 * 100_000, rel=0.15)
    assert {"open", "close"} <= set(side.done)


def test_all_is_recorded_again_when_the_rate_falls(monkeypatch):
    shedder, side, _ = play(monkeypatch, 100_000, 5)
    assert not shedder._plan.is_empty
    now_ns = 7 * SECOND_NS
    monkeypatch.setattr("probes.cuda.shedding.time.monotonic_ns", lambda: now_ns)
    for _ in range(1500):
        now_ns += TICK_NS
        shedder._tick(now_ns)
    assert shedder._plan.is_empty and side.plan == NOTHING_SHED


def test_open_calls_of_what_was_detached_are_doubted_once(monkeypatch):
    shedder, _, _ = play(monkeypatch, 100_000, 5)
    cut = shedder.take_cut()
    assert cut is not None and cut[1][SYMBOL_INDEX["cudaLaunchKernel"]]
    assert shedder.take_cut() is None


def test_without_slices_recording_ends_when_the_budget_is_used_up(monkeypatch):
    monkeypatch.setattr(FakeSide, "is_multi", False)
    shedder, side, _ = play(monkeypatch, 100_000, 5)
    assert side.done == ["suspend"]
    assert "was ended" in shedder.note_text()
