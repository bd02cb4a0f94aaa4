"""A recording that kept to a budget: what was left out is not taken for silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis import attribute, open_session
from analysis.causes import CAUSES
from analysis.finding import Status
from analysis.manifest import FILE_NAME
from tests.analysis.builder import S, Service

LENGTH_S = 12


def budgeted(path: Path, blind_s: float) -> None:
    """A healthy service, of which so much was not recorded, from the first second on."""
    service = Service()
    service.decode_until(service.start + LENGTH_S * S)
    service.session(path)
    data = json.loads((path / FILE_NAME).read_text())
    details = {"budget": {"share": 0.01, "blind_ns": int(blind_s * S)}}
    if blind_s / LENGTH_S > 0.01:
        details |= {"is_thinned": True, "thinned_from_ns": service.start + S // 10}
    data["sources"] = [one for one in data["sources"] if one["name"] != "cuda"]
    data["sources"].append(
        {"name": "cuda", "state": "degraded", "tables": ["cuda_call"], "details": details}
    )
    (path / FILE_NAME).write_text(json.dumps(data))


def test_nothing_about_calls_is_ruled_out_where_most_were_left_out(tmp_path: Path) -> None:
    budgeted(tmp_path / "s", 11.5)
    result = attribute(open_session(tmp_path / "s"))
    resting = {cause.slug for cause in CAUSES if cause.needs and "cuda_call" in cause.needs.tables}
    ruled_out = {one.cause for one in result.checked if one.status is Status.NOT_FOUND}
    assert resting and not ruled_out & resting
    withheld = [one for one in result.checked if "budget" in (one.undecided_because or "")]
    assert "launch.cpu_delay" in {one.cause for one in withheld}
    assert not [one for one in result.findings if one.status is Status.FOUND]
    assert result.verdict.cause != "hang.kernel"


@pytest.mark.parametrize("blind_s", [0.0, 0.05])
def test_a_moment_left_out_changes_nothing(tmp_path: Path, blind_s: float) -> None:
    budgeted(tmp_path / "s", blind_s)
    result = attribute(open_session(tmp_path / "s"))
    assert result.verdict.cause == "healthy"
    assert any(one.status is Status.NOT_FOUND for one in result.checked)


def test_what_the_engine_tells_holds_where_calls_were_left_out(tmp_path: Path) -> None:
    """Requests ran all the time: that is no lack of demand, and no health that was seen."""
    budgeted(tmp_path / "s", 11.9)
    result = attribute(open_session(tmp_path / "s"))
    assert result.verdict.cause == "unknown"
    assert "left out" in result.verdict.text
    excluded = [one for answer in result.checked for one in answer.excluded]
    assert not {one.cause for one in excluded} & {"launch.cpu_delay", "hang.kernel"}
