"""A few rounds of attaching under load; ``python -m tests.e2e.harm`` makes a hundred."""

from __future__ import annotations

import pytest

from tests.e2e.harm import harass

pytestmark = pytest.mark.root


def test_a_target_under_load_is_not_harmed_by_recorders_that_come_and_go(tmp_path):
    outcome = harass(tmp_path, rounds=3, kills=1, seed=3)
    assert outcome.is_unharmed, outcome
    assert outcome.n_recorded > 0
