"""The short form of the fault injection (``python -m tests.e2e.faults`` is the long one)."""

from __future__ import annotations

import pytest

from tests.e2e.faults import FAULTS, run


@pytest.mark.root
@pytest.mark.parametrize(
    ("fault", "n_runs"),
    [(fault, n_short) for fault, _, n_short in FAULTS if n_short],
    ids=[fault.__name__ for fault, _, n_short in FAULTS if n_short],
)
def test_what_a_fault_leaves_can_be_read_and_says_what_is_missing(fault, n_runs):
    outcome = run(fault, n_runs, seed=20)
    if not outcome.is_good:  # a machine that was busy with other things is given another chance
        outcome = run(fault, n_runs, seed=21)
    for reason in outcome.seen:
        if reason.startswith("not done"):
            pytest.skip(reason)
    assert outcome.n_runs >= n_runs
    assert outcome.is_good, outcome.line()
