"""Durations and session paths on the command line."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tracer import cli
from tracer.commands.parameters import find_session, parse_duration, parse_share
from tracer.errors import InputError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("1h30m", 5400),
        ("500ms", 0.5),
        ("2", 2),
        ("1.5s", 1.5),
        ("1d", 86400),
    ],
)
def test_durations(text, seconds):
    assert parse_duration(text) == seconds * 1_000_000_000


@pytest.mark.parametrize("text", ["", "s", "5x", "-3s", "3s later", "0s", "1e3"])
def test_what_is_not_a_duration_says_what_is(text):
    with pytest.raises(click.BadParameter, match="30s"):
        parse_duration(text)


def test_the_ending_of_a_session_may_be_left_out_or_added(tmp_path):
    (tmp_path / "a.tracer").mkdir()
    (tmp_path / "b").mkdir()
    assert find_session(tmp_path / "a") == tmp_path / "a.tracer"
    assert find_session(tmp_path / "b.tracer") == tmp_path / "b"
    for name in ("c", ".tracer", "x" * 255, "x" * 300):
        with pytest.raises(InputError, match="record -o"):
            find_session(tmp_path / name)


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), (" 0.5 % ", 0.005), ("100%", 1.0)])
def test_a_share_is_a_percentage(text, share):
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["1", "0%", "101%", "-1%", "one", "", "1%%"])
def test_what_is_no_percentage_is_refused_with_an_example(text):
    with pytest.raises(click.BadParameter, match="write for example 1%"):
        parse_share(text)


def test_a_path_without_a_name_is_a_directory_like_any_other(tmp_path, monkeypatch):
    assert find_session(Path("/")) == Path("/")
    monkeypatch.chdir(tmp_path)
    assert find_session(Path()) == Path()


@pytest.mark.parametrize("name", ["", "/", ".", "..", "x" * 300])
@pytest.mark.parametrize(
    "command",
    [
        ["analyze", "S"],
        ["report", "S"],
        ["recover", "S"],
        ["diff", "S", "S"],
        ["diff", "S@1s..2s", "S"],
        ["export", "csv", "S"],
        ["import", "S", "-o", "made"],
        ["kv-budget", "S"],
    ],
)
def test_what_is_no_session_is_one_sentence(command, name, tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert cli.run([part.replace("S", name) for part in command]) == 3
    told = capsys.readouterr().err
    assert told.startswith("tracer: ") and told.count("\n") == 1
    assert not list((tmp_path / "empty").iterdir())
