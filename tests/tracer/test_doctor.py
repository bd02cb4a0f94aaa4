"""The doctor: each requirement answered, with its loss and remedy; a process looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from probes.probe import Requirement
from tracer import cli
from tracer.doctor import can_record, machine_requirements, report_lines
from tracer.doctor_target import check_target
from tracer.errors import TargetError


@pytest.mark.root
def test_this_machine_is_answered_in_full():
    found = {item.name: item for item in machine_requirements()}
    assert {"rights", "bcc", "kernel headers", "uprobe_multi", "compiling", "nvml"} <= set(found)
    assert found["rights"].is_met and found["bpf"].is_met and found["schedstat"].is_met
    assert os.uname().release in found["kernel"].detail
    for item in found.values():
        assert item.detail
        if not item.is_met and item.name != "btf":
            assert item.loss and item.remedy, item


def test_what_is_missing_on_another_machine(tmp_path):
    found = {item.name: item for item in machine_requirements(tmp_path)}
    missing = {name for name, item in found.items() if not item.is_met}
    assert {"btf", "tracepoints", "schedstat", "pressure", "cgroup"} <= missing


def test_the_lines_say_what_is_lost_and_what_mends_it():
    items = [
        Requirement("bcc", False, "not installed", "no CUDA calls", "apt-get install bcc"),
        Requirement("rights", True, "root", "all"),
    ]
    assert list(report_lines(items)) == [
        "NO    bcc     not installed",
        "              lost: no CUDA calls",
        "              mend: apt-get install bcc",
        "yes   rights  root",
    ]
    assert can_record(items)["cuda_calls_and_offcpu"] is False
    assert can_record(items)["gpu"] is True


def test_a_process_without_cuda():
    target = subprocess.Popen(["sleep", "20"])
    try:
        check = check_target(target.pid)
        by_name = {item.name: item for item in check.requirements}
        assert not by_name["cuda functions"].is_met and check.libraries == []
        assert by_name["stacks"].is_met and by_name["access"].is_met
        [fact] = check.facts
        assert fact["pid"] == target.pid and fact["own_namespaces"] == []
    finally:
        target.kill()
        target.wait()
    with pytest.raises(TargetError, match="pgrep"):
        check_target(target.pid)


def test_a_program_with_moving_stacks(tmp_path):
    program = tmp_path / "service"
    program.write_bytes(Path("/bin/sleep").read_bytes() + b"\xff Go buildinf:")
    program.chmod(0o755)
    target = subprocess.Popen([str(program), "20"])
    try:
        stacks = {item.name: item for item in check_target(target.pid).requirements}["stacks"]
        assert not stacks.is_met and stacks.remedy
    finally:
        target.kill()
        target.wait()


def test_the_command_as_json_and_its_exit_code(capsys):
    code = cli.run(["doctor", "--pid", str(os.getpid()), "--json"])
    result = json.loads(capsys.readouterr().out)
    every = [*result["requirements"], *result["target"]["requirements"]]
    assert code == (0 if all(item["is_met"] for item in every) else 4)
    assert result["schema_version"] == 1
    assert set(result["can_record"]) >= {"cuda_calls_and_offcpu", "gpu", "engine"}
    # Children that other tests left may have lower pids.
    assert os.getpid() in {item["pid"] for item in result["target"]["processes"]}


def test_the_command_for_a_pid_that_is_not_there():
    done = subprocess.run(
        [sys.executable, "-m", "tracer", "doctor", "--pid", "4194304"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 5
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
