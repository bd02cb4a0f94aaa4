"""Options for device times that contradict each other, before anything is started."""

from __future__ import annotations

import pytest

from tracer.cli import run
from tracer.commands.cupti_options import parse_cupti
from tracer.errors import UsageError

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("options", "words"),
    (
        ((False, 2 * SECOND, 60 * SECOND, False, True), "need --cupti"),
        ((False, None, None, True, True), "need --cupti"),
        ((True, 2 * SECOND, None, False, True), "needs --every T or --trigger WHEN"),
        ((True, None, 2 * SECOND, False, True), "--every T needs --window T"),
        ((True, 2 * SECOND, SECOND, False, True), "--every must be longer"),
        ((True, 1000, SECOND, False, True), "shorter than 100ms"),
    ),
)
def test_contradictions_are_refused_with_the_way_out(options: tuple, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_cupti(*options)


def test_windows_may_come_with_triggers_alone() -> None:
    options = parse_cupti(True, 2 * SECOND, None, False, False, True)
    assert options is not None
    assert (options.window_ns, options.every_ns) == (2 * SECOND, None)


def test_another_library_of_the_same_kind_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/other.so")
    with pytest.raises(UsageError, match=r"set to /opt/other.so already"):
        parse_cupti(True, None, None, False, True)


def test_a_place_is_prepared_once(tmp_path, capsys) -> None:
    place = tmp_path / "engine"
    assert run(["cupti", "--directory", str(place)]) == 0
    printed = dict(line.split("=", 1) for line in capsys.readouterr().out.splitlines())
    assert printed == {
        "CUDA_INJECTION64_PATH": str(place / "libtracer_cupti.so"),
        "NVTX_INJECTION64_PATH": str(place / "libtracer_cupti.so"),
        "TRACER_CUPTI": str(place),
    }
    assert place.stat().st_mode & 0o777 == 0o700
    assert run(["cupti", "--directory", str(place)]) == 2
    assert "prepared already" in capsys.readouterr().err
