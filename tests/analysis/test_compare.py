"""Two recordings compared: what changed, what did not, and when that cannot be told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.compare import LEAST_SHARE, Change, Comparison, compare
from analysis.finding import Status
from analysis.kept import FILE_NAME as kept_file
from analysis.kept import Kept
from analysis.manifest import Source
from analysis.report.comparison import render_comparison
from analysis.timeline import Session, TimelineError
from tests.analysis.builder import MS, S, Service


def service(seed: int, **options: object) -> Service:
    return Service(seed=seed, **options)  # type: ignore[arg-type]


def decoded(path: Path, seed: int, seconds: int = 30, slower: float = 1.0, **options: object):
    played = service(seed, **options)
    played.decode_until(played.start + seconds * S, slower)
    return played.session(path)


def by_name(comparison: Comparison) -> dict[str, Change]:
    return {f"{item.measure.group}: {item.measure.name}": item for item in comparison.changes}


def test_the_same_service_twice_has_no_change_beyond_noise(tmp_path: Path):
    for seed in range(2):
        before = decoded(tmp_path / f"b{seed}", seed)
        after = decoded(tmp_path / f"a{seed}", seed + 100)
        comparison = compare(before, after)
        assert comparison.changed == [], [item.measure.name for item in comparison.changed]
        assert comparison.regression.status is Status.NOT_FOUND
        assert len(comparison.changes) >= 10
        text = render_comparison(comparison)
        assert text.startswith("NO CHANGE BEYOND NOISE")
        assert all(len(line) < 100 for line in text.splitlines())


def test_the_interval_that_is_printed_is_the_one_that_decides(tmp_path: Path):
    comparison = compare(decoded(tmp_path / "b", 1), decoded(tmp_path / "a", 2, slower=1.2))
    n_compared = len({item.measure for item in comparison.changes})
    assert 1 - 0.05 / n_compared <= comparison.deciding_level < 1
    text = render_comparison(comparison)
    level = f"{100 * comparison.deciding_level:.4g} %"
    assert text.count(f"figures; intervals of {level})") == 2 and f"the {level} interval" in text
    assert comparison.changed and len(comparison.changed) < n_compared
    for item in comparison.changes:
        assert item.deciding_low < item.low <= item.high < item.deciding_high or (
            item.low == item.high == item.deciding_low == item.deciding_high
        )
        leaves_out_0 = item.deciding_low > 0 or item.deciding_high < 0
        if item.measure.is_relative:
            is_large = abs(item.after - item.before) >= LEAST_SHARE * max(item.after, item.before)
            assert item.is_beyond_noise == (leaves_out_0 and is_large)
            shown = f"[{100 * item.deciding_low:+.1f}, {100 * item.deciding_high:+.1f}]"
            assert shown in text or max(abs(item.deciding_low), item.deciding_high) >= 10
    # A figure that the plain interval calls changed and the deciding one does not.
    item = replace(
        comparison.changes[0], low=-0.257, high=-0.118, deciding_low=-0.31, deciding_high=0.02
    )
    told = render_comparison(replace(comparison, changes=[replace(item, is_beyond_noise=False)]))
    assert "[-31.0, +2.0]" in told and "-25.7" not in told
    # One that is told apart from noise, and too small to be a change.
    item = replace(item, deciding_low=0.001, deciding_high=0.004, is_beyond_noise=False)
    [row] = [
        line
        for line in render_comparison(replace(comparison, changes=[item])).splitlines()
        if "[+0.1, +0.4]" in line
    ]
    assert row.startswith("  ~ ")


def test_both_values_of_a_row_are_in_one_unit(tmp_path: Path):
    comparison = compare(decoded(tmp_path / "b", 1), decoded(tmp_path / "a", 2))
    row = by_name(comparison)["launches: cudaGraphLaunch, p50"]
    for before, after, told in (
        (11_210, 8_281, "11.21 -> 8.281 µs"),
        (960, 1_020, "0.96 -> 1.02 µs"),
        (1_200_000, 999_000, "1.2 -> 0.999 ms"),
    ):
        changed = replace(row, before=float(before), after=float(after))
        assert told in render_comparison(replace(comparison, changes=[changed]))


def test_an_eighteen_percent_slower_device_is_a_regression(tmp_path: Path):
    before, after = decoded(tmp_path / "b", 1), decoded(tmp_path / "a", 2, slower=1.2)
    comparison = compare(before, after)
    found = comparison.regression
    assert found.status is Status.FOUND and found.confidence >= 0.8
    tokens = by_name(comparison)["service: tokens generated"]
    assert tokens.is_worse and tokens.low < tokens.difference < tokens.high < 0
    # A step is 8 ms of device and 0.7 ms of host: 9.6 + 0.7 against 8 + 0.7.
    assert tokens.difference == pytest.approx(8.8 / 10.4 - 1, abs=0.02)
    assert not by_name(comparison)["launches: cudaGraphLaunch, p50"].is_beyond_noise
    text = render_comparison(comparison)
    assert text.startswith("REGRESSION")
    assert f"tokens generated {100 * tokens.difference:.0f} %" in text.replace("\n", " ")


def test_slower_launches_show_by_function(tmp_path: Path):
    before, after = decoded(tmp_path / "b", 1), decoded(tmp_path / "a", 2, launch=30_000)
    launches = by_name(compare(before, after))["launches: cudaLaunchKernel, p50"]
    assert launches.is_worse and launches.n_before > 1000
    assert launches.before == pytest.approx(8_000, rel=0.05)
    assert launches.after == pytest.approx(30_000, rel=0.05)


def test_a_launching_thread_that_now_waits_shows_in_scheduling_and_budget(tmp_path: Path):
    played = service(2)
    while played.now < played.start + 30 * S:
        played.preempt(4 * MS)
        played.decode_step()
    comparison = compare(decoded(tmp_path / "b", 1), played.session(tmp_path / "a"))
    changes = by_name(comparison)
    assert comparison.after.attribution.verdict.cause == "launch.cpu_delay"
    assert changes["budget: idle: cpu_delay"].difference > 20
    assert changes["scheduling: waiting for a CPU"].is_worse


def test_more_load_is_no_regression(tmp_path: Path):
    before = decoded(tmp_path / "b", 1, running=4)
    after = decoded(tmp_path / "a", 2, slower=1.5, running=16)
    comparison = compare(before, after)
    assert by_name(comparison)["load: requests in the system"].is_beyond_noise
    assert comparison.regression.status is Status.UNDECIDED
    assert "requests in the system" in comparison.regression.undecided_because
    assert comparison.regression.settled_by


def test_without_the_engine_nothing_is_said_about_the_service(tmp_path: Path):
    before = decoded(tmp_path / "b", 1, has_engine=False)
    after = decoded(tmp_path / "a", 2, slower=1.3, has_engine=False)
    comparison = compare(before, after)
    assert comparison.regression.status is Status.NOT_APPLICABLE
    assert "--engine URL" in comparison.regression.undecided_because
    assert by_name(comparison)["launches: launches"].is_beyond_noise


def test_two_ranges_of_one_session(tmp_path: Path):
    played = service(5)
    played.decode_until(played.start + 30 * S)
    middle = played.now
    played.decode_until(middle + 30 * S, 1.3)
    session = played.session(tmp_path / "s")
    comparison = compare(
        session.between(session.start_ns, middle), session.between(middle, session.end_ns)
    )
    assert comparison.regression.status is Status.FOUND
    same = compare(
        session.between(session.start_ns, session.start_ns + 14 * S),
        session.between(session.start_ns + 14 * S, session.start_ns + 28 * S),
    )
    assert same.regression.status is Status.NOT_FOUND


def test_what_only_one_has_is_named(tmp_path: Path):
    comparison = compare(decoded(tmp_path / "b", 1), decoded(tmp_path / "a", 2, has_nvml=False))
    assert "device, utilisation (device 0): only in BEFORE" in comparison.not_compared
    json.dumps(comparison.to_json(), allow_nan=False)


def test_calls_that_were_not_kept_are_not_compared(tmp_path: Path):
    """Absent rows of a stretch without full detail must not look like fewer calls."""
    before, after = decoded(tmp_path / "b", 1), decoded(tmp_path / "a", 2)
    kept = Kept(detail_from_ns=after.start_ns + 20 * S)
    (after.path / kept_file).write_text(kept.to_json())
    comparison = compare(before, after)
    assert not [item for item in comparison.changes if item.measure.group == "launches"]
    assert "AFTER: full detail was not kept" in comparison.notes[0]
    assert "launches, launches: only in BEFORE" in comparison.not_compared
    late = after.between(after.start_ns + 20 * S, after.end_ns)
    assert [item for item in compare(before, late).changes if item.measure.group == "launches"]


def test_outliers_alone_are_not_compared(tmp_path: Path):
    before = decoded(tmp_path / "b", 1)
    played = service(2)
    played.decode_until(played.start + 30 * S)
    details = {"is_thinned": True, "thinned_from_ns": played.start + 10 * S}
    after = played.session(tmp_path / "a", sources=[Source("cuda", "degraded", details=details)])
    comparison = compare(before, after)
    assert not [item for item in comparison.changes if item.measure.group == "launches"]
    assert "outliers only" in comparison.notes[0]


def test_too_short_is_said(tmp_path: Path):
    short: Session = decoded(tmp_path / "b", 1, seconds=5)
    with pytest.raises(TimelineError, match=r"BEFORE is 5\.\d s long, too short"):
        compare(short, short)
