"""Whose quota throttled the targets."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.host import load_throttling
from tests.analysis.builder import SessionBuilder

S = 1_000_000_000


def throttled(path: Path, cgroups: set[str], **throttled: int) -> tuple[str, int] | None:
    """Scope and count of what is found, of cgroups with so many throttled periods a second."""
    rows = [
        {
            "time_ns": second * S,
            "scope": scope,
            "cpu_quota_ns": 50_000_000,
            "cpu_period_ns": 100_000_000,
            "n_cpu_periods": 10 * second,
            "n_cpu_throttled": n * second,
            "cpu_throttled_ns": n * second * 1_000_000,
        }
        for second in range(1, 20)
        for scope, n in throttled.items()
    ]
    session = SessionBuilder(path / "s").add("host_sample", rows).write()
    found = load_throttling(session, cgroups)
    return None if found is None else (found.scope, found.n_throttled // 18)


@pytest.mark.parametrize(
    ("cgroups", "expected"),
    [
        ({"/kube/pod/c"}, ("/kube/pod", 9)),
        ({"/kube/pod"}, ("/kube/pod", 9)),
        ({"/kube/podother"}, ("/other", 10)),
        ({"/other"}, ("/other", 10)),
        (set(), ("/other", 10)),
    ],
)
def test_the_quota_of_an_ancestor_throttles_all_below_it(
    tmp_path: Path, cgroups: set[str], expected: tuple[str, int]
) -> None:
    counts = {"/kube/pod/c": 0, "/kube/pod": 9, "/other": 10}
    assert throttled(tmp_path, cgroups, **counts) == expected


def test_the_top_of_a_cgroup_namespace_is_an_ancestor_of_all(tmp_path: Path) -> None:
    assert throttled(tmp_path, {"/a"}, **{"/a": 0, "/": 7}) == ("/", 7)
    assert throttled(tmp_path / "2", {"/"}, **{"/": 7}) == ("/", 7)
