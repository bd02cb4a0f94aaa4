"""``tracer causes`` prints what is declared."""

from __future__ import annotations

import pytest

from analysis.causes import CAUSES
from tracer import cli


def test_every_cause_is_listed(capsys):
    assert cli.run(["causes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for cause in CAUSES:
        line = next(line for line in lines if line.split()[:1] == [cause.slug])
        assert cause.title in line
        assert line.endswith("(*)") == (not cause.is_implemented and not cause.stated_by)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.slug)
def test_each_is_told_in_full(capsys, cause):
    assert cli.run(["causes", cause.slug]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for part in (cause.meaning, cause.proof, cause.advice):
        assert " ".join(part.split()) in text
    for table in () if cause.needs is None else cause.needs.tables:
        assert table in text


def test_a_wrong_name_gets_a_close_one(capsys):
    assert cli.run(["causes", "prefill.hoging"]) == 2
    assert "did you mean prefill.hogging?" in capsys.readouterr().err
