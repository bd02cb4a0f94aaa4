"""``tracer analyze``: the chain of evidence of one cause, and exit codes for soak runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.kept import Kept
from tests.analysis.builder import MS, S, Service, SessionBuilder
from tracer import cli


@pytest.fixture(scope="module")
def delayed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A session whose launching thread is pushed off its CPU."""
    service = Service(seed=1)
    while service.now < service.start + 12 * S:
        service.preempt(20 * MS)
        service.decode_step()
    return str(service.session(tmp_path_factory.mktemp("delayed") / "s.tracer").path)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> str:
    service = Service(seed=2)
    service.decode_until(service.start + 12 * S)
    return str(service.session(tmp_path_factory.mktemp("healthy") / "s.tracer").path)


def test_explain_shows_the_whole_chain(delayed: str, capsys):
    assert cli.run(["analyze", delayed, "--explain", "launch.cpu_delay"]) == 0
    text = capsys.readouterr().out
    for part in (
        "launch.cpu_delay: the launching thread waited for a CPU",
        "What proves it:",
        "It is the verdict (",
        "offcpu (required):",
        "FOUND, ",
        "EVIDENCE",
        "(n = ",
        "Price: removing it returns at most",
        "INTERVALS (",
        "stress-ng",
        "Do: ",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.fixture(scope="module")
def blind(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A session without the scheduler."""
    service = Service(seed=3)
    service.decode_until(service.start + 12 * S)
    del service.rows["offcpu"]
    return str(service.session(tmp_path_factory.mktemp("blind") / "s.tracer").path)


def test_explain_says_what_is_missing_and_what_was_ruled_out(blind: str, capsys):
    assert cli.run(["analyze", blind, "--explain", "launch.cpu_delay"]) == 0
    text = capsys.readouterr().out
    assert "COULD NOT BE LOOKED FOR" in text
    assert "offcpu (required): not recorded" in text
    assert "record it with: tracer record" in text
    assert cli.run(["analyze", blind, "--explain", "hang.kernel"]) == 0
    assert "NOT FOUND" in capsys.readouterr().out


def test_explain_an_outcome_lists_every_answer(healthy: str, capsys):
    assert cli.run(["analyze", healthy, "--explain", "healthy"]) == 0
    text = capsys.readouterr().out
    assert "WHAT EVERY ANALYZER ANSWERED" in text
    assert "hang.kernel: not found" in text


def test_explain_a_word_that_is_none(delayed: str, capsys):
    assert cli.run(["analyze", delayed, "--explain", "launch.cpu_dely"]) == 2
    assert "did you mean launch.cpu_delay?" in capsys.readouterr().err
    assert cli.run(["analyze", delayed, "--explain", "launch.cpu_delay", "--json"]) == 2


@pytest.mark.parametrize(
    ("fail_on", "code", "said"),
    [
        ("launch.cpu_delay", 7, "found launch.cpu_delay"),
        ("hang.kernel,launch.cpu_delay", 7, "found launch.cpu_delay"),
        ("any", 7, "launch.cpu_delay"),
        ("hang.kernel", 0, ""),
        ("healthy", 0, ""),
    ],
)
def test_fail_on_sets_the_exit_code(delayed: str, capsys, fail_on: str, code: int, said: str):
    assert cli.run(["analyze", delayed, "--fail-on", fail_on, "--json"]) == code
    captured = capsys.readouterr()
    assert json.loads(captured.out)["verdict"]["cause"] == "launch.cpu_delay"
    assert said in captured.err


def test_fail_on_any_is_not_passed_by_a_session_that_shows_nothing(tmp_path: Path, capsys):
    SessionBuilder(tmp_path / "s").write()
    assert cli.run(["analyze", str(tmp_path / "s"), "--fail-on", "any"]) == 8
    assert "neither found nor ruled out: any" in capsys.readouterr().err


def test_fail_on_what_could_not_be_told(blind: str, capsys):
    assert cli.run(["analyze", blind, "--fail-on", "launch.cpu_delay"]) == 8
    assert "neither found nor ruled out: launch.cpu_delay" in capsys.readouterr().err
    assert cli.run(["analyze", blind, "--fail-on", "healthy"]) == 7
    assert cli.run(["analyze", blind, "--fail-on", "any"]) == 0


@pytest.mark.parametrize(
    ("fail_on", "said"),
    [
        ("launch.cpu_dely", "did you mean launch.cpu_delay?"),
        (" , ", "names no cause"),
    ],
)
def test_fail_on_what_would_never_fail_is_refused(delayed: str, capsys, fail_on: str, said: str):
    assert cli.run(["analyze", delayed, "--fail-on", fail_on]) == 2
    assert said in capsys.readouterr().err


def test_explain_splits_the_longest_calls(tmp_path: Path, capsys):
    service = Service(seed=5)
    held = {"occupant_pid": 99, "occupant_tid": 99, "occupant_name": "stress-ng"}
    while service.now < service.start + 12 * S:
        begin = service.now
        service.absent(begin + MS, begin + 19 * MS, "running", 18 * MS, **held)
        service.launch_kernel(3, 20 * MS)
        service.decode_step()
    path = str(service.session(tmp_path / "s.tracer").path)
    assert cli.run(["analyze", path, "--explain", "launch.cpu_delay"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "20 ms (18 ms ready but waiting for a CPU, mostly for stress-ng (pid 99); 2 ms on a CPU "
        "inside the call)"
    ) in text


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session whose launching thread is pushed off its CPU in its second half only."""
    service = Service(seed=5)
    service.decode_until(service.start + 10 * S)
    while service.now < service.start + 20 * S:
        service.preempt(20 * MS)
        service.decode_step()
    return service.session(tmp_path_factory.mktemp("late") / "s.tracer").path


@pytest.mark.parametrize(
    ("text", "cause", "seconds"),
    [("@0..9s", "healthy", 9), ("@11s..19s", "launch.cpu_delay", 8)],
)
def test_a_range_has_its_own_verdict(late: Path, capsys, text: str, cause: str, seconds: int):
    assert cli.run(["analyze", f"{late}{text}", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["verdict"]["cause"] == cause
    assert data["end_ns"] - data["start_ns"] == seconds * S


def test_a_wrong_range_is_wrong_usage(late: Path, capsys):
    assert cli.run(["analyze", f"{late}@9s..3s"]) == 2
    assert "the range ends before it begins" in capsys.readouterr().err
    assert cli.run(["analyze", f"{late}@2h.."]) == 3
    assert "outside of the recording" in capsys.readouterr().err


def test_a_range_without_its_detail_is_refused(tmp_path: Path, capsys):
    service = Service(seed=6)
    service.decode_until(service.start + 12 * S)
    path = service.session(tmp_path / "s.tracer").path
    kept = Kept(service.start + 8 * S, [(service.start + 2 * S, service.start + 4 * S)])
    (path / "kept.json").write_text(kept.to_json())
    for command in (["analyze"], ["report", "-o", str(tmp_path / "r.html")]):
        assert cli.run([*command, f"{path}@5s..10s"]) == 3
        told = capsys.readouterr().err
        assert "full detail was not kept of all of" in told
        assert "@2s..4s or @8s..12s" in told
    assert cli.run(["analyze", f"{path}@8s..12s"]) == 0
