"""Durations and session paths on the command line."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tracer import cli
from tracer.commands.parameters import find_session, parse_bytes, parse_duration, parse_share
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


@pytest.mark.parametrize(
    "text", ["9" * 400 + "d", "9" * 400, "36501d", "36500d1s", "9" * 30 + "ms"]
)
def test_a_time_without_bound_is_refused_in_one_short_line(text):
    with pytest.raises(click.BadParameter, match="the longest is 36500d") as error:
        parse_duration(text)
    assert len(error.value.message) < 120


def test_the_longest_time_fits_twice_into_64_bits():
    assert 2 * parse_duration("36500d") < 2**63


def test_sizes():
    assert [parse_bytes(text) for text in ("500M", "2g", "1.5kb", "7")] == [
        500_000_000,
        2_000_000_000,
        1500,
        7,
    ]
    for text in ("9" * 400, "9" * 400 + "t", "1000001T"):
        with pytest.raises(click.BadParameter, match="the largest is 1000000T") as error:
            parse_bytes(text)
        assert len(error.value.message) < 120
    with pytest.raises(click.BadParameter, match="write for example 500M"):
        parse_bytes("much")


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


def test_a_file_and_a_range_are_told_from_what_is_missing(tmp_path, capsys):
    (tmp_path / "s.tracer").mkdir()
    (tmp_path / "notes.md").touch()
    for name in ("notes.md", "notes.md@1s..2s"):
        assert cli.run(["analyze", str(tmp_path / name)]) == 3
        told = capsys.readouterr().err
        assert "notes.md is a file, not a session directory; give" in told
        assert "does not exist" not in told
    assert cli.run(["export", "csv", str(tmp_path / "s.tracer@1s..2s")]) == 3
    assert "analyze, diff and report take a range" in capsys.readouterr().err
